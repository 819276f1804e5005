"""Document databases whose filters are objects: Chroma, Qdrant and DuckDB."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from llama_index.core.schema import BaseNode, NodeWithScore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQueryMode,
)

from llama_index_longrag.bridge.store_profiles.base import (
    NodeQuery,
    StoreProfile,
    combine_filters,
    exclude_units,
    exclude_values,
    filter_by_documents,
    include_values,
)
from longrag.integration.answering import Calls, MethodCall
from longrag.integration.store_profiles import Rows, check_plain_key

# As many rows as a store is asked for where a smaller search has not found enough units.
_DEEP: Final = 10_000

# As many points as one page of a listing has.
_PAGE: Final = 1_000


class ChromaProfile(StoreProfile):
    """Chroma: filters are dicts whose values are parameters; the ranking is a graph's.

    A search of depth 1 ranks up to 10,000 rows.
    """

    def __init__(self) -> None:
        super().__init__(excludes=True, lists=True)

    def search(self, query: NodeQuery) -> Calls[Rows[NodeWithScore]]:
        """Rank rows, without those of units to exclude, as deep as the query asks."""
        if query.depth > 1:
            raise NotImplementedError
        if query.depth:
            query = replace(query, top_k=max(query.top_k, _DEEP))
        return Rows((yield from self._rank(exclude_units(query), query.store)))

    def has_other(self, query: NodeQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a node that passes and whose unit is named by none of the values."""
        from llama_index.vector_stores.chroma.base import _to_chroma_filter

        filters = combine_filters(self.own_filters(query), exclude_values(query.unit_key, values))
        where = _to_chroma_filter(filters) if filters.filters else None
        kwargs: dict[str, Any] = {"where": where, "limit": 1, "include": []}
        found = yield MethodCall(query.store.client, "get", (), kwargs)
        return bool(found["ids"])

    def read_vectors(
        self, store: BasePydanticVectorStore, node_ids: Sequence[str]
    ) -> dict[str, Sequence[float] | None]:
        """Return the vectors of the nodes that are there, which its class leaves out."""
        found = store.client.get(ids=list(node_ids), include=["embeddings"])
        return dict(zip(found["ids"], found["embeddings"], strict=True))


class QdrantProfile(StoreProfile):
    """Qdrant: filters are objects; a local client ranks exhaustively, a server when it is told to.

    A search of depth 1 tells it to.
    """

    def __init__(self) -> None:
        super().__init__(excludes=True, tuning=("search_params", "shard_identifier"))

    def search(self, query: NodeQuery) -> Calls[Rows[NodeWithScore]]:
        """Rank rows, without those of units to exclude, as deep as the query asks."""
        local = _is_local(query.store)
        if query.depth > (0 if local else 1):
            raise NotImplementedError
        if query.depth:
            params = _with_exact_search(query.settings.kwargs.get("search_params"))
            kwargs = {**query.settings.kwargs, "search_params": params}
            query = replace(query, settings=replace(query.settings, kwargs=kwargs))
        exact = self._ranks_exactly(query, local)
        rows = yield from self._rank(exclude_units(query), query.store)
        return Rows(rows, exact, exact and len(rows) < query.top_k)

    def list_chunks(self, query: NodeQuery, values: Sequence[Any]) -> Calls[Sequence[BaseNode]]:
        """Return all nodes whose unit is named by one of the values."""
        points = yield MethodCall(
            _Points(query, self.own_filters(query), values, inside=True), "all"
        )
        store: Any = query.store
        return filter_by_documents(query, store.parse_to_query_result(points).nodes)

    def has_other(self, query: NodeQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a node that passes and whose unit is named by none of the values."""
        if query.settings.doc_ids is not None:
            raise NotImplementedError
        points = _Points(query, self.own_filters(query), values, inside=False)
        return bool((yield MethodCall(points, "first")))

    def is_made(self, store: BasePydanticVectorStore) -> bool:
        """Whether there is a collection, which is made with the first point."""
        own: Any = store
        return bool(own._collection_initialized or own._collection_exists(own.collection_name))

    def _ranks_exactly(self, query: NodeQuery, local: bool) -> bool:
        params = query.settings.kwargs.get("search_params")
        exact = params.get("exact") if isinstance(params, dict) else getattr(params, "exact", None)
        return query.settings.mode == VectorStoreQueryMode.DEFAULT and (local or exact is True)


def _is_local(store: Any) -> bool:
    return type(getattr(store.client, "_client", None)).__name__ == "QdrantLocal"


def _with_exact_search(params: Any) -> dict[str, Any]:
    if params is not None and not isinstance(params, dict):
        params = params.model_dump(exclude_unset=True)
    return {**(params or {}), "exact": True}


class _Points:
    """Points of the store's collection, without a ranking."""

    def __init__(
        self, query: NodeQuery, own: MetadataFilters | None, values: Sequence[Any], *, inside: bool
    ) -> None:
        added = (include_values if inside else exclude_values)(query.unit_key, values)
        filters = combine_filters(own, added)
        store: Any = query.store
        self._store = store
        self._scroll_settings: dict[str, Any] = {
            "collection_name": store.collection_name,
            "scroll_filter": store._build_subfilter(filters) if filters.filters else None,
            "with_vectors": False,
        }
        shard = query.settings.kwargs.get("shard_identifier")
        if shard is not None:
            self._scroll_settings["shard_key_selector"] = store._generate_shard_key_selector(shard)

    def first(self) -> Sequence[Any]:
        """Return one of them, if there is one."""
        points, _ = self._store._client.scroll(**self._scroll_settings, limit=1)
        return list(points)

    def all(self) -> Sequence[Any]:
        """Return all of them."""
        points, offset = [], None
        while True:
            page, offset = self._store._client.scroll(
                **self._scroll_settings, limit=_PAGE, offset=offset
            )
            points += page
            if offset is None:
                return points

    async def afirst(self) -> Sequence[Any]:
        """Return one of them, if there is one."""
        if self._store._aclient is None:
            return await asyncio.to_thread(self.first)
        points, _ = await self._store._aclient.scroll(**self._scroll_settings, limit=1)
        return list(points)

    async def aall(self) -> Sequence[Any]:
        """Return all of them."""
        if self._store._aclient is None:
            return await asyncio.to_thread(self.all)
        points, offset = [], None
        while True:
            page, offset = await self._store._aclient.scroll(
                **self._scroll_settings, limit=_PAGE, offset=offset
            )
            points += page
            if offset is None:
                return points


class DuckDBProfile(StoreProfile):
    """DuckDB: its class makes filters of constants, and compares with every row that passes.

    The metadata key is part of a path there, so that only identifiers are used.
    """

    def __init__(self) -> None:
        super().__init__(excludes=True, lists=True, exhaustive=True)

    def search(self, query: NodeQuery) -> Calls[Rows[NodeWithScore]]:
        """Rank rows, without those of units to exclude."""
        if query.exclude:
            check_plain_key(query.unit_key)
        return (yield from super().search(query))

    def list_chunks(self, query: NodeQuery, values: Sequence[Any]) -> Calls[Sequence[BaseNode]]:
        """Return all nodes whose unit is named by one of the values."""
        check_plain_key(query.unit_key)
        return (yield from super().list_chunks(query, values))
