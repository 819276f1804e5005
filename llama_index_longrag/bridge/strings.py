"""Strings that carry data through LlamaIndex.

LlamaIndex hands text from part to part as bare strings: a retriever's nodes reach a synthesizer as
strings, and the answer of a synthesizer becomes a response as a string. There is no slot beside
them, so what a string is known to be stands in attributes of a subclass. Any part that makes a new
string of one loses them, and then treats it as the plain text that it is.
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
    """A short answer with the notes that belong into the response's metadata."""

    __slots__ = ("notes",)
    notes: dict[str, Any]

    @classmethod
    def with_notes(cls, text: str, notes: dict[str, Any]) -> Answer:
        """Make an answer with its notes."""
        answer = cls(text)
        answer.notes = notes
        return answer


class SourceName(str):
    """The name of a text whose node is not known yet, since synthesizers are not shown nodes."""

    __slots__ = ("position",)
    position: int

    @classmethod
    def of_position(cls, position: int) -> SourceName:
        """Name the text with this position among those that are read, from 0."""
        name = cls(f"source {position + 1}")
        name.position = position
        return name
