"""Two rankings as one: keyword and vector scores added on a common scale (best practices, §3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from math import isfinite
from typing import Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from longrag.errors import InvalidParameterError

Id = TypeVar("Id", str, int)
Floats: TypeAlias = NDArray[np.float64]

PAPER_ALPHA: Final = 0.3
"""The weight of the keywords that ranks best in the paper's Table 8 (by nDCG@10)."""


def fuse(
    sparse: Mapping[Id, float], dense: Mapping[Id, float], alpha: float = PAPER_ALPHA
) -> dict[Id, float]:
    """Add two rankings up: ``alpha * sparse + dense`` (best practices, §3.4, equation 1).

    Each list is scaled on its own from its smallest score, 0, to its largest, 1. In a list whose
    scores are all equal, and so in a list of one, every score becomes 1: what a retriever found
    counts more than what it did not find. An id that is missing from a list counts 0 there, as the
    last of that list does.

    Equal sums go by the dense score, then by the sparse one, each with the missing ids last, then
    by id. So with ``alpha=0`` the ids of ``dense`` come first and in the order of ``dense``. With a
    huge ``alpha`` those that the keywords scored above their smallest come in the order of
    ``sparse``, equal ones in that of ``dense``.

    Args:
        sparse: Keyword scores by id, higher is better.
        dense: Vector scores by id, higher is better.
        alpha: The weight of the keywords, at least 0.

    Returns:
        The sums by id, best first.

    Raises:
        InvalidParameterError: A score that is not a finite number (the message names its id), or an
            ``alpha`` that is not allowed.
    """
    check_alpha(alpha)
    if not sparse and not dense:
        return {}
    sparse_scores = finite_scores("sparse", sparse)
    dense_scores = finite_scores("dense", dense)
    ids = list(dict.fromkeys(chain(dense, sparse)))
    # The ids of the dense list are the first ones.
    row = {id_: index for index, id_ in enumerate(ids)}
    rows = np.fromiter((row[id_] for id_ in sparse), np.intp, len(sparse))
    total, by_dense, by_sparse = np.zeros(len(ids)), _missing(len(ids)), _missing(len(ids))
    total[rows] = alpha * _scale(sparse_scores)
    total[: len(dense)] += _scale(dense_scores)
    by_dense[: len(dense)] = dense_scores
    by_sparse[rows] = sparse_scores
    order = _order(ids, (total, by_dense, by_sparse))
    return dict(zip(map(ids.__getitem__, order.tolist()), total[order].tolist(), strict=True))


def check_alpha(alpha: float) -> None:
    """Raise ``InvalidParameterError`` unless ``alpha`` is a finite number of at least 0."""
    real = isinstance(alpha, (int, float)) and not isinstance(alpha, bool)
    if not real or not 0 <= alpha < np.inf:
        raise InvalidParameterError("alpha", alpha, "a finite number of at least 0")


def finite_scores(name: str, scores: Mapping[Id, float]) -> Floats:
    """Return the scores of a mapping in its order.

    Raises:
        InvalidParameterError: No mapping, or a score that is not a finite number.
    """
    if not isinstance(scores, Mapping):
        raise InvalidParameterError(name, type(scores).__name__, "a mapping from id to score")
    try:
        values = np.asarray(list(scores.values()))
    except ValueError:
        values = np.empty(0, object)
    if values.dtype.kind in "fiu" and values.ndim == 1 and np.isfinite(values).all():
        return values.astype(np.float64)
    return np.array([_number(name, id_, score) for id_, score in scores.items()], np.float64)


def _number(name: str, id_: str | int, score: object) -> float:
    number = isinstance(score, (int, float, np.integer, np.floating))
    try:
        if number and not isinstance(score, bool) and isfinite(value := float(score)):  # type: ignore[arg-type]
            return value
    except OverflowError:
        pass
    raise InvalidParameterError(
        f"{name}[{id_!r}]", score, "a finite number", "Leave out what has no score."
    )


def _missing(count: int) -> Floats:
    return np.full(count, -np.inf)


def _scale(scores: Floats) -> Floats:
    if not len(scores):
        return scores
    low, high = float(scores.min()), float(scores.max())
    if low == high:
        return np.ones(len(scores))
    if not isfinite(high - low):
        # Halves, since the difference of the largest floats is not a finite number.
        scores, low, high = scores / 2, low / 2, high / 2
    return (scores - low) / (high - low)


def _order(ids: list[Id], keys: tuple[Floats, ...]) -> NDArray[np.intp]:
    """Sort by each key in turn, the largest first, and what is equal in all of them by id."""
    order = np.lexsort([-key for key in reversed(keys)])
    # Ids are compared only where it matters: comparing strings is what would take the time.
    same = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    for first, last in edges.reshape(-1, 2).tolist():
        run = order[first : last + 1]
        run[:] = sorted(run.tolist(), key=ids.__getitem__)
    return order
