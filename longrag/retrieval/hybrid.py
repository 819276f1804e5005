"""Keywords and vectors searched together, over any dense retriever (best practices, §3.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from longrag.calls import Flow, Search, ask
from longrag.calls.flows import together
from longrag.errors import InvalidParameterError, StoreError
from longrag.indexing.keywords import KeywordIndex, UnitKeywords
from longrag.indexing.vectors import check_vectors
from longrag.retrieval.assembly import align_chunk
from longrag.retrieval.fusion import FusionMethod, check_weights, fuse_lists, keyword_weight
from longrag.retrieval.units import Hit, UnitIndex, check_k, embed_query
from longrag.types import RetrievedNode, RetrievedUnit

Found: TypeAlias = Hit | RetrievedUnit | RetrievedNode
"""What the retrievers of this package return, each with an id and a score."""

DenseRetriever: TypeAlias = Callable[[str, int], Flow[Sequence[Found]]]
"""Makes the flow that searches for a query, given how many results are wanted.

For example ``lambda query, k: retrieve([query, *documents], index, k=k)``, which searches with the
documents that ``hyde`` gave.
"""

Scored: TypeAlias = tuple[dict[str, float], Callable[[str], Found]]
"""Scores by id, and what gives the result that an id names."""

# Twice the 50 that the paper reranks, since what only one of the lists holds ranks low.
_CANDIDATES: Final = 100


@dataclass(frozen=True, slots=True)
class HybridHit:
    """One result of a hybrid search.

    ``score`` is what it is ranked by. ``sparse`` is its BM25 score and ``keyword_id`` the id in the
    keyword index that has it: its own, or that of a unit's best chunk. ``dense`` is the score of
    the first retriever and ``found`` what the first retriever that has it returned. Each is None
    where the id was not among the candidates.
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
    keywords: KeywordIndex | UnitKeywords,
    top_k: int,
    alpha: float | None = None,
    candidates: int | None = None,
    dense: DenseRetriever | UnitIndex | None = None,
    vector: Sequence[float] | None = None,
    others: Sequence[DenseRetriever] = (),
    weights: Sequence[float] | None = None,
    fusion: FusionMethod = "weighted",
) -> Flow[list[HybridHit]]:
    """Search by keywords and by vectors, and rank by ``alpha * sparse + dense``; see ``fuse``.

    Any number of other retrievers can be searched as well, and the lists be fused by their ranks
    (RRF) in place of their scores; see ``fuse_lists``.

    The best ``candidates`` of each list are scaled and added up, so scores depend on how many they
    are. Ids must be the same on both sides: those of chunks for hits, of units for retrieved units,
    of nodes for nodes of a tree. Where the dense retriever returns units and the keyword index
    holds their chunks, ``keywords.by_unit(unit_of)`` joins them: a unit then has the score of its
    best chunk on both sides (MaxP).

    Args:
        query: What is searched for.
        keywords: The keyword index, or its view by units.
        top_k: The most results to return, at least 1.
        alpha: The weight of the keywords, at least 0; None takes 0.3, or 1 with "reciprocal_rank".
        candidates: How many of each list are fused, at least ``top_k``. None takes 100, or
            ``top_k`` where that is more.
        dense: The other retriever, or an index of units, which is fastest. None asks with one
            ``Search``, which whoever drives the flow answers with hits.
        vector: The query's embedding for the index or the ``Search``, when the caller has it.
        others: More retrievers over the same ids, asked at the same time as ``dense``.
        weights: The weights of ``dense`` and ``others``; None weighs each by 1.
        fusion: "weighted" adds up scaled scores, "reciprocal_rank" ranks.

    Returns:
        At most ``top_k`` results, best first.

    Raises:
        InvalidParameterError: A setting that is not allowed, or a score that is not finite.
        StoreError: The dense retriever returned something else, or gives no scores.
        Exception: What the dense retriever raises.
    """
    check_k(top_k, "top_k")
    keyword_weight(alpha, fusion)
    check_weights(weights, 1 + len(others))
    wanted = max(top_k, _CANDIDATES) if candidates is None else candidates
    check_k(wanted, "candidates")
    if wanted < top_k:
        raise InvalidParameterError("candidates", wanted, f"at least top_k={top_k}")
    sparse, text_of = keywords.matches(query, wanted)
    searches = [_dense(query, wanted, dense, vector)]
    searches += [_search(other, query, wanted) for other in others]
    lists = yield from together(searches)
    scores = [near for near, _ in lists]
    fused = fuse_lists(sparse, scores, alpha=alpha, weights=weights, fusion=fusion)
    return [
        HybridHit(
            id=id_,
            score=score,
            sparse=sparse.get(id_),
            keyword_id=text_of(id_) if id_ in sparse else None,
            dense=scores[0].get(id_),
            found=next((found_of(id_) for near, found_of in lists if id_ in near), None),
        )
        for id_, score in islice(fused.items(), top_k)
    ]


def _search(retriever: DenseRetriever, query: str, wanted: int) -> Flow[Scored]:
    return _best_by_id((yield from retriever(query, wanted)), wanted)


def _dense(
    query: str,
    wanted: int,
    dense: DenseRetriever | UnitIndex | None,
    vector: Sequence[float] | None,
) -> Flow[Scored]:
    if isinstance(dense, UnitIndex):
        if not dense.chunks:
            return _best_by_id([], wanted)
        asked = (yield from embed_query([query])) if vector is None else vector
        return _nearest(dense, asked, wanted)
    if dense is None:
        return _best_by_id((yield from ask(Search(query, wanted, vector))), wanted)
    if vector is not None:
        raise InvalidParameterError.because("What is given as dense embeds the query: omit vector.")
    return (yield from _search(dense, query, wanted))


def _nearest(index: UnitIndex, vector: ArrayLike, wanted: int) -> Scored:
    """Search as ``index.search`` does, and make only the units that are asked for."""
    query = check_vectors(vector, name="query vector", width=index.index.width, one_row=True)
    if len(query) != 1:
        raise InvalidParameterError.because(f"Pass one query vector, got {len(query)}.")
    if index.normalize:
        lengths = np.linalg.norm(query, axis=1, keepdims=True)
        query = (query / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    scores, units, chunks = (row[0].tolist() for row in index.index.search(query, wanted))
    # Nothing of a unit but its id is read here: most of what is found here is not returned.
    place_of = {index.units[unit].id: at for at, unit in enumerate(units)}

    def found_of(id_: str) -> RetrievedUnit:
        at = place_of[id_]
        unit = index.units[units[at]]
        return RetrievedUnit(unit, scores[at], align_chunk(index.chunks[chunks[at]], unit))

    return dict(zip(place_of, scores, strict=True)), found_of


def _best_by_id(answers: Sequence[Found], wanted: int) -> Scored:
    """Keep the ``wanted`` best results, and of each id the first.

    A retriever may return more than it is asked for, and those of the layers of a tree do not come
    best first.
    """
    found: dict[str, Found] = {}
    scores: dict[str, float] = {}
    for answer in answers:
        id_ = _id(answer)
        if answer.score is None:
            raise StoreError(
                f"the dense retriever gives no score for {id_!r}, so that it cannot be fused. Use a"
                " store that returns scores."
            )
        if id_ not in found:
            found[id_], scores[id_] = answer, answer.score
    if len(scores) > wanted:
        best = sorted(scores, key=scores.__getitem__, reverse=True)[:wanted]
        scores = {id_: scores[id_] for id_ in best}
    return scores, found.__getitem__


def _id(answer: object) -> str:
    match answer:
        case Hit():
            return answer.chunk.id
        case RetrievedUnit():
            return answer.unit.id
        case RetrievedNode():
            return answer.node.id
    raise StoreError(f"a search must be answered with hits, units or nodes, got {answer!r}")
