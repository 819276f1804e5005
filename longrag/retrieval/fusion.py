"""Rankings as one: scores added on a common scale (best practices, §3.4), or reciprocal ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from itertools import chain
from math import isfinite
from typing import Final, Literal, TypeAlias, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from longrag.errors import InvalidParameterError

Id = TypeVar("Id", str, int)
Floats: TypeAlias = NDArray[np.float64]

FusionMethod: TypeAlias = Literal["weighted", "reciprocal_rank"]
"""How rankings are added up: by their scaled scores, or by their ranks (RRF)."""

RANK_CONSTANT: Final = 60
"""The constant of reciprocal rank fusion that its authors chose."""

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
    return _combine({"dense": dense, "sparse": sparse}, (1.0, alpha), _scale)


def fuse_reciprocal_rank(
    rankings: Sequence[Mapping[Id, float]],
    weights: Sequence[float] | None = None,
) -> dict[Id, float]:
    """Add any number of rankings up by ranks: ``sum(weight / (60 + rank))``, as the authors do.

    Ranks begin with 1; equal scores in one list have one rank, as in a competition. Only the order
    of a list counts, so that scores of any kind can be fused. Equal sums go by the
    scores in the first list, then in the second, and so on, each with the missing ids last, then by
    id.

    Args:
        rankings: Scores by id, one mapping a list, higher is better.
        weights: One number of at least 0 a list; None weighs all alike.

    Returns:
        The sums by id, best first.

    Raises:
        InvalidParameterError: A score that is not a finite number (the message names list and id),
            or a setting that is not allowed.

    Source: Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and
    individual Rank Learning Methods" (SIGIR 2009).
    """
    checked = check_weights(weights, len(rankings))
    return _combine(_named(rankings), checked, _reciprocal_ranks)


def fuse_lists(
    sparse: Mapping[Id, float],
    retrieved: Sequence[Mapping[Id, float]],
    *,
    alpha: float | None = None,
    weights: Sequence[float] | None = None,
    fusion: FusionMethod = "weighted",
) -> dict[Id, float]:
    """Fuse what keywords found with the lists of one retriever or more.

    Args:
        sparse: The scores of the keywords.
        retrieved: The scores of each retriever.
        alpha: The weight of the keywords; None takes 0.3, or 1 with "reciprocal_rank", whose
            authors weigh all lists alike.
        weights: The weights of the retrievers; None weighs each by 1.
        fusion: How the lists are added up: by scaled scores or by ranks.

    Raises:
        InvalidParameterError: As ``fuse`` and ``fuse_reciprocal_rank`` do.
    """
    weight = keyword_weight(alpha, fusion)
    own: tuple[float, ...] = check_weights(weights, len(retrieved))
    # The keywords come second, so that equal sums go by the score of the first retriever.
    names = ["dense", "sparse", *(f"others[{place}]" for place in range(len(retrieved) - 1))]
    lists = list(retrieved)
    lists.insert(1, sparse)
    value = _scale if fusion == "weighted" else _reciprocal_ranks
    return _combine(dict(zip(names, lists, strict=True)), [*own[:1], weight, *own[1:]], value)


def keyword_weight(alpha: float | None, fusion: FusionMethod) -> float:
    """Return the weight of the keywords: ``alpha``, or that which suits the kind of fusion.

    Raises:
        InvalidParameterError: One of both is not allowed.
    """
    check_fusion(fusion)
    if alpha is None:
        return PAPER_ALPHA if fusion == "weighted" else 1.0
    check_alpha(alpha)
    return float(alpha)


def check_fusion(fusion: object) -> None:
    """Raise ``InvalidParameterError`` unless ``fusion`` is a ``FusionMethod``."""
    if fusion not in get_args(FusionMethod):
        raise InvalidParameterError("fusion", fusion, '"weighted" or "reciprocal_rank"')


def check_weights(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """Return one weight for each list, 1 where no weights are given.

    Raises:
        InvalidParameterError: Another number of weights, or one that is not a finite number of at
            least 0.
    """
    if weights is None:
        return (1.0,) * count
    listed = isinstance(weights, Sized) and not isinstance(weights, str)
    if not listed or len(weights) != count or not all(map(_is_weight, weights)):
        raise InvalidParameterError(
            "weights", weights, f"a sequence of {count} finite numbers of at least 0, one a list"
        )
    return tuple(map(float, weights))


def check_alpha(alpha: float) -> None:
    """Raise ``InvalidParameterError`` unless ``alpha`` is a finite number of at least 0."""
    if not _is_weight(alpha):
        raise InvalidParameterError("alpha", alpha, "a finite number of at least 0")


def _is_weight(value: object) -> bool:
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return real and 0 <= cast("float", value) < np.inf


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


def _named(rankings: Sequence[Mapping[Id, float]]) -> dict[str, Mapping[Id, float]]:
    return {f"rankings[{place}]": ranking for place, ranking in enumerate(rankings)}


def _combine(
    rankings: Mapping[str, Mapping[Id, float]],
    weights: Sequence[float],
    value: Callable[[Floats], Floats],
) -> dict[Id, float]:
    """Add up what the scores of each list are worth, and sort by the sums."""
    scores = [finite_scores(name, ranking) for name, ranking in rankings.items()]
    ids = list(dict.fromkeys(chain.from_iterable(rankings.values())))
    row = {id_: index for index, id_ in enumerate(ids)}
    worth = np.zeros((len(scores), len(ids)))
    by_list: Floats = np.full((len(scores), len(ids)), -np.inf)
    for place, (ranking, weight) in enumerate(zip(rankings.values(), weights, strict=True)):
        rows = np.fromiter((row[id_] for id_ in ranking), np.intp, len(ranking))
        worth[place, rows] = weight * value(scores[place])
        by_list[place, rows] = scores[place]
    # Sorted, since the same numbers added up in another order may differ in the last bits.
    total = np.sort(worth, axis=0).sum(axis=0)
    order = _order(ids, (total, *by_list))
    return dict(zip(map(ids.__getitem__, order.tolist()), total[order].tolist(), strict=True))


def _reciprocal_ranks(scores: Floats) -> Floats:
    ranks = 1 + np.searchsorted(np.sort(-scores), -scores, side="left")
    return 1 / (RANK_CONSTANT + ranks)


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


def _order(ids: list[Id], keys: Sequence[Floats]) -> NDArray[np.intp]:
    """Sort by each key in turn, the largest first, and what is equal in all of them by id."""
    order = np.lexsort([-key for key in reversed(keys)])
    # Ids are compared only where it matters: comparing strings is what would take the time.
    same = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    for first, last in edges.reshape(-1, 2).tolist():
        run = order[first : last + 1]
        run[:] = sorted(run.tolist(), key=ids.__getitem__)
    return order
