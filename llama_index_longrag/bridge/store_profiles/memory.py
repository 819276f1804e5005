"""Stores in this process whose rows are at hand: LlamaIndex's own, and those of FAISS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.schema import BaseNode, NodeWithScore
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQueryMode,
)
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from llama_index_longrag.bridge.store_profiles.base import (
    NodeQuery,
    StoreProfile,
    exclude_values,
    filter_by_documents,
    include_values,
    method,
)
from longrag.integration.answering import Calls, MethodCall
from longrag.integration.faiss_indexes import exhaustive_index, is_flat
from longrag.integration.store_profiles import Rows


class SimpleProfile(StoreProfile):
    """``SimpleVectorStore``: filters are comparisons in Python, and the metadata are a dict."""

    def __init__(self) -> None:
        super().__init__(excludes=True, tuning=("mmr_threshold",))

    def is_exact(self, query: NodeQuery) -> bool:
        """Whether the store ranks every row that passes by its vector."""
        own = type(query.store).query is SimpleVectorStore.query
        return own and query.settings.mode == VectorStoreQueryMode.DEFAULT

    def list_chunks(self, query: NodeQuery, values: Sequence[Any]) -> Calls[Sequence[BaseNode]]:
        """Return all nodes whose unit is named by one of the values."""
        ids = self._list_passing(query, include_values(query.unit_key, values))
        if query.store.stores_text:  # a subclass that also holds the nodes
            return filter_by_documents(query, (yield method(query.store, "get_nodes", (ids,))))
        kwargs = {"raise_error": False}
        nodes: list[BaseNode] = yield MethodCall(query.index.docstore, "get_nodes", (ids,), kwargs)
        if len(nodes) < len(ids):
            raise NotImplementedError  # the docstore does not hold the store's nodes
        return filter_by_documents(query, nodes)

    def has_other(self, query: NodeQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a node that passes and whose unit is named by none of the values."""
        return bool(self._list_passing(query, exclude_values(query.unit_key, values)))
        yield

    def gives_vectors(self, store: BasePydanticVectorStore) -> bool:
        """Whether the vectors of nodes can be read back: they are at hand."""
        return isinstance(store, SimpleVectorStore)

    def read_vectors(
        self, store: BasePydanticVectorStore, node_ids: Sequence[str]
    ) -> dict[str, Sequence[float] | None]:
        """Return the vectors of the nodes that are there, by their ids."""
        known = store.data.embedding_dict if isinstance(store, SimpleVectorStore) else {}
        return {id_: known[id_] for id_ in node_ids if id_ in known}

    def _list_passing(self, query: NodeQuery, added: MetadataFilters) -> list[str]:
        own = self.own_filters(query)
        store = query.store
        if not isinstance(store, SimpleVectorStore) or query.settings.doc_ids is not None:
            raise NotImplementedError
        metadata = dict(store.data.metadata_dict)
        if len(metadata) < len(store.data.embedding_dict):
            raise NotImplementedError  # it was saved without them
        # Each on its own, since the framework's function knows no filters within others.
        tests = [
            build_metadata_filter_fn(metadata.__getitem__, filters)
            for filters in (own, added)
            if filters is not None and filters.filters
        ]
        try:
            return [node_id for node_id in metadata if all(test(node_id) for test in tests)]
        except ValueError as error:
            raise NotImplementedError from error


class FaissProfile(StoreProfile):
    """FAISS: no filters; a flat index is exhaustive, and a graph or an inverted file can be.

    A search of depth 1 compares the query with every vector that the index keeps.
    """

    def is_exact(self, query: NodeQuery) -> bool:
        """Whether the store ranks every row by its vector."""
        return is_flat(query.store.client)

    def search(self, query: NodeQuery) -> Calls[Rows[NodeWithScore]]:
        """Rank rows as deep as the query asks."""
        if query.exclude:
            raise NotImplementedError
        index = query.store.client
        store: Any = query.store
        flat = self.is_exact(query)
        if query.depth:
            if query.depth > 1 or flat or type(store).query.__module__.count("faiss") == 0:
                raise NotImplementedError
            store = store.model_copy()
            store._faiss_index = exhaustive_index(index)
        rows = yield from self._rank(query, store)
        exact = flat or query.depth > 0
        return Rows(rows, exact, len(rows) >= index.ntotal or (exact and len(rows) < query.top_k))
