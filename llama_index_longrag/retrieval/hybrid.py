"""Keywords beside any retriever: both rankings as one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from math import isnan
from typing import Any, cast

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.indices.base import BaseIndex
from llama_index.core.schema import BaseNode, IndexNode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_longrag.bridge.filters import narrow, to_filter
from llama_index_longrag.bridge.nodes import to_chunk
from llama_index_longrag.bridge.store_queries import combine_filters
from llama_index_longrag.retrieval.keyword_sources import find_keyword_source
from longrag.calls import Flow, Search, arun, ask, run
from longrag.errors import InvalidParameterError
from longrag.indexing.keywords import WordTokenizer
from longrag.indices.keyword_sources import CurrentKeywords, Keywords
from longrag.recipes.runs import SearchBy
from longrag.retrieval.filters import DocumentFilter
from longrag.retrieval.fusion import FusionMethod, check_weights, keyword_weight
from longrag.retrieval.hybrid import Found, HybridHit, hybrid
from longrag.retrieval.lru_cache import LruCache
from longrag.retrieval.units import Hit, check_k

CANDIDATES = 100
_KEPT_FILTERS = 8


class HybridRetriever(BaseRetriever):
    """Rank by ``alpha * keywords + dense``: BM25 beside any retriever, over the same nodes.

    Both rankings are scaled to 0 to 1, so that a score is at most ``alpha + 1``. Long units count
    by their best chunk on both sides, and of a tree its leaves and summaries count alike.

    Exactly min(similarity_top_k, nodes) nodes are returned where the wrapped retriever ranks all
    nodes that it is asked for; one with a token budget ranks those that fit. Keywords are searched
    for with the question alone; the wrapped retriever is given the query bundle, with what a query
    transform made of it.

    Args:
        retriever: any retriever that gives scores. It is asked for ``candidates`` nodes, by a copy
            of it, where it has ``similarity_top_k``.
        index: an index, in place of a retriever; its own retriever is used, and nodes that come and
            go are followed.
        nodes: what the retriever searches. Not needed for the indexes and retrievers of this
            package, whose later changes are followed, and for a ``VectorStoreIndex`` whose docstore
            holds its nodes.
        alpha: the weight of the keywords, at least 0; by default 0.3, or 1 with "reciprocal_rank".
        similarity_top_k: the number of nodes to return; all of them when there are fewer.
        candidates: how many of each ranking are added up; by default 100, or ``similarity_top_k``
            where that is more.
        keyword_tokenizer: gives the words of a text; see ``KeywordIndex``.
        other_retrievers: any number of retrievers whose lists are fused as well, over the same
            nodes. Each is asked as ``retriever`` is; async, all at the same time.
        weights: the weights of ``retriever`` and each of ``other_retrievers``; 1 by default.
        fusion: "weighted" adds up the scaled scores of the lists, "reciprocal_rank" their ranks
            (RRF), for scores that cannot be compared.

    Metadata filters of a wrapped retriever hold for the keywords as well; ``with_filters`` adds
    those of one request.

    Raises:
        InvalidParameterError: a setting is not allowed, not exactly one source is given, or the
            nodes that are searched are not known.
        MissingExtraError: the extra ``bm25`` is not installed.
        StoreError: the wrapped retriever gives no scores.

    Source: Best Practices §3.4, equation 1.
    """

    def __init__(
        self,
        *,
        retriever: BaseRetriever | None = None,
        index: BaseIndex[Any] | None = None,
        nodes: Sequence[BaseNode] | None = None,
        alpha: float | None = None,
        similarity_top_k: int = 4,
        candidates: int | None = None,
        keyword_tokenizer: WordTokenizer | None = None,
        other_retrievers: Sequence[BaseRetriever] = (),
        weights: Sequence[float] | None = None,
        fusion: FusionMethod = "weighted",
        callback_manager: CallbackManager | None = None,
        object_map: dict[str, Any] | None = None,
        objects: list[IndexNode] | None = None,
        verbose: bool = False,
    ) -> None:
        keyword_weight(alpha, fusion)
        self._others = [_resolve_retriever(other, None) for other in other_retrievers]
        check_weights(weights, 1 + len(self._others))
        self._weights, self._fusion = weights, fusion
        if candidates is not None:
            check_k(candidates, "candidates")
        self._alpha = alpha
        self._candidates = candidates
        self.similarity_top_k = similarity_top_k
        self._retriever = _resolve_retriever(retriever, index)
        self._dense: list[NodeWithScore] | None = None
        self._index = index
        self._filters: MetadataFilters | None = None
        self._nodes = nodes
        self._tokenizer = keyword_tokenizer
        self._keywords = self._find_keywords()
        self._keywords.read()
        # The keywords of what passes a filter, for the copies that are made for requests.
        self._narrowed: LruCache[DocumentFilter, CurrentKeywords[NodeWithScore]] = LruCache(
            _KEPT_FILTERS
        )
        # Keywords find the nodes that stand for objects: what these are is looked up when both
        # rankings are one, and not by the wrapped retriever.
        self._resolves = nodes is None and object_map is None and not objects
        if self._resolves:
            object_map = self._retriever.object_map
        super().__init__(
            callback_manager=callback_manager or self._retriever.callback_manager,
            object_map=object_map,
            objects=objects,
            verbose=verbose,
        )

    @property
    def candidates(self) -> int | None:
        """How many of each ranking are added up, None where that follows ``similarity_top_k``."""
        return self._candidates

    @property
    def similarity_top_k(self) -> int:
        """The number of nodes to return."""
        return self._similarity_top_k

    @similarity_top_k.setter
    def similarity_top_k(self, similarity_top_k: int) -> None:
        check_k(similarity_top_k, "similarity_top_k")
        if self._candidates is not None and self._candidates < similarity_top_k:
            raise InvalidParameterError(
                "candidates", self._candidates, f"at least similarity_top_k={similarity_top_k}"
            )
        self._similarity_top_k = similarity_top_k

    def _find_keywords(self) -> CurrentKeywords[NodeWithScore]:
        follow = self._index is not None
        source = find_keyword_source(self._retriever, self._nodes, follow=follow)
        return CurrentKeywords(source, self._tokenizer)

    def with_filters(self, filters: MetadataFilters | None) -> HybridRetriever:
        """Return a copy that keeps both rankings to these filters, beside those it has.

        A copy is cheap enough for each request: the keywords of what passes are read at the first
        question, and kept for the last few filters.

        Raises:
            InvalidParameterError: the filters of the wrapped retriever are not known.
        """
        wanted = to_filter(filters)
        if filters is None or wanted is None:
            return self
        other = copy.copy(self)
        other._filters = combine_filters(self._filters, filters)
        other._retriever = narrow(self._retriever, filters)
        other._others = [narrow(one, filters) for one in self._others]
        other._keywords = self._narrowed.get(wanted, other._find_keywords)
        other._narrowed = LruCache(_KEPT_FILTERS)
        return other

    def _get_prompt_modules(self) -> dict[str, Any]:
        others = {f"other_retriever_{at}": other for at, other in enumerate(self._others)}
        return {"retriever": self._retriever, **others}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        call = _Retrieval(self, query_bundle)
        return run(self._flow(query_bundle, call.found), call.answer)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        call = _Retrieval(self, query_bundle)
        flow, most = self._flow(query_bundle, call.found), 1 + len(self._others)
        return await arun(flow, call.aanswer, max_in_flight=most)

    def _flow(
        self, bundle: QueryBundle, found: dict[str, NodeWithScore]
    ) -> Flow[list[NodeWithScore]]:
        keywords = self._keywords.read()
        hits = yield from hybrid(
            bundle.query_str,
            keywords=keywords.index,
            top_k=self._similarity_top_k,
            alpha=self._alpha,
            candidates=self._wanted(),
            others=[partial(_ask_other, other) for other in self._others],
            weights=self._weights,
            fusion=self._fusion,
        )
        return [_to_result(hit, keywords, found) for hit in hits]

    @property
    def dense_results(self) -> Sequence[NodeWithScore] | None:
        """What was found beside the keywords already, None where that is still to be searched."""
        return self._dense

    def dense_retriever(self, wanted: int) -> BaseRetriever:
        """Return the retriever beside the keywords, which is asked for as many nodes if it can."""
        # The framework's own retrievers do not follow their index.
        dense = self._retriever
        if self._index is not None:
            dense = _resolve_retriever(None, self._index)
            if self._filters is not None:
                dense = narrow(dense, self._filters)
        retriever = with_top_k(dense, self._candidates or wanted)
        if self._resolves and retriever.object_map:
            retriever = copy.copy(retriever)
            retriever.object_map = {}
        return retriever

    def with_dense_results(self, dense: Sequence[NodeWithScore], top_k: int) -> BaseRetriever:
        """Return a copy that fuses the keywords with results that are there already."""
        other = copy.copy(cast("HybridRetriever", with_top_k(self, top_k)))
        other._dense = list(dense)
        return other

    def _wanted(self) -> int:
        return self._candidates or max(CANDIDATES, self._similarity_top_k)


def _ask_other(retriever: BaseRetriever, query: str, wanted: int) -> Flow[Sequence[Found]]:
    hits: Sequence[Found] = yield from ask(SearchBy(query, wanted, retriever=retriever))
    return hits


class _Retrieval:
    """One retrieval: answers its searches, and keeps what they found, by id."""

    def __init__(self, retriever: HybridRetriever, bundle: QueryBundle) -> None:
        self._retriever = retriever
        self._bundle = bundle
        self.found: dict[str, NodeWithScore] = {}

    def answer(self, request: Any) -> list[Hit]:
        rows = self._known(request)
        if rows is None:
            rows = self._searched(request).retrieve(copy.copy(self._bundle))
        return _note_hits(rows, self.found)

    async def aanswer(self, request: Any) -> list[Hit]:
        rows = self._known(request)
        if rows is None:
            rows = await self._searched(request).aretrieve(copy.copy(self._bundle))
        return _note_hits(rows, self.found)

    def _known(self, request: Search) -> Sequence[NodeWithScore] | None:
        return None if isinstance(request, SearchBy) else self._retriever.dense_results

    def _searched(self, request: Search) -> BaseRetriever:
        # The framework's retrievers keep the query's vector in a bundle: another's model made it.
        if isinstance(request, SearchBy):
            return with_top_k(request.retriever, request.top_k)
        return self._retriever.dense_retriever(request.top_k)


def _note_hits(rows: Sequence[NodeWithScore], found: dict[str, NodeWithScore]) -> list[Hit]:
    for row in rows:
        found.setdefault(row.node.node_id, row)
    return [
        Hit(row.node.node_id, to_chunk(row.node, row.node.node_id), _replace_nan(row.score))
        for row in rows
    ]


def _to_result(
    hit: HybridHit, keywords: Keywords[NodeWithScore], found: dict[str, NodeWithScore]
) -> NodeWithScore:
    if hit.found is None:
        return keywords.make_result(hit.id, hit.keyword_id, hit.score)
    return NodeWithScore(node=found[hit.id].node, score=hit.score)


def _replace_nan(score: float | None) -> float | None:
    # The framework's cosine of a vector of zeros is no number: no direction is near to any other.
    return 0.0 if score is not None and isnan(score) else score


def _resolve_retriever(
    retriever: BaseRetriever | None, index: BaseIndex[Any] | None
) -> BaseRetriever:
    if (retriever is None) == (index is None):
        raise InvalidParameterError.because("Pass retriever or index, one of the two.")
    if index is None:
        if not isinstance(retriever, BaseRetriever):
            raise InvalidParameterError("retriever", retriever, "a retriever")
        return candidates_of(retriever)
    if not isinstance(index, BaseIndex):
        raise InvalidParameterError("index", index, "an index", "Or give its retriever.")
    return candidates_of(index)


def candidates_of(searched: BaseRetriever | BaseIndex[Any]) -> BaseRetriever:
    """Return a retriever that gives as many results as are wanted, with scores."""
    candidates: Callable[[], BaseRetriever] | None = getattr(searched, "candidates_retriever", None)
    if candidates is not None:
        return candidates()
    return searched.as_retriever() if isinstance(searched, BaseIndex) else searched


def with_top_k(retriever: BaseRetriever, wanted: int) -> BaseRetriever:
    """Return a retriever that returns as many nodes as are wanted, if it can be told."""
    known = getattr(retriever, "similarity_top_k", None)
    if isinstance(retriever, HybridRetriever):
        wanted = min(wanted, retriever.candidates or wanted)
    by_layer = getattr(retriever, "counts_by_layer", False)
    if not isinstance(known, int) or known >= wanted or by_layer:
        return retriever
    other = copy.copy(retriever)
    other.similarity_top_k = wanted  # type: ignore[attr-defined]
    return other
