"""The retriever that puts evidence together for one question, for corpora with or without links."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_longrag.bridge.answering import model_answerer
from llama_index_longrag.bridge.filters import to_filter
from llama_index_longrag.bridge.nodes import to_result
from llama_index_longrag.retrieval.maxp import UnitsIndex
from longrag.calls import Flow
from longrag.ingestion.relations import LinkSource
from longrag.integration.answering import Answerer
from longrag.retrieval.assembly import check_token_budget
from longrag.retrieval.corpus_evidence import LINK_SOURCES, evidence_of
from longrag.retrieval.filters import both
from longrag.retrieval.units import check_k
from longrag.types import RetrievedUnit


class EvidenceRetriever(BaseRetriever):
    """Retrieve what a question needs within a token budget: its best passages and where they lead.

    From the best passages it follows links and shared rare terms to others, and returns as many as
    fit, best first. No model is asked but the embedder, for the question. Meant for questions whose
    evidence is spread over several documents, and for corpora without hyperlinks; see
    ``EvidenceIndex`` for the formula and ``docs/concepts/no-links.md`` for what it finds.

    Each node is a passage with its title; its metadata is that of ``MaxPRetriever``.

    Args:
        index: the documents and vectors, whose later changes the retriever follows.
        similarity_top_k: most passages to return; None for as many as the budget holds.
        token_budget: most tokens to return in all; None for no limit.
        link_sources: find links between documents beside the index's own.
        filters: metadata filters that documents must pass. Others are neither searched nor
            followed, and scores are those of an index of the documents that pass.
        settings: the keyword arguments of ``EvidenceIndex``, such as ``hits``.

    Raises:
        InvalidParameterError: a setting is out of range.
        TypeError: a setting is unknown.
    """

    def __init__(
        self,
        *,
        index: UnitsIndex,
        similarity_top_k: int | None = None,
        token_budget: int | None = 2200,
        link_sources: Sequence[LinkSource] = LINK_SOURCES,
        filters: MetadataFilters | None = None,
        callback_manager: CallbackManager | None = None,
        object_map: dict[str, Any] | None = None,
        objects: list[IndexNode] | None = None,
        verbose: bool = False,
        **settings: Any,
    ) -> None:
        check_token_budget(token_budget)
        self._index = index
        self.similarity_top_k = similarity_top_k
        self._token_budget = token_budget
        self._wanted = to_filter(filters)
        settings.setdefault("count_tokens", index.corpus.builder.count_tokens)
        self._evidence = evidence_of(index.corpus, link_sources, settings)
        super().__init__(
            callback_manager=callback_manager or index.callback_manager,
            object_map=object_map,
            objects=objects,
            verbose=verbose,
        )

    def with_filters(self, filters: MetadataFilters | None) -> EvidenceRetriever:
        """Return a copy that keeps to these filters beside its own; make one for each request."""
        other = copy.copy(self)
        other._wanted = both(self._wanted, to_filter(filters))
        return other

    @property
    def similarity_top_k(self) -> int | None:
        """The most passages to return."""
        return self._similarity_top_k

    @similarity_top_k.setter
    def similarity_top_k(self, similarity_top_k: int | None) -> None:
        if similarity_top_k is not None:
            check_k(similarity_top_k, "similarity_top_k")
        self._similarity_top_k = similarity_top_k

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        flow = self._flow(query_bundle)
        return self._results(self._answerer().run(flow))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        flow = self._flow(query_bundle)
        return self._results(await self._answerer().arun(flow))

    def _flow(self, bundle: QueryBundle) -> Flow[list[RetrievedUnit]]:
        return self._evidence.retrieve(
            bundle.embedding_strs,
            token_budget=self._token_budget,
            k=self._similarity_top_k,
            vector=bundle.embedding,
            view=self._index.corpus.view(self._wanted),
        )

    def _answerer(self) -> Answerer:
        return model_answerer(embed_model=self._index.embed_model)

    def _results(self, found: Sequence[RetrievedUnit]) -> list[NodeWithScore]:
        return [to_result(unit, self._index.source_nodes(unit.unit.doc_ids)) for unit in found]
