"""Retrieval by decoding: the passages that a model quotes for a question."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from longrag.decoding.answers import prior_prompt, riches_prompt
from longrag.decoding.candidates import Candidates, CandidatesFor
from longrag.decoding.decoder import RichesDecoder
from longrag.generation import RetrievedSpan, Source
from longrag.prompts import RICHES_SINGLE_HOP, RICHES_STOP
from longrag.retrieval.units import check_k


class Retrieved(NamedTuple):
    """A passage, and the span that was decoded to find it."""

    source: Source
    span: RetrievedSpan


def retrieve_quoted(
    decoder: RichesDecoder,
    question: str,
    *,
    k: int,
    template: str = RICHES_SINGLE_HOP,
    candidates: Candidates | CandidatesFor | None = None,
) -> list[Retrieved]:
    """Return k passages of the corpus, or all if it has fewer.

    First come those of the spans that the model writes before its answer, in their order, then
    those of the keys that are most probable directly after the prompt. A passage with several keys
    comes once, with the first of them. If the decoder requires a quote and finds none, the result
    is empty. ``candidates`` are those of ``RichesDecoder.generate``; if they are a function, only
    the passages of the spans are returned.

    Raises:
        InvalidParameterError: ``k`` is below 1, or the question is too long.
        GenerationError: the model failed.
    """
    check_k(k)
    return list(islice(_distinct(_spans(decoder, question, template, candidates)), k))


def _spans(
    decoder: RichesDecoder,
    question: str,
    template: str,
    candidates: Candidates | CandidatesFor | None,
) -> Iterator[RetrievedSpan]:
    prompt = riches_prompt(question, template, markers=decoder.markers)
    without = prior_prompt(template, markers=decoder.markers)
    found = decoder.generate(
        prompt, query=question, prior_prompt=without, candidates=candidates, stop=RICHES_STOP
    )
    if found.finish_reason == "no_quote":
        return
    yield from found.spans
    if not callable(candidates):
        yield from decoder.keys(prompt, candidates=candidates)


def _distinct(spans: Iterator[RetrievedSpan]) -> Iterator[Retrieved]:
    seen: set[tuple[str, str, int, int]] = set()
    for span in spans:
        for source in span.sources:
            place = (0, 0) if source.passage_id else (source.start, source.end)
            name = (source.doc_id, source.passage_id, *place)
            if name not in seen:
                seen.add(name)
                yield Retrieved(source, span)
