"""What a decoder gives back: text, and the spans of it that were retrieved, with their sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "stuck", "no_quote"]
"""Why an output ends: the model or a stop string ended it, the tokens it was allowed are used up,
nothing in the corpus could follow, or a quote is required and none was found or accepted."""


@dataclass(frozen=True, slots=True)
class Source:
    """One place in the corpus that a span is evidence of.

    The characters ``[start, end)`` of document ``doc_id``. ``verbatim`` tells that they are the
    span's own words, white space apart; otherwise they are the passage that the span stands for,
    as a proposition or a heading does. ``score`` ranks the sources of one span, None where nothing
    was to be ranked.
    """

    doc_id: str
    start: int
    end: int
    passage_id: str = ""
    verbatim: bool = True
    score: float | None = None


@dataclass(frozen=True, slots=True)
class RetrievedSpan:
    """A key of the corpus that was decoded between the markers.

    It stands at the characters ``[start, end)`` of the generation's text. ``logprob`` is that of
    its tokens and of the closing marker. ``proved`` tells that of the keys that fit into the tokens
    allowed no other was better there (``search="exact"``), by the decoder's ``score`` among few
    candidates and by the sum among more keys. ``sources`` are in the order of
    documents and offsets, or ranked. ``rivals`` are keys that lost against this one behind the same
    text, best first, where they were asked for: keys that the beam closed, or other candidates.
    """

    text: str
    start: int
    end: int
    logprob: float
    sources: tuple[Source, ...]
    proved: bool = False
    rivals: tuple[RetrievedSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """The next piece of an output, which nothing that follows can change.

    ``span`` is a span that is complete with this piece, if one is; its closing marker may follow.
    """

    text: str
    span: RetrievedSpan | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a generation took: tokens, calls of the model, and the rows scored in them."""

    prompt_tokens: int
    new_tokens: int
    calls: int
    rows: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A decoded text: thoughts, and between markers what was retrieved.

    Only ``spans`` were retrieved: they are what the constraint let pass, whatever the text between
    them looks like. ``logprob`` is the sum over all tokens (RICHES, Equation 2, without its Z).
    ``alternatives`` are the other hypotheses that ended, best first.

    Where a quote is required and there is none, ``finish_reason`` is "no_quote", ``text`` is empty
    and there are no spans. ``rejected`` is then the quote that was found and not accepted, if one
    was; its characters count in a text that is not shown.
    """

    text: str
    spans: tuple[RetrievedSpan, ...]
    logprob: float
    finish_reason: FinishReason
    usage: Usage
    alternatives: tuple[Generation, ...] = ()
    rejected: RetrievedSpan | None = None

    @property
    def doc_ids(self) -> tuple[str, ...]:
        """The documents that the spans are from, in the order in which they were retrieved."""
        found = (source.doc_id for span in self.spans for source in span.sources)
        return tuple(dict.fromkeys(found))
