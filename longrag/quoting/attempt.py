"""One reply of a model: its quotes, what was accepted of them, and what was shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from longrag.generation import Delta, RetrievedSpan, Source
from longrag.quoting.replies import ReplyReader

ANSWER_LABEL: Final = "answer: "
"""What stands before the answer behind its quotes."""


class Attempt:
    """One reply: its quotes, what was accepted, and what of that was shown."""

    def __init__(self) -> None:
        self.reader = ReplyReader()
        self.accepted: list[RetrievedSpan] = []
        self._places: dict[tuple[Source, ...], int] = {}
        self.refused: list[RetrievedSpan] = []
        # The place of each quote of the reply among those that were accepted.
        self.numbers: list[int | None] = []
        self.answer = ""
        self.unsupported: tuple[str, ...] = ()
        # Whether the answer holds a quote that was refused.
        self.broken = False
        self.text = ""
        self.shown: list[RetrievedSpan] = []

    def accept(self, span: RetrievedSpan) -> int:
        """Add a quote unless it is there, and return its place among those accepted."""
        place = self._places.setdefault(span.sources, len(self.accepted))
        if place == len(self.accepted):
            self.accepted.append(span)
        return place

    @property
    def has_quote(self) -> bool:
        """Whether one of the quotes says where it is from."""
        return any(one.checked is not None and one.checked.evidence for one in self.accepted)

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """The better of two replies has the larger one."""
        return self.has_quote and bool(self.answer), self.has_quote, len(self.accepted)

    def show_quotes(self) -> Iterator[Delta]:
        """Yield the quotes that were accepted since."""
        for span in self.accepted[len(self.shown) :]:
            start = len(self.text) + bool(self.text) + 1
            placed = replace(span, start=start, end=start + len(span.text))
            self.shown.append(placed)
            yield self.show(f"“{span.text}”", placed)

    def show(self, text: str, span: RetrievedSpan | None = None) -> Delta:
        """Add a line, and return it as what is new of the text."""
        line = f"\n{text}" if self.text else text
        self.text += line
        return Delta(line, span)
