"""The summarizers that have a name: those that ask no language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, cast

from longrag.errors import InvalidParameterError
from longrag.indexing.tree.keyword_abstracts import KeywordSummarizer
from longrag.indexing.tree.summaries import ExtractiveSummarizer, Summarizer
from longrag.types import TokenCounter

_WITHOUT_MODEL: Final[Mapping[str, Callable[..., Summarizer]]] = {
    "extractive": ExtractiveSummarizer,
    "keywords": KeywordSummarizer,
}


def asks_no_model(summarizer: object) -> bool:
    """Tell whether a summarizer is one of the names of those that ask no language model."""
    return isinstance(summarizer, str) and summarizer in _WITHOUT_MODEL


def choose_summarizer(
    summarizer: object, *, summary_tokens: int, count_tokens: TokenCounter
) -> Summarizer:
    """Return the summarizer of a name, or the caller's own.

    Args:
        summarizer: "extractive", "keywords", or a ``Summarizer``.
        summary_tokens: the most tokens of a summary of a named one.
        count_tokens: counts them.

    Raises:
        InvalidParameterError: it is neither, or ``summary_tokens`` is out of range.
    """
    if isinstance(summarizer, str) and summarizer in _WITHOUT_MODEL:
        return _WITHOUT_MODEL[summarizer](summary_tokens=summary_tokens, count_tokens=count_tokens)
    if not callable(summarizer):
        raise InvalidParameterError(
            "summarizer", summarizer, '"extractive", "keywords", None or a Summarizer'
        )
    return cast("Summarizer", summarizer)
