"""What became of a quote that was looked up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from longrag.decoding.generation import Source

QuoteStatus = Literal[
    "verbatim", "misattributed", "elided", "clipped", "stitched", "altered", "not_found"
]
"""What a quote is: "verbatim", a run of the source's words; "misattributed", such a run, but not
where it is said to be; "elided", runs of one place in order, joined by marks of omission that leave
nothing out that turns the meaning round; "clipped", a run that ends just before, or begins just
after, what turns its meaning round; "stitched", runs that do not belong together; "altered", a run
of which words were changed; "not_found", nothing of these."""

EditKind = Literal["number", "negation", "name", "word"]
"""What was changed: a number or a sign, a word that negates, a word with a capital, or another."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change: the words of the quote, and those of the source; either may be empty."""

    kind: EditKind
    quoted: str
    source: str


@dataclass(frozen=True, slots=True)
class CheckedQuote:
    """A quote that was looked up, and what of the sources may be shown in its place.

    ``sources`` are the places of its words, in the quote's order: one, or several of a quote with
    marks of omission. Where it is refused there are none; ``nearest`` is then the stretch that is
    most like it, to be told and never shown as the quote, and ``edits`` is what differs. A quote
    that stands only outside the passages, or has too few words to say where it is from, is
    "misattributed" without ``sources``. ``evidence`` tells that it is accepted and long enough not
    to stand there by chance: four words, or eight characters of Chinese or Japanese.
    """

    quote: str
    status: QuoteStatus
    sources: tuple[Source, ...] = ()
    nearest: Source | None = None
    edits: tuple[Edit, ...] = ()
    evidence: bool = False

    @property
    def accepted(self) -> bool:
        """Whether there is something that may be shown as this quote."""
        return bool(self.sources)
