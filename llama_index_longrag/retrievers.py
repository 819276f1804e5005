"""The retriever that returns exactly k distinct long units, ranked by their best chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.indices.vector_store.retrievers.retriever import VectorIndexRetriever
from llama_index.core.schema import (
    BaseNode,
    IndexNode,
    MetadataMode,
    NodeWithScore,
    QueryBundle,
)
from llama_index.core.settings import Settings
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from llama_index_longrag._bridge import (
    embed,
    fetch_units,
    ranks_exactly,
    to_chunk,
    to_result,
    token_counter,
    unit_key_of,
    units_of_nodes,
)
from longrag.calls import (
    Embed,
    Fetch,
    Flow,
    Method,
    Request,
    Search,
    Steps,
    aperform,
    arun,
    perform,
    run,
)
from longrag.errors import InvalidParameterError
from longrag.retrieval.assembly import check_token_budget, fit_budget
from longrag.retrieval.units import (
    Hit,
    UnitIndex,
    check_k,
    embed_query,
    embed_units,
    retrieve,
    retrieve_from_store,
)
from longrag.types import RetrievedUnit


class MaxPRetriever(BaseRetriever):
    """Retrieve the ``similarity_top_k`` distinct units whose best chunks rank highest.

    Give either ``nodes``, the output of ``LongUnitNodeParser`` or any nodes that name their unit,
    which are embedded into an exact index in memory; or ``index``, a ``VectorStoreIndex`` over any
    vector store, which is asked again without the units already seen until there are enough.

    Returns whole units: ``metadata`` holds ``doc_ids`` (the member documents in order),
    ``best_chunk`` (its text and offsets), ``exact`` (False when the store's ranking may be
    approximate) and ``complete`` (False when the text was cut to the budget, or when only the
    chunks that were found could be put together).

    Args:
        index: an index whose nodes name their unit under ``unit_key``.
        nodes: nodes to embed; chunks that already have an embedding keep it.
        embed_model: embeds queries and, with ``nodes``, chunks; by default the index's model, or
            ``Settings.embed_model``.
        similarity_top_k: number of units to return; all of them when there are fewer.
        token_budget: most tokens to return in all, None for no limit; a unit that does not fit is
            cut down to its best documents.
        unit_key: the metadata key that names a chunk's unit. ``"ref_doc_id"`` makes every source
            document of an existing index a unit.
        filters: metadata filters that chunks must pass.
        tokenizer: counts tokens for the budget; by default LlamaIndex's global tokenizer.

    Raises:
        InvalidParameterError: a setting is out of range, or not exactly one source is given.
        StoreError: a node does not name its unit.
        EmbeddingError: the embedding model returned unusable vectors.

    Source: LongRAG §3.1.
    """

    def __init__(
        self,
        *,
        index: VectorStoreIndex | None = None,
        nodes: Sequence[BaseNode] | None = None,
        embed_model: BaseEmbedding | None = None,
        similarity_top_k: int = 4,
        token_budget: int | None = None,
        unit_key: str = "unit_id",
        filters: MetadataFilters | None = None,
        tokenizer: Callable[[str], Sequence[Any]] | None = None,
        callback_manager: CallbackManager | None = None,
        object_map: dict[str, Any] | None = None,
        objects: list[IndexNode] | None = None,
        verbose: bool = False,
    ) -> None:
        if (index is None) == (nodes is None):
            raise InvalidParameterError(
                "index", index, "given when nodes is not, and the other way round"
            )
        self.similarity_top_k = similarity_top_k
        check_token_budget(token_budget)
        self._token_budget = token_budget
        self._unit_key = unit_key
        self._filters = filters
        self._count_tokens = token_counter(tokenizer)
        self._index = index
        self._exact = index is None or ranks_exactly(index.vector_store)
        self._unit_nodes: dict[str, BaseNode] = {}
        self._embed_model: BaseEmbedding = (
            embed_model or (index._embed_model if index is not None else None)
        ) or Settings.embed_model
        self._units = self._embed(nodes) if nodes is not None else None
        super().__init__(
            callback_manager=callback_manager,
            object_map=object_map,
            objects=objects,
            verbose=verbose,
        )

    @property
    def similarity_top_k(self) -> int:
        """The number of units to return."""
        return self._similarity_top_k

    @similarity_top_k.setter
    def similarity_top_k(self, similarity_top_k: int) -> None:
        check_k(similarity_top_k, "similarity_top_k")
        self._similarity_top_k = similarity_top_k

    def _embed(self, nodes: Sequence[BaseNode]) -> UnitIndex:
        by_id = {node.node_id: node for node in nodes}
        passes = build_metadata_filter_fn(lambda id_: by_id[id_].metadata, self._filters)
        kept = [node for node in nodes if "doc_ids" in node.metadata or passes(node.node_id)]
        units, chunks, leaves = units_of_nodes(kept, self._unit_key, self._count_tokens)
        self._unit_nodes = {unit.id: by_id[unit.id] for unit in units if unit.id in by_id}
        if leaves and all(leaf.embedding is not None for leaf in leaves):
            return UnitIndex(units, chunks, np.asarray([leaf.embedding for leaf in leaves]))
        texts = [leaf.get_content(metadata_mode=MetadataMode.EMBED) for leaf in leaves]
        flow = embed_units(units, chunks, texts=texts)
        return run(flow, lambda request: perform(self._steps(request)))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = run(self._flow(query_bundle), lambda request: perform(self._steps(request)))
        return self._results(found)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = await arun(self._flow(query_bundle), lambda request: aperform(self._steps(request)))
        return self._results(found)

    def _flow(self, bundle: QueryBundle) -> Flow[list[RetrievedUnit]]:
        texts, k = bundle.embedding_strs, self._similarity_top_k
        if self._units is not None:
            found = yield from retrieve(texts, self._units, k=k, vector=bundle.embedding)
        else:
            vector = bundle.embedding
            if vector is None:
                vector = (yield from embed_query(texts)).tolist()
            found = yield from retrieve_from_store(
                Search(bundle.query_str, k, vector), exact=self._exact
            )
        return fit_budget(found, self._token_budget, count_tokens=self._count_tokens)

    def _results(self, found: Sequence[RetrievedUnit]) -> list[NodeWithScore]:
        return [to_result(unit, self._unit_nodes.get(unit.unit.id)) for unit in found]

    def _steps(self, request: Request) -> Steps[Any]:
        match request:
            case Embed():
                return (yield from embed(self._embed_model, request))
            case Search() if (index := self._index) is not None:
                retriever = VectorIndexRetriever(
                    index,
                    similarity_top_k=request.top_k,
                    filters=self._filters_for(request),
                    embed_model=self._embed_model,
                )
                bundle = QueryBundle(request.query, embedding=list(request.vector or ()))
                rows = yield Method(retriever, "retrieve", (bundle,))
                return [self._hit(row) for row in rows]
            case Fetch() if (index := self._index) is not None:
                return (yield from fetch_units(index.docstore, request.unit_ids))
            case _:
                raise NotImplementedError(type(request).__name__)

    def _hit(self, row: NodeWithScore) -> Hit:
        unit_id = unit_key_of(row.node, self._unit_key)
        return Hit(unit_id, to_chunk(row.node, unit_id), row.score)

    def _filters_for(self, request: Search) -> MetadataFilters | None:
        own: list[MetadataFilter | MetadataFilters] = []
        if request.exclude:
            own.append(_unit_filter(self._unit_key, FilterOperator.NIN, list(request.exclude)))
        if request.only is not None:
            own.append(_unit_filter(self._unit_key, FilterOperator.EQ, request.only))
        if not own or self._filters is None:
            return MetadataFilters(filters=own) if own else self._filters
        if self._filters.condition == FilterCondition.AND:
            return MetadataFilters(filters=[*self._filters.filters, *own])
        return MetadataFilters(filters=[self._filters, *own])


def _unit_filter(key: str, operator: FilterOperator, value: str | list[str]) -> MetadataFilter:
    return MetadataFilter(key=key, operator=operator, value=value)
