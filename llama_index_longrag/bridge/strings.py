"""Strings that carry data through LlamaIndex.

LlamaIndex hands text from part to part as bare strings: a retriever's nodes reach a synthesizer as
strings, and the answer of a synthesizer becomes a response as a string. Nothing else is passed
with them, so what is known of a string is kept in attributes of a subclass. A part that makes a new
string of one loses the attributes, and treats it as plain text.
"""

from __future__ import annotations

from typing import Any

from longrag.types import RetrievedUnit


class UnitContent(str):
    """The text of a unit as a model is shown it, with the unit it was written from.

    It lets the two-turn reader see titles and document boundaries, where other synthesizers read
    text. ``metadata_str`` is the metadata a model is shown, without the title of its documents.
    """

    __slots__ = ("metadata_str", "retrieved")
    metadata_str: str
    retrieved: RetrievedUnit


class Answer(str):
    """A short answer with the notes for the response's metadata."""

    __slots__ = ("notes",)
    notes: dict[str, Any]

    @classmethod
    def with_notes(cls, text: str, notes: dict[str, Any]) -> Answer:
        """Make an answer with its notes."""
        answer = cls(text)
        answer.notes = notes
        return answer


class SourceName(str):
    """Names a text whose node is not known yet, since synthesizers get texts and not nodes."""

    __slots__ = ("position",)
    position: int

    @classmethod
    def of_position(cls, position: int) -> SourceName:
        """Name the text with this position among those that are read, from 0."""
        name = cls(f"source {position + 1}")
        name.position = position
        return name
