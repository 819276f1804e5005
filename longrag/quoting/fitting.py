"""Passages that fit into a model's window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from longrag.errors import InvalidParameterError
from longrag.ingestion.chunking import check_size, chunk_spans
from longrag.models.tokens import count_tokens as default_counter
from longrag.prompts import field, quote
from longrag.quoting.passages import QuotablePassage
from longrag.types import TokenCounter

TOLD_TOKENS: Final = 700
"""Room for what a model is told of quotes that were refused."""


def fit_passages(
    passages: Sequence[QuotablePassage],
    *,
    max_tokens: int | None = None,
    count_tokens: TokenCounter = default_counter,
) -> list[QuotablePassage]:
    """Return the passages that fit into ``max_tokens`` tokens, the last one cut at a sentence.

    Each is counted with its number and title, as a prompt shows it.

    Raises:
        InvalidParameterError: there is no room for a sentence of the first.
    """
    if max_tokens is None:
        return list(passages)
    check_size("max_tokens", max_tokens)
    kept: list[QuotablePassage] = []
    room = max_tokens
    for number, one in enumerate(passages, 1):
        frame = count_tokens(field("passage", "", title=one.title, source=number) + "\n\n")
        size = frame + count_tokens(quote(one.text))
        if size <= room:
            kept.append(one)
            room -= size
            continue
        spans: Sequence[tuple[int, int]] = ()
        if room > frame:
            spans = chunk_spans(
                one.text,
                chunk_size=room - frame,
                count_tokens=lambda text: count_tokens(quote(text)),
            )
        if spans:
            kept.append(one.cut(spans[0][1]))
        elif not kept:
            raise InvalidParameterError.because(
                f"Set max_tokens above {frame} and what a sentence takes, got {max_tokens}."
            )
        break
    return kept
