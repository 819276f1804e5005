"""How LlamaIndex's vector stores are asked, as long as nothing more is known of one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.indices.vector_store.retrievers.retriever import VectorIndexRetriever
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQueryMode,
)

from longrag.integration.answering import Calls, MethodCall
from longrag.integration.store_profiles import Rows, by_type

WITHOUT_VECTOR = (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.TEXT_SEARCH)
"""The modes in which a store is searched by words alone."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """A user's own search arguments, those of LlamaIndex's ``VectorIndexRetriever``."""

    filters: MetadataFilters | None = None
    mode: VectorStoreQueryMode = VectorStoreQueryMode.DEFAULT
    alpha: float | None = None
    doc_ids: Sequence[str] | None = None
    node_ids: Sequence[str] | None = None
    sparse_top_k: int | None = None
    hybrid_top_k: int | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """What the profiles are asked; ``exclude`` are the names of units as the store holds them."""

    index: VectorStoreIndex
    embed_model: BaseEmbedding
    unit_key: str
    settings: SearchSettings
    text: str = ""
    vector: Sequence[float] | None = None
    top_k: int = 1
    exclude: tuple[Any, ...] = ()
    depth: int = 0

    @property
    def store(self) -> BasePydanticVectorStore:
        """The store that is asked."""
        return self.index.vector_store


class ChunkRetriever(VectorIndexRetriever):
    """The rows of a vector store as it ranks them.

    Repeated rows must be counted to know when a store has no more, so none is dropped here, and
    the index nodes among them are chunks like any other. A store without a truly async search
    is searched in a thread, so that it does not block the event loop.
    """

    def __init__(self, query: NodeQuery, store: BasePydanticVectorStore) -> None:
        own = query.settings
        super().__init__(
            query.index,
            similarity_top_k=query.top_k,
            vector_store_query_mode=own.mode,
            filters=own.filters,
            alpha=own.alpha,
            node_ids=list(own.node_ids) if own.node_ids is not None else None,
            doc_ids=list(own.doc_ids) if own.doc_ids is not None else None,
            sparse_top_k=own.sparse_top_k,
            hybrid_top_k=own.hybrid_top_k,
            embed_model=query.embed_model,
            vector_store_kwargs=dict(own.kwargs),
        )
        self._vector_store = store

    def _handle_recursive_retrieval(
        self, query_bundle: QueryBundle, nodes: list[NodeWithScore]
    ) -> list[NodeWithScore]:
        return nodes

    async def _ahandle_recursive_retrieval(
        self, query_bundle: QueryBundle, nodes: list[NodeWithScore]
    ) -> list[NodeWithScore]:
        return nodes

    async def _aget_nodes_with_embeddings(
        self, query_bundle_with_embeddings: QueryBundle
    ) -> list[NodeWithScore]:
        if type(self._vector_store).aquery is BasePydanticVectorStore.aquery:
            return await asyncio.to_thread(
                self._get_nodes_with_embeddings, query_bundle_with_embeddings
            )
        return await super()._aget_nodes_with_embeddings(query_bundle_with_embeddings)


class StoreProfile:
    """How one class of vector stores is asked, and what may be believed of its answers.

    Register your own for a store that has none: ``register_store_profile(MyStore,
    StoreProfile(excludes=True, lists=True, exhaustive=True))``, as far as this is true of it.

    Args:
        excludes: its metadata filters have ``NIN``, apply before it ranks, and take every value as
            a parameter, never as a part of a query's text.
        lists: its ``get_nodes`` gives all nodes that pass a filter with ``IN``, which takes values
            in the same way.
        exhaustive: its search compares the query with every row that passes.
        tuning: names in ``vector_store_kwargs`` that change how a search is done, and never which
            rows pass.
    """

    def __init__(
        self,
        *,
        excludes: bool = False,
        lists: bool = False,
        exhaustive: bool = False,
        tuning: Sequence[str] = (),
    ) -> None:
        self._excludes = excludes
        self._lists = lists
        self._exhaustive = exhaustive
        self._tuning = frozenset(tuning)

    def is_exact(self, query: NodeQuery) -> bool:
        """Whether the store ranks every row that passes by its vector."""
        return self._exhaustive and query.settings.mode == VectorStoreQueryMode.DEFAULT

    def search(self, query: NodeQuery) -> Calls[Rows[NodeWithScore]]:
        """Rank rows, without those of units to exclude, as deep as the query asks."""
        if query.depth or (query.exclude and not self._excludes):
            raise NotImplementedError
        exact = self.is_exact(query)
        try:
            rows = yield from self._rank(exclude_units(query), query.store)
        except ValueError as error:
            if query.exclude:  # what the frameworks' stores raise for a filter they do not have
                raise NotImplementedError from error
            raise
        return Rows(rows, exact, exact and len(rows) < query.top_k)

    def list_chunks(self, query: NodeQuery, values: Sequence[Any]) -> Calls[Sequence[BaseNode]]:
        """Return all nodes whose unit is named by one of the values."""
        if not self._lists:
            raise NotImplementedError
        filters = combine_filters(self.own_filters(query), include_values(query.unit_key, values))
        nodes = yield method(query.store, "get_nodes", (None,), {"filters": filters})
        return filter_by_documents(query, nodes)

    def lists_all(self, query: NodeQuery) -> bool:
        """Whether a listing is known to hold all nodes of the units."""
        return True

    def has_other(self, query: NodeQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a node that passes and whose unit is named by none of the values."""
        raise NotImplementedError
        yield  # a generator, as every answer is

    def delete_nodes(self, store: BasePydanticVectorStore, node_ids: Sequence[str]) -> None:
        """Take nodes out of a store by their ids."""
        store.delete_nodes(list(node_ids))

    def is_made(self, store: BasePydanticVectorStore) -> bool:
        """Whether the store can be asked: some make their table with the first row."""
        return True

    def gives_vectors(self, store: BasePydanticVectorStore) -> bool:
        """Whether the vectors of nodes can be read back, as far as its class tells."""
        return type(store).get_nodes is not BasePydanticVectorStore.get_nodes

    def read_vectors(
        self, store: BasePydanticVectorStore, node_ids: Sequence[str]
    ) -> dict[str, Sequence[float] | None]:
        """Return the vectors of the nodes that are there, by their ids; None for one without."""
        nodes = store.get_nodes(node_ids=list(node_ids))
        return {node.node_id: node.embedding for node in nodes}

    def hides(self, settings: SearchSettings) -> bool:
        """Whether there may be nodes that the user's search arguments leave out."""
        return bool(
            settings.filters is not None
            or settings.doc_ids
            or settings.node_ids
            or settings.kwargs.keys() - self._tuning
        )

    def own_filters(self, query: NodeQuery) -> MetadataFilters | None:
        """Return the user's filters, if they are all that decides which nodes pass.

        Raises:
            NotImplementedError: ``vector_store_kwargs`` may hold another filter.
        """
        if query.settings.kwargs.keys() - self._tuning or query.settings.node_ids is not None:
            raise NotImplementedError
        return query.settings.filters

    def _rank(
        self, query: NodeQuery, store: BasePydanticVectorStore
    ) -> Calls[Sequence[NodeWithScore]]:
        bundle = QueryBundle(
            query.text, embedding=None if query.vector is None else list(query.vector)
        )
        rows: Sequence[NodeWithScore] = yield MethodCall(
            ChunkRetriever(query, store), "retrieve", (bundle,)
        )
        return rows


def exclude_units(query: NodeQuery) -> NodeQuery:
    """Let the query's metadata filters exclude what it excludes."""
    if not query.exclude:
        return query
    filters = combine_filters(query.settings.filters, exclude_values(query.unit_key, query.exclude))
    return replace(query, settings=replace(query.settings, filters=filters))


def exclude_values(key: str, values: Sequence[Any]) -> MetadataFilters:
    """Return filters that nodes of units with these names do not pass.

    Raises:
        NotImplementedError: a name is of a type that stores do not compare.
    """
    return _filter_by_type(key, FilterOperator.NIN, values, FilterCondition.AND)


def include_values(key: str, values: Sequence[Any]) -> MetadataFilters:
    """Return filters that only nodes of units with these names pass.

    Raises:
        NotImplementedError: a name is of a type that stores do not compare.
    """
    return _filter_by_type(key, FilterOperator.IN, values, FilterCondition.OR)


def _filter_by_type(
    key: str, operator: FilterOperator, values: Sequence[Any], condition: FilterCondition
) -> MetadataFilters:
    return MetadataFilters(
        filters=[
            MetadataFilter(key=key, operator=operator, value=group) for group in by_type(values)
        ],
        condition=condition,
    )


def combine_filters(own: MetadataFilters | None, added: MetadataFilters) -> MetadataFilters:
    """Return filters that pass what both pass."""
    if own is None:
        return added
    parts = [one.filters if _is_conjunction(one) else [one] for one in (own, added)]
    return MetadataFilters(filters=[*parts[0], *parts[1]])


def _is_conjunction(filters: MetadataFilters) -> bool:
    single = len(filters.filters) == 1 and filters.condition == FilterCondition.OR
    return single or filters.condition == FilterCondition.AND


def filter_by_documents(query: NodeQuery, nodes: Sequence[BaseNode]) -> Sequence[BaseNode]:
    """Keep nodes of the documents that the user keeps to."""
    doc_ids = query.settings.doc_ids
    if doc_ids is None:
        return nodes
    return [node for node in nodes if node.ref_doc_id in doc_ids]


def method(
    target: object, name: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
) -> MethodCall:
    """Call a store's method; one whose async form only calls it is called in a thread instead."""
    inherited = getattr(BasePydanticVectorStore, f"a{name}", None)
    if inherited is not None and getattr(type(target), f"a{name}", None) is inherited:
        target = _Threaded(name, getattr(target, name))
    return MethodCall(target, name, args, kwargs or {})


class _Threaded:
    """An object with one method and no async form of it."""

    def __init__(self, name: str, call: Any) -> None:
        setattr(self, name, call)
