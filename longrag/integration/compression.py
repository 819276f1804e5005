"""Compression of retrieved passages by a component's settings, whatever the framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, cast

from longrag.calls import Flow
from longrag.models.language_model import LanguageModel
from longrag.recipes.passages import Passage, compressed_passages, summary_passages
from longrag.refinement.compression import Summary, compress_abstractive, compress_extractive
from longrag.refinement.pieces import Compressed
from longrag.refinement.self_information import compress_selective
from longrag.types import Span, TokenCounter

Method: TypeAlias = Literal["extractive", "abstractive", "selective_context"]


class CompressionSettings(Protocol):
    """The settings of a compressor that are the same in both frameworks."""

    method: Method
    ratio: float | None
    token_budget: int | None
    max_words: int | None
    together: bool
    language_model: LanguageModel | None
    split_phrases: Callable[[str], Sequence[Span]] | None


def compress_passages(
    settings: CompressionSettings,
    query: str,
    passages: Sequence[Passage],
    *,
    make_prompt: Callable[[], str],
    count_tokens: TokenCounter,
) -> Flow[list[Passage]]:
    """Shorten passages by the method of the settings; those of which nothing is kept are left out.

    Args:
        settings: a component's.
        query: the question; "selective_context" does not use it.
        passages: what was retrieved.
        make_prompt: abstractive: makes the template, as the core writes it.
        count_tokens: counts tokens for the budget.

    Raises:
        InvalidParameterError: the query is blank where one is needed, or a setting is not allowed.
        EmbeddingError: the embedding model returned unusable vectors.
        GenerationError: a reply is not a string, or the language model gave no finite probability.
    """
    texts = [passage.text for passage in passages]
    if settings.method == "abstractive":
        summaries: Sequence[Summary] = yield from compress_abstractive(
            query,
            texts,
            ratio=settings.ratio,
            max_words=settings.max_words,
            together=settings.together,
            prompt=make_prompt(),
        )
        return summary_passages(passages, summaries)
    compressed = yield from _compress(settings, query, texts, count_tokens)
    return compressed_passages(passages, compressed)


def _compress(
    settings: CompressionSettings, query: str, texts: Sequence[str], count_tokens: TokenCounter
) -> Flow[Compressed]:
    limit: dict[str, Any] = {
        "ratio": settings.ratio,
        "token_budget": settings.token_budget,
        "count_tokens": count_tokens,
    }
    if settings.method == "extractive":
        return compress_extractive(query, texts, **limit)
    model = cast("LanguageModel", settings.language_model)
    return compress_selective(texts, model, split_phrases=settings.split_phrases, **limit)
