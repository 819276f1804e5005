"""Keywords beside any retriever or vector store: both rankings as one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams, RetrieverLike
from langchain_core.runnables import RunnableConfig
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field, PrivateAttr, SkipValidation

from langchain_longrag.bridge.answering import call_config, note_models, retriever_config
from langchain_longrag.bridge.documents import to_chunk, with_score
from langchain_longrag.bridge.settings import CheckedModel, check_callable, check_sequence
from langchain_longrag.retrieval.base_retrievers import Rows, WrappedRetriever
from langchain_longrag.retrieval.keyword_sources import find_keyword_source
from longrag.calls import Flow, Search, arun, ask, run
from longrag.errors import InvalidParameterError
from longrag.indexing.keywords import WordTokenizer
from longrag.indices.keyword_sources import CurrentKeywords, Keywords
from longrag.recipes.runs import SearchBy
from longrag.retrieval.filters import DocumentFilter, MetadataFilter, both
from longrag.retrieval.fusion import FusionMethod, check_weights, keyword_weight
from longrag.retrieval.hybrid import Found, HybridHit, hybrid
from longrag.retrieval.lru_cache import LruCache
from longrag.retrieval.units import Hit, check_k

_CANDIDATES = 100
_KEPT_FILTERS = 8


class HybridRetriever(CheckedModel, BaseRetriever):
    """Retrieve by ``alpha * keywords + dense``: BM25 beside any retriever, over the same documents.

    Returns the ``k`` best of what either ranking found: exactly min(k, documents) where the
    retriever ranks all documents that it is asked for. Each has its ``score``, at most
    ``alpha + 1``: both rankings are scaled to 0 to 1. Long units count by their
    best chunk on both sides, and of a tree its leaves and summaries count alike.

    A retriever that gives no scores, as most of LangChain's, counts by its ranks; so does one whose
    scores are in no order. Scores that rise from result to result are taken for distances.
    Give a store as ``vectorstore`` or by its plain ``as_retriever()``: its scores count.

    Example:
        ```python
        retriever = HybridRetriever(vectorstore=store, k=2, alpha=0.3)
        found = retriever.invoke("church clock")
        assert found[0].id == "church.md"
        assert found[0].metadata["score"] <= 1.3
        ```

    Args:
        retriever: any retriever. It is asked for ``candidates`` results where it takes ``k``; one
            with a token budget ranks those that fit.
        vectorstore: a vector store, in place of a retriever.
        documents: all that the wrapped retriever searches, and nothing else: where your filter
            leaves documents out, leave them out here. Not needed for the indexes and retrievers of
            this package and for an ``InMemoryVectorStore``, whose later changes are followed. For a
            ``MaxPRetriever`` over a store they are its chunks.
        k: number of documents to return, all of them when there are fewer; also per call, as
            ``invoke(query, k=2)``. So is a ``filter`` where the wrapped retriever has one, which
            ``invoke(query, filter={"tenant": "a"})`` narrows for both rankings.
        alpha: the weight of the keywords, at least 0; by default 0.3, or 1 with "reciprocal_rank".
        candidates: how many of each ranking are added up; by default 100, or ``k`` where that is
            more.
        search_kwargs: passed to every search of ``vectorstore``, for instance a ``filter``.
        keyword_tokenizer: gives the words of a text; see ``KeywordIndex``.
        other_retrievers: any number of retrievers whose lists are fused as well, over the same
            documents. Each is asked as ``retriever`` is; async, all at the same time.
        weights: the weights of ``retriever`` and each of ``other_retrievers``; 1 by default.
        fusion: "weighted" adds up the scaled scores of the lists, "reciprocal_rank" their ranks
            (RRF), for scores that cannot be compared.
        keywords: what was read of the documents, for instance another retriever's ``keywords``.

    Raises:
        InvalidParameterError: a setting is not allowed, not exactly one source is given, or the
            documents that are searched are not known.
        InvalidDocumentError: two of ``documents`` have one id.
        MissingExtraError: the extra ``bm25`` is not installed.

    Source: Best Practices §3.4, equation 1.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    retriever: SkipValidation[RetrieverLike | None] = None
    vectorstore: SkipValidation[VectorStore | None] = None
    documents: Sequence[Document] | None = Field(default=None, repr=False)
    k: SkipValidation[int] = 4
    alpha: SkipValidation[float | None] = None
    candidates: SkipValidation[int | None] = None
    search_kwargs: dict[str, Any] = Field(default_factory=dict)
    keyword_tokenizer: SkipValidation[WordTokenizer | None] = None
    other_retrievers: SkipValidation[Sequence[RetrieverLike]] = ()
    weights: SkipValidation[Sequence[float] | None] = None
    fusion: SkipValidation[FusionMethod] = "weighted"
    # A field, so that a runnable with other settings need not read the documents again.
    keywords: SkipValidation[tuple[object, Keywords[Document]] | None] = Field(
        default=None, repr=False
    )
    _wrapped: WrappedRetriever = PrivateAttr()
    _others: list[WrappedRetriever] = PrivateAttr()
    _narrowed: LruCache[DocumentFilter, HybridRetriever] = PrivateAttr()
    _current: CurrentKeywords[Document] = PrivateAttr()

    def _prepare(self) -> None:
        keyword_weight(self.alpha, self.fusion)
        check_callable("keyword_tokenizer", self.keyword_tokenizer)
        check_sequence("other_retrievers", self.other_retrievers)
        check_sequence("keywords", self.keywords or ())
        self._others = [WrappedRetriever(other) for other in self.other_retrievers]
        check_weights(self.weights, 1 + len(self._others))
        self._narrowed = LruCache(_KEPT_FILTERS)
        self.count_candidates(self.k)
        self._wrapped = WrappedRetriever(self.retriever, self.vectorstore, self.search_kwargs)
        searched = self._wrapped
        source = find_keyword_source(
            searched.retriever, searched.store, searched.search_kwargs, self.documents
        )
        self._current = CurrentKeywords(source, self.keyword_tokenizer, self.keywords)
        self.read_keywords()

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: MetadataFilter | None = None,
    ) -> list[Document]:
        if filter is not None:
            narrowed = self.narrow(filter)
            return narrowed._get_relevant_documents(query, run_manager=run_manager, k=k)
        call = _Retrieval(self._wrapped, call_config(retriever_config(run_manager)))
        return run(self._flow(query, self.k if k is None else k, call), call.answer)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: MetadataFilter | None = None,
    ) -> list[Document]:
        if filter is not None:
            narrowed = await asyncio.to_thread(self.narrow, filter)
            return await narrowed._aget_relevant_documents(query, run_manager=run_manager, k=k)
        call = _Retrieval(self._wrapped, call_config(retriever_config(run_manager)))
        flow = self._flow(query, self.k if k is None else k, call)
        return await arun(flow, call.aanswer, max_in_flight=1 + len(self._others))

    def narrow(self, filter: MetadataFilter | DocumentFilter) -> HybridRetriever:
        """Return this retriever over what passes a filter as well; the last few are kept.

        Raises:
            InvalidParameterError: the documents were given, or the retriever has no filter.
        """
        wanted = DocumentFilter.of(filter)
        searched = self._wrapped.retriever
        takes_one = "filter" in getattr(type(searched), "model_fields", {})
        # The keywords of documents that were given cannot be narrowed with the retriever.
        if wanted is None or not takes_one or self.documents is not None:
            raise InvalidParameterError.because(
                "A filter goes with a retriever that takes one and has its documents: omit it, or"
                " give a store its own kind in search_kwargs."
            )
        return self._narrowed.get(wanted, lambda: self._make_narrow(wanted))

    def _make_narrow(self, wanted: DocumentFilter) -> HybridRetriever:
        searched: Any = self._wrapped.retriever
        whole = both(DocumentFilter.of(searched.filter), wanted)
        settings = {name: getattr(self, name) for name in type(self).model_fields}
        own = {"retriever": searched.model_copy(update={"filter": whole}), "keywords": None}
        narrowed = type(self)(**{**settings, **own})
        narrowed._others = [other.narrow(wanted) for other in self._others]
        return narrowed

    def _flow(self, query: str, k: int, call: _Retrieval) -> Flow[list[Document]]:
        wanted = self.count_candidates(k)
        keywords = call.keywords = self.read_keywords()
        hits = yield from hybrid(
            query,
            keywords=keywords.index,
            top_k=k,
            alpha=self.alpha,
            candidates=wanted,
            others=[partial(_ask_other, other) for other in self._others],
            weights=self.weights,
            fusion=self.fusion,
        )
        return [_to_document(hit, keywords, call.found) for hit in hits]

    def count_candidates(self, k: int) -> int:
        """Return how many results each ranking gives for ``k`` of both."""
        check_k(k)
        if self.candidates is None:
            return max(_CANDIDATES, k)
        check_k(self.candidates, "candidates")
        if self.candidates < k:
            raise InvalidParameterError("candidates", self.candidates, f"at least k={k}")
        return self.candidates

    def read_keywords(self) -> Keywords[Document]:
        """Return the keyword index of what is searched, as it is now."""
        keywords = self._current.read()
        self.keywords = self._current.known
        return keywords

    def __getstate__(self) -> dict[Any, Any]:
        """Leave out what is read of the documents again when it is needed."""
        state = super().__getstate__()
        return {**state, "__dict__": {**state["__dict__"], "keywords": None}}

    @property
    def wrapped(self) -> WrappedRetriever:
        """What is searched beside the keywords."""
        return self._wrapped

    @property
    def others(self) -> Sequence[WrappedRetriever]:
        """The other retrievers whose lists are fused."""
        return self._others

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        params = super()._get_ls_params(**kwargs)
        wrapped = self._wrapped
        return note_models(params, store=wrapped.store, embedding=wrapped.embedding)


def _ask_other(retriever: WrappedRetriever, query: str, wanted: int) -> Flow[Sequence[Found]]:
    hits: Sequence[Found] = yield from ask(SearchBy(query, wanted, retriever=retriever))
    return hits


@dataclass
class _Retrieval:
    """One retrieval: answers its searches, and keeps what they found, by id."""

    wrapped: WrappedRetriever
    config: RunnableConfig
    keywords: Keywords[Document] | None = None
    found: dict[str, Document] = field(default_factory=dict)

    def answer(self, request: Any) -> list[Hit]:
        wrapped = self._searched(request)
        return self._to_hits(wrapped, wrapped.search(request, self.config))

    async def aanswer(self, request: Any) -> list[Hit]:
        wrapped = self._searched(request)
        return self._to_hits(wrapped, await wrapped.asearch(request, self.config))

    def _searched(self, request: Search) -> WrappedRetriever:
        other = request.retriever if isinstance(request, SearchBy) else self.wrapped
        return cast("WrappedRetriever", other)

    def _to_hits(self, wrapped: WrappedRetriever, rows: Rows) -> list[Hit]:
        keywords = cast("Keywords[Document]", self.keywords)
        hits = []
        for (document, _), score in zip(rows, wrapped.to_similarities(rows), strict=True):
            id_ = find_result_id(keywords, document)
            self.found.setdefault(id_, document)
            hits.append(Hit(id_, replace(to_chunk(document, id_), id=id_), score))
        return hits


def find_result_id(keywords: Keywords[Document], document: Document) -> str:
    """Return the id under which a keyword index knows what a retriever returned."""
    return str(document.id) if keywords.id_of is None else keywords.id_of(document)


def _to_document(
    hit: HybridHit, keywords: Keywords[Document], found: dict[str, Document]
) -> Document:
    if hit.found is None:
        return keywords.make_result(hit.id, hit.keyword_id, hit.score)
    return with_score(found[hit.id], hit.score)
