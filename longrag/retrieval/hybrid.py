"""Keywords and vectors searched together, over any dense retriever (best practices, §3.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from longrag.calls import Flow, Search, ask
from longrag.errors import InvalidParameterError, StoreError
from longrag.indexing.keywords import KeywordIndex
from longrag.retrieval.fusion import PAPER_ALPHA, check_alpha, fuse
from longrag.retrieval.units import Hit, check_k
from longrag.types import RetrievedNode, RetrievedUnit

Found: TypeAlias = Hit | RetrievedUnit | RetrievedNode
"""What the retrievers of this package return, each with an id and a score of its own."""

DenseRetriever: TypeAlias = Callable[[str, int], Flow[Sequence[Found]]]
"""Makes the flow that searches for a query, given how many results are wanted.

For example ``lambda query, k: retrieve([query], index, k=k)`` over a ``UnitIndex``.
"""

# The candidates of each list. The paper reranks 50; more are needed where only ranks are added up.
_CANDIDATES: Final = 100


@dataclass(frozen=True, slots=True)
class HybridHit:
    """One result of a hybrid search.

    ``score`` is what it is ranked by. ``sparse`` is its BM25 score and ``keyword_id`` the id in the
    keyword index that has it: its own, or that of a unit's best chunk. ``dense`` is the other
    retriever's score and ``found`` what that retriever returned. Each is None where the id was not
    among that list's candidates.
    """

    id: str
    score: float
    sparse: float | None
    keyword_id: str | None
    dense: float | None
    found: Found | None


def hybrid(
    query: str,
    *,
    keywords: KeywordIndex,
    top_k: int,
    alpha: float = PAPER_ALPHA,
    candidates: int | None = None,
    dense: DenseRetriever | None = None,
    vector: Sequence[float] | None = None,
    unit_of: Mapping[str, str] | None = None,
) -> Flow[list[HybridHit]]:
    """Search by keywords and by vectors, and rank by ``alpha * sparse + dense``; see ``fuse``.

    The best ``candidates`` of each list are scaled and added up, so scores depend on how many they
    are. Ids must be those of the keyword index on both sides: a chunk's for hits, a unit's for
    retrieved units and a node's for nodes of a tree. Where the keyword index holds the chunks of
    the units that the dense retriever returns, ``unit_of`` joins them: a unit then has the score of
    its best chunk on both sides (MaxP).

    Args:
        query: What is searched for.
        keywords: The keyword index.
        top_k: The most results to return, at least 1.
        alpha: The weight of the keywords, at least 0.
        candidates: How many of each list are fused, at least ``top_k``. None takes 100, or
            ``top_k`` where that is more.
        dense: The other retriever. None asks with one ``Search``, which whoever drives the flow
            answers with hits.
        vector: The query's embedding for that ``Search``, when the caller has it.
        unit_of: The id of the unit of every id in the keyword index.

    Returns:
        At most ``top_k`` results, best first.

    Raises:
        InvalidParameterError: A setting that is not allowed, a score that is not finite, or an id
            that ``unit_of`` lacks.
        StoreError: The dense retriever returned something else, or gives no scores.
        Exception: What the dense retriever raises.
    """
    check_k(top_k, "top_k")
    check_alpha(alpha)
    wanted = max(top_k, _CANDIDATES) if candidates is None else candidates
    check_k(wanted, "candidates")
    if wanted < top_k:
        raise InvalidParameterError("candidates", wanted, f"at least top_k={top_k}")
    if dense is not None and vector is not None:
        raise InvalidParameterError("vector", "a vector", "None where dense= searches")
    sparse = _sparse(query, keywords, wanted, unit_of)
    if dense is None:
        answers = yield from ask(Search(query, wanted, vector))
    else:
        answers = yield from dense(query, wanted)
    near = _by_id(answers)
    fused = fuse(
        {id_: score for id_, (_, score) in sparse.items()},
        {id_: score for id_, (_, score) in near.items()},
        alpha,
    )
    best = list(fused.items())[:top_k]
    return [_hit(id_, score, sparse.get(id_), near.get(id_)) for id_, score in best]


def _sparse(
    query: str, keywords: KeywordIndex, wanted: int, unit_of: Mapping[str, str] | None
) -> dict[str, tuple[str, float]]:
    """Return the best ids, or units, with the id in the index that each has its score from."""
    best: dict[str, tuple[str, float]] = {}
    for id_, score in keywords.ranking(query, expected=wanted):
        owner = id_ if unit_of is None else _owner(unit_of, id_)
        if owner not in best:
            best[owner] = (id_, score)
            if len(best) == wanted:
                break
    return best


def _owner(unit_of: Mapping[str, str], id_: str) -> str:
    try:
        return unit_of[id_]
    except KeyError:
        raise InvalidParameterError(
            "unit_of", id_, "a mapping that has every id of the keyword index", "Add this id."
        ) from None


def _by_id(answers: Sequence[Any]) -> dict[str, tuple[Found, float]]:
    """Return the first result of each id, which is its best one."""
    found: dict[str, tuple[Found, float]] = {}
    for answer in answers:
        id_ = _id(answer)
        if answer.score is None:
            raise StoreError(
                f"the dense retriever gives no score for {id_!r}, so that it cannot be fused. Use a"
                " store that returns scores."
            )
        found.setdefault(id_, (answer, answer.score))
    return found


def _id(answer: object) -> str:
    match answer:
        case Hit():
            return answer.chunk.id
        case RetrievedUnit():
            return answer.unit.id
        case RetrievedNode():
            return answer.node.id
    raise StoreError(f"a search must be answered with hits, units or nodes, got {answer!r}")


def _hit(
    id_: str, score: float, sparse: tuple[str, float] | None, dense: tuple[Found, float] | None
) -> HybridHit:
    return HybridHit(
        id=id_,
        score=score,
        sparse=None if sparse is None else sparse[1],
        keyword_id=None if sparse is None else sparse[0],
        dense=None if dense is None else float(dense[1]),
        found=None if dense is None else dense[0],
    )
