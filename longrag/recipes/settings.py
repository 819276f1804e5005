"""The two recipes of "Searching for Best Practices in RAG" as settings of one workflow (§5.1)."""

from __future__ import annotations

from functools import cache
from typing import Any

from longrag.models.rerankers.scorers import Scorer
from longrag.recipes.modules import (
    DEFAULT_TRANSFORM,
    Hybrid,
    Retriever,
    compressing,
    reranking,
    search_by_vector,
)
from longrag.recipes.workflow import Recipe
from longrag.retrieval.query_classifier import QueryClassifier


def best_performance(
    *,
    retriever: Retriever = search_by_vector,
    hybrid: Hybrid | None = None,
    scorer: Scorer | None = None,
    **changes: Any,
) -> Recipe:
    """The recipe for the best answers (best practices, §5.1).

    Query classification, HyDE beside the query, hybrid retrieval, reranking of 50 candidates by
    monoT5, the best passage last, and the sentences nearest to the query (Recomp, extractive).

    Args:
        retriever: finds passages; by default it asks with a ``Search``.
        hybrid: the keyword index; without one only the retriever is used, and the trace says so.
        scorer: a ``MonoT5Scorer`` or any other; None turns reranking off.
        changes: any other attribute of ``Recipe``, in place of the recipe's own.

    Raises:
        InvalidParameterError: a setting that is not allowed.
        TypeError: a setting that ``Recipe`` does not have.
    """
    settings: dict[str, Any] = {"transform": DEFAULT_TRANSFORM, **_both(scorer), **changes}
    return Recipe(retriever=retriever, hybrid=hybrid, **settings)


def balanced_efficiency(
    *,
    retriever: Retriever = search_by_vector,
    hybrid: Hybrid | None = None,
    scorer: Scorer | None = None,
    **changes: Any,
) -> Recipe:
    """The recipe that weighs answers against time (best practices, §5.1).

    Query classification, hybrid retrieval with the query as it is, reranking by TILDEv2, the best
    passage last, and the sentences nearest to the query. The generation is its only call of a
    language model.

    Args:
        retriever: as in ``best_performance``, as are ``hybrid`` and ``changes``.
        hybrid: the keyword index.
        scorer: a ``TildeScorer`` or any other; None turns reranking off.
        changes: other attributes.

    Raises:
        InvalidParameterError: a setting that is not allowed.
        TypeError: a setting that ``Recipe`` does not have.
    """
    return Recipe(retriever=retriever, hybrid=hybrid, **{**_both(scorer), **changes})


@cache
def _default_gate() -> QueryClassifier:
    # Its coefficients are read once; it never changes.
    return QueryClassifier.load_default()


def _both(scorer: Scorer | None) -> dict[str, Any]:
    return {
        "gate": _default_gate(),
        "reranker": None if scorer is None else reranking(scorer),
        "repacker": "reverse",
        "compressor": compressing(),
    }
