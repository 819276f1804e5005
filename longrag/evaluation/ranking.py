"""Rankings compared with what is relevant: one question at a time, best rank first.

Each measure takes the ids in the order in which they were ranked, each of them once. Values are
those of trec_eval, which ir-measures computes too; there, questions without anything relevant are
left out or count as 0, while here they are refused.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence

import numpy as np

from longrag.errors import InvalidParameterError

Relevant = Collection[Hashable] | Mapping[Hashable, float]
"""The relevant ids, or a mapping from ids to grades, of which those above 0 are relevant."""


def gold_recall(doc_ids: Collection[Hashable], gold_ids: Collection[Hashable]) -> float:
    """Return the share of the gold documents that were retrieved, in whatever order.

    Ids that occur more than once count once.

    Raises:
        InvalidParameterError: no gold documents, or a string in place of a list of ids.
    """
    gold = set(_checked_ids("gold_ids", gold_ids))
    if not gold:
        raise InvalidParameterError("gold_ids", gold_ids, "at least one id")
    return len(gold.intersection(_checked_ids("doc_ids", doc_ids))) / len(gold)


def all_gold(doc_ids: Collection[Hashable], gold_ids: Collection[Hashable]) -> bool:
    """Tell whether every gold document was retrieved: the recall R of LongRAG §4.2.

    Raises:
        InvalidParameterError: as ``gold_recall``.
    """
    return gold_recall(doc_ids, gold_ids) == 1


def reciprocal_rank(
    ranking: Sequence[Hashable], relevant: Relevant, *, k: int | None = None
) -> float:
    """Return 1 over the rank of the first relevant id among the best k, or 0.

    Raises:
        InvalidParameterError: a repeated id, nothing relevant, a grade that is negative or not
            finite, or a ``k`` that is not an integer of at least 1.
    """
    return next((1 / rank for rank, gain in _gains(ranking, relevant, k) if gain > 0), 0.0)


def mrr(
    rankings: Sequence[Sequence[Hashable]], relevant: Sequence[Relevant], *, k: int | None = None
) -> float:
    """Return the mean reciprocal rank over questions (MRR@k).

    Raises:
        InvalidParameterError: no rankings, another number of them than of ``relevant``, or as
            ``reciprocal_rank``.
    """
    _check_pairs(rankings, relevant)
    pairs = zip(rankings, relevant, strict=True)
    return math.fsum(reciprocal_rank(ranked, wanted, k=k) for ranked, wanted in pairs) / len(
        rankings
    )


def average_precision(
    ranking: Sequence[Hashable], relevant: Relevant, *, k: int | None = None
) -> float:
    """Return the mean, over all relevant ids, of the precision at the rank of each; absent ones 0.

    Raises:
        InvalidParameterError: as ``reciprocal_rank``.
    """
    found, total = 0, 0.0
    for rank, gain in _gains(ranking, relevant, k):
        if gain > 0:
            found += 1
            total += found / rank
    return total / _n_relevant(relevant)


def mean_average_precision(
    rankings: Sequence[Sequence[Hashable]], relevant: Sequence[Relevant], *, k: int | None = None
) -> float:
    """Return the mean average precision over questions (MAP).

    Raises:
        InvalidParameterError: as ``mrr``.
    """
    _check_pairs(rankings, relevant)
    pairs = zip(rankings, relevant, strict=True)
    return math.fsum(average_precision(ranked, wanted, k=k) for ranked, wanted in pairs) / len(
        rankings
    )


def ndcg(ranking: Sequence[Hashable], relevant: Relevant, *, k: int | None = None) -> float:
    """Return the discounted gain of the best k ids over that of the ideal ranking.

    Normalised discounted cumulative gain (Järvelin and Kekäläinen 2002) with the grade as gain and
    1 / log2(rank + 1) as discount, as in trec_eval.

    Raises:
        InvalidParameterError: as ``reciprocal_rank``.
    """
    gains = _gains(ranking, relevant, k)
    best = sorted(_grades(relevant).values(), reverse=True)[:k]
    ideal = math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(best, start=1))
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in gains) / ideal


def recall(ranking: Sequence[Hashable], relevant: Relevant, *, k: int | None = None) -> float:
    """Return the share of the relevant ids that are among the best k.

    Raises:
        InvalidParameterError: as ``reciprocal_rank``.
    """
    found = sum(gain > 0 for _, gain in _gains(ranking, relevant, k))
    return found / _n_relevant(relevant)


def precision(ranking: Sequence[Hashable], relevant: Relevant, *, k: int) -> float:
    """Return the share of k that are relevant ids among the best k, however many were ranked.

    Raises:
        InvalidParameterError: as ``reciprocal_rank``.
    """
    return sum(gain > 0 for _, gain in _gains(ranking, relevant, k)) / k


def _gains(
    ranking: Sequence[Hashable], relevant: Relevant, k: int | None
) -> list[tuple[int, float]]:
    """Return (rank, grade) of the best k, ranks from 1."""
    if k is not None and (isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1):
        raise InvalidParameterError("k", k, "an integer of at least 1, or None for all")
    grades = _grades(relevant)
    ranked = list(_checked_ids("ranking", ranking))
    if len(set(ranked)) != len(ranked):
        twice = next(id_ for at, id_ in enumerate(ranked) if id_ in ranked[:at])
        raise InvalidParameterError.because(
            f"A ranking has each id once: keep the best rank of {twice!r}."
        )
    return [(rank, grades.get(id_, 0.0)) for rank, id_ in enumerate(ranked[:k], start=1)]


def _grades(relevant: Relevant) -> dict[Hashable, float]:
    if isinstance(relevant, Mapping):
        grades = dict(relevant)
    else:
        grades = dict.fromkeys(_checked_ids("relevant", relevant), 1.0)
    for id_, grade in grades.items():
        if not (math.isfinite(grade) and grade >= 0):
            raise InvalidParameterError(f"relevant[{id_!r}]", grade, "a finite grade of at least 0")
    if not any(grade > 0 for grade in grades.values()):
        raise InvalidParameterError(
            "relevant", relevant, "at least one id", "Leave questions without any out of the mean."
        )
    return grades


def _n_relevant(relevant: Relevant) -> int:
    return sum(grade > 0 for grade in _grades(relevant).values())


def _checked_ids(name: str, ids: Collection[Hashable]) -> Collection[Hashable]:
    if isinstance(ids, str) or not isinstance(ids, Collection):
        raise InvalidParameterError(name, ids, "a list of ids", "Put a single one in a list.")
    return ids


def _check_pairs(rankings: Sequence[object], relevant: Sequence[object]) -> None:
    if not len(rankings) or len(rankings) != len(relevant):
        raise InvalidParameterError.because(
            f"Pass a ranking for each of the {len(relevant)} in relevant, got {len(rankings)}."
        )
