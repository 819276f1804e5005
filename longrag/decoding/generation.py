"""What a decoder returns: a text, its spans that were retrieved, and their sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "stuck", "no_quote"]
"""Why an output ended: "stop", by the model or a stop string; "length", the allowed tokens are used
up; "stuck", no token may follow; "no_quote", a quote is required and none was found or accepted."""


@dataclass(frozen=True, slots=True)
class Source:
    """A place in the corpus that a span was taken from: characters ``[start, end)`` of ``doc_id``.

    If ``verbatim``, these characters are the span's own words, apart from white space. Otherwise
    they are the passage that the span represents, as a proposition or a heading does. ``score``
    ranks the sources of one span; None if they were not ranked.
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

    It is the characters ``[start, end)`` of the generation's text. ``logprob`` is the sum over its
    tokens and the closing marker. ``proved`` means that no other key that fits into the allowed
    tokens has a better score there (``search="exact"``): by the decoder's ``score`` among few
    candidates, by the sum among more keys. ``sources`` are in the order of documents and offsets,
    or ranked. ``rivals``, if asked for, are the keys that lost against this one after the same
    text, best first: keys that the beam closed, or other candidates.

    ``text`` is one line, as keys are. ``source_text`` is the same words as the first source writes
    them, with its line ends and indentation, behind the title or heading that the key begins with;
    None where no source has these words or the decoder does not have the documents.
    """

    text: str
    start: int
    end: int
    logprob: float
    sources: tuple[Source, ...]
    proved: bool = False
    rivals: tuple[RetrievedSpan, ...] = ()
    source_text: str | None = None

    @property
    def quote(self) -> str:
        """What is shown as the quote: the source's own characters where they are known."""
        return self.text if self.source_text is None else self.source_text


@dataclass(frozen=True, slots=True)
class Delta:
    """The next piece of an output, which nothing that follows can change.

    ``span`` is the span that this piece completes, or None; its closing marker may follow.
    """

    text: str
    span: RetrievedSpan | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of a generation: tokens, calls of the model, and rows scored in these calls."""

    prompt_tokens: int
    new_tokens: int
    calls: int
    rows: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A decoded text: thoughts, and between markers what was retrieved.

    Only ``spans`` were retrieved: they are what was written under the constraint, whatever the text
    between them looks like. ``logprob`` is the sum over all tokens (RICHES, Equation 2, without its
    Z). ``alternatives`` are the other hypotheses that ended, best first.

    If a quote is required and there is none, ``finish_reason`` is "no_quote", ``text`` is empty and
    there are no spans. ``rejected`` is then the quote that was found but not accepted, or None; its
    ``start`` and ``end`` count in the whole output, which is not returned.
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
