"""Databases that run as servers: Elasticsearch, OpenSearch, Weaviate, Pinecone, Redis, MongoDB.

These profiles rest on the documentation of the databases and on the code of LlamaIndex's classes:
no server was at hand. So no ranking is taken to be exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.schema import BaseNode, NodeWithScore
from llama_index.core.vector_stores.types import (
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQueryMode,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node

from llama_index_longrag.bridge.store_profiles.base import (
    NodeQuery,
    StoreProfile,
    combine_filters,
    exclude_units,
    filter_by_documents,
    include_values,
)
from longrag.integration.answering import Calls, MethodCall
from longrag.integration.remote_stores import (
    MOST_CANDIDATES,
    MOST_ROWS,
    ExactSearches,
    check_tags,
    compare_field,
    exclude_terms,
    match_terms,
    read_hits,
    set_candidates,
)
from longrag.integration.store_profiles import Rows, by_type

# Elasticsearch's class maps these itself, and not as a text.
_KEYWORDS = ("document_id", "doc_id", "ref_doc_id")

# As many rows as a filtered search is asked for that is to give all chunks of some units.
_LISTED = 1_000


class ElasticsearchProfile(StoreProfile):
    """Elasticsearch: conditions are objects; a search of depth 1 has 10,000 candidates."""

    def __init__(self) -> None:
        super().__init__(tuning=("metadata_keyword_suffix",))

    def search(self, query: NodeQuery) -> Calls[Rows[NodeWithScore]]:
        """Rank rows, without those of units to exclude, as deep as the query asks."""
        if query.depth > 1:
            raise NotImplementedError
        own = query.settings
        kwargs = dict(own.kwargs)
        kwargs["custom_query"] = set_candidates(kwargs.get("custom_query"), deep=query.depth > 0)
        filters = own.filters
        if query.exclude:
            excluded = exclude_terms(
                f"metadata.{query.unit_key}", query.exclude, suffix=_elastic_suffix(query)
            )
            kwargs["es_filter"] = [*_elastic_filters(query), excluded]
            filters = None
        adjusted = replace(
            query,
            top_k=min(query.top_k, MOST_ROWS),
            settings=replace(own, filters=filters, kwargs=kwargs),
        )
        return Rows((yield from self._rank(adjusted, query.store)))

    def list_chunks(self, query: NodeQuery, values: Sequence[Any]) -> Calls[Sequence[BaseNode]]:
        """Return all nodes whose unit is named by one of the values."""
        from llama_index.vector_stores.elasticsearch.utils import convert_es_hit_to_node

        wanted = match_terms(f"metadata.{query.unit_key}", values, suffix=_elastic_suffix(query))
        response = yield MethodCall(self._documents(query, wanted, MOST_ROWS), "search")
        store: Any = query.store
        nodes = [convert_es_hit_to_node(hit, store.text_field) for hit in read_hits(response)]
        return filter_by_documents(query, nodes)

    def has_other(self, query: NodeQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a node that passes and whose unit is named by none of the values."""
        if query.settings.doc_ids is not None:
            raise NotImplementedError
        other = exclude_terms(f"metadata.{query.unit_key}", values, suffix=_elastic_suffix(query))
        response = yield MethodCall(self._documents(query, other, 1), "search")
        return bool(read_hits(response))

    def _documents(self, query: NodeQuery, condition: Any, limit: int) -> _ElasticDocuments:
        if query.settings.kwargs.keys() - self._tuning - {"es_filter"}:
            raise NotImplementedError
        return _ElasticDocuments(query.store, [*_elastic_filters(query), condition], limit)


def _elastic_suffix(query: NodeQuery) -> str:
    if query.unit_key in _KEYWORDS:
        return ""
    return str(query.settings.kwargs.get("metadata_keyword_suffix", ".keyword"))


def _elastic_filters(query: NodeQuery) -> list[Any]:
    """Return the user's own filters as the store's class writes them."""
    from llama_index.vector_stores.elasticsearch.base import _to_elasticsearch_filter

    own = query.settings
    if own.filters is None or not own.filters.filters:
        return list(own.kwargs.get("es_filter") or ())
    suffix = own.kwargs.get("metadata_keyword_suffix", ".keyword")
    return [_to_elasticsearch_filter(own.filters, suffix)]


class _ElasticDocuments:
    """Documents of the store's index, without a ranking."""

    def __init__(self, store: Any, conditions: list[Any], limit: int) -> None:
        self._store, self._conditions, self._limit = store, conditions, limit

    def search(self) -> Any:
        """Select them, as the store's class does its async calls."""
        return asyncio.get_event_loop().run_until_complete(self.asearch())

    async def asearch(self) -> Any:
        """Select them."""
        return await self._store.client.search(
            index=self._store.index_name,
            query={"bool": {"filter": self._conditions}},
            size=self._limit,
            source_excludes=[self._store.vector_field],
        )


class OpenSearchProfile(StoreProfile):
    """OpenSearch: conditions are objects.

    The class's ``NIN`` compares the words of a text, so that units are excluded one by one. Other
    engines than these two have another ranking with a filter than without.
    """

    def search(self, query: NodeQuery) -> Calls[Rows[NodeWithScore]]:
        """Rank rows, without those of units to exclude."""
        if query.depth:
            raise NotImplementedError
        client: Any = query.store.client
        adjusted = replace(query, top_k=min(query.top_k, MOST_ROWS))
        if query.exclude:
            if client._method.get("engine") not in ("faiss", "lucene"):
                raise NotImplementedError
            _refuse_dates(client, query.exclude)
            excluded: list[MetadataFilter | MetadataFilters] = [
                MetadataFilter(key=query.unit_key, operator=FilterOperator.NE, value=value)
                for group in by_type(query.exclude)
                for value in group
            ]
            filters = combine_filters(query.settings.filters, MetadataFilters(filters=excluded))
            adjusted = replace(adjusted, settings=replace(query.settings, filters=filters))
        return Rows((yield from self._rank(adjusted, query.store)))

    def list_chunks(self, query: NodeQuery, values: Sequence[Any]) -> Calls[Sequence[BaseNode]]:
        """Return all nodes whose unit is named by one of the values."""
        client: Any = query.store.client
        _refuse_dates(client, values)
        conditions = [
            *client._parse_filters(self.own_filters(query)),
            match_terms(f"metadata.{query.unit_key}", values),
        ]
        response = yield MethodCall(_OpenSearchDocuments(client, conditions), "search")
        read_hits(response)
        return filter_by_documents(query, client._to_query_result(response).nodes)


def _refuse_dates(client: Any, values: Sequence[Any]) -> None:
    if any(isinstance(value, str) and not client._is_text_field(value) for value in values):
        raise NotImplementedError("a text that reads as a date may be stored as one")


class _OpenSearchDocuments:
    """Documents of the client's index, without a ranking."""

    def __init__(self, client: Any, conditions: list[Any]) -> None:
        self._client = client
        self._body = {
            "size": MOST_ROWS,
            "query": {"bool": {"filter": conditions}},
            "_source": {"excludes": [client._embedding_field]},
        }

    def search(self) -> Any:
        """Select them."""
        self._client._ensure_initialized()
        return self._client._os_client.search(index=self._client._index, body=self._body)

    async def asearch(self) -> Any:
        """Select them."""
        await self._client._async_ensure_initialized()
        found = self._client._os_async_client.search(index=self._client._index, body=self._body)
        return await found


class WeaviateProfile(StoreProfile):
    """Weaviate: conditions are objects that compare the words of a text.

    A condition may then hold for other units besides: nothing is excluded, and a listing is
    searched for what it was asked for.
    """

    def search(self, query: NodeQuery) -> Calls[Rows[NodeWithScore]]:
        """Rank rows."""
        if query.depth or query.exclude:
            raise NotImplementedError
        adjusted = replace(query, top_k=min(query.top_k, MOST_ROWS))
        return Rows((yield from self._rank(adjusted, query.store)))

    def list_chunks(self, query: NodeQuery, values: Sequence[Any]) -> Calls[Sequence[BaseNode]]:
        """Return all nodes whose unit is named by one of the values."""
        from llama_index.vector_stores.weaviate.utils import to_node

        objects = _WeaviateObjects(query, self.own_filters(query), values)
        found = (yield MethodCall(objects, "fetch")).objects
        if len(found) >= MOST_ROWS:
            raise NotImplementedError("a listing did not give all rows")
        store: Any = query.store
        nodes = [to_node(dict(one.__dict__), text_key=store.text_key) for one in found]
        return filter_by_documents(query, nodes)


class _WeaviateObjects:
    """Objects of the store's collection, without a ranking."""

    def __init__(
        self, query: NodeQuery, own: MetadataFilters | None, values: Sequence[Any]
    ) -> None:
        self._store: Any = query.store
        self._own, self._key, self._groups = own, query.unit_key, by_type(values)

    def _asked(self, property_types: Any) -> dict[str, Any]:
        from llama_index.vector_stores.weaviate.base import _to_weaviate_filter
        from weaviate.classes.query import Filter

        target = Filter.by_property(self._key)
        wanted = Filter.any_of([target.contains_any(group) for group in self._groups])
        if self._own is not None:
            wanted = Filter.all_of([_to_weaviate_filter(self._own, property_types), wanted])
        return {"filters": wanted, "limit": MOST_ROWS, "include_vector": False}

    def fetch(self) -> Any:
        """Fetch them."""
        collection = self._store.client.collections.get(self._store.index_name)
        types = self._store._get_property_types() if self._own is not None else None
        return collection.query.fetch_objects(**self._asked(types))

    async def afetch(self) -> Any:
        """Fetch them."""
        collection = self._store.async_client.collections.get(self._store.index_name)
        types = await self._store._aget_property_types() if self._own is not None else None
        return await collection.query.fetch_objects(**self._asked(types))


class PineconeProfile(StoreProfile):
    """Pinecone: filters are dicts whose values are data; there is no listing but by a search.

    Such a search is not known to give all chunks of a unit.
    """

    def __init__(self) -> None:
        super().__init__(excludes=True, tuning=("include_values", "include_metadata"))

    def search(self, query: NodeQuery) -> Calls[Rows[NodeWithScore]]:
        """Rank rows, without those of units to exclude."""
        if query.depth:
            raise NotImplementedError
        adjusted = _without_vectors(replace(query, top_k=min(query.top_k, MOST_ROWS)))
        return Rows((yield from self._rank(exclude_units(adjusted), query.store)))

    def list_chunks(self, query: NodeQuery, values: Sequence[Any]) -> Calls[Sequence[BaseNode]]:
        """Return nodes whose unit is named by one of the values, as many as a search gives."""
        filters = combine_filters(self.own_filters(query), include_values(query.unit_key, values))
        settings = replace(query.settings, filters=filters)
        adjusted = _without_vectors(replace(query, top_k=_LISTED, settings=settings))
        rows = yield from self._rank(adjusted, query.store)
        return filter_by_documents(query, [row.node for row in rows])

    def lists_all(self, query: NodeQuery) -> bool:
        """Whether a listing is known to hold all nodes of the units."""
        return False


def _without_vectors(query: NodeQuery) -> NodeQuery:
    kwargs = {"include_values": False, **query.settings.kwargs}
    return replace(query, settings=replace(query.settings, kwargs=kwargs))


class RedisProfile(StoreProfile):
    """Redis: conditions are text; only names without special meaning in it are written there.

    Units are excluded by a tag of the index's schema that is ``case_sensitive``.
    """

    def __init__(self) -> None:
        super().__init__(excludes=True, lists=True)

    def search(self, query: NodeQuery) -> Calls[Rows[NodeWithScore]]:
        """Rank rows, without those of units to exclude."""
        if query.exclude:
            _check_redis_tags(query, query.exclude, exclude=True)
        return (yield from super().search(query))

    def list_chunks(self, query: NodeQuery, values: Sequence[Any]) -> Calls[Sequence[BaseNode]]:
        """Return all nodes whose unit is named by one of the values."""
        _check_redis_tags(query, values, exclude=False)
        return (yield from super().list_chunks(query, values))


def _check_redis_tags(query: NodeQuery, values: Sequence[Any], *, exclude: bool) -> None:
    store: Any = query.store
    if store.legacy_filters:
        raise NotImplementedError
    check_tags(store.schema.fields.get(query.unit_key), values, exclude=exclude)


class MongoProfile(StoreProfile):
    """MongoDB: filters are dicts whose values are data, on fields that the index names as filters.

    A search of depth 1 compares the query with every vector.
    """

    def search(self, query: NodeQuery) -> Calls[Rows[NodeWithScore]]:
        """Rank rows, without those of units to exclude, as deep as the query asks."""
        from pymongo.errors import OperationFailure

        store: Any = query.store
        if query.depth > 1 or (query.depth and query.settings.mode != VectorStoreQueryMode.DEFAULT):
            raise NotImplementedError
        adjusted = exclude_units(query)
        if query.exclude and any(isinstance(one, MetadataFilters) for one in _filters_of(adjusted)):
            raise NotImplementedError  # its class knows none within others
        most = MOST_CANDIDATES
        if not query.depth:
            most = max(MOST_CANDIDATES // store._oversampling_factor, 1)
        adjusted = replace(adjusted, top_k=min(query.top_k, most))
        if query.depth:
            store = store.model_copy()
            store._collection = ExactSearches(store._collection)
            store._async_collection = ExactSearches(store._async_collection)
        try:
            return Rows((yield from self._rank(adjusted, store)))
        except OperationFailure as error:
            if query.exclude or query.depth:  # such as a field that the index does not name
                raise NotImplementedError from error
            raise

    def list_chunks(self, query: NodeQuery, values: Sequence[Any]) -> Calls[Sequence[BaseNode]]:
        """Return all nodes whose unit is named by one of the values."""
        store: Any = query.store
        wanted = compare_field(f"{store._metadata_key}.{query.unit_key}", "$in", values)
        found = yield self._documents(query, [{"$or": wanted}], 0)
        nodes = []
        for one in found:
            node = metadata_dict_to_node(one[store._metadata_key])
            node.set_content(one[store._text_key])
            nodes.append(node)
        return filter_by_documents(query, nodes)

    def has_other(self, query: NodeQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a node that passes and whose unit is named by none of the values."""
        if query.settings.doc_ids is not None:
            raise NotImplementedError
        store: Any = query.store
        other = compare_field(f"{store._metadata_key}.{query.unit_key}", "$nin", values)
        return bool((yield self._documents(query, other, 1)))

    def _documents(self, query: NodeQuery, conditions: list[Any], limit: int) -> MethodCall:
        from llama_index.vector_stores.mongodb.pipelines import filters_to_mql

        store: Any = query.store
        own = self.own_filters(query)
        if own is not None and own.filters:
            conditions = [filters_to_mql(own, metadata_key=store._metadata_key), *conditions]
        condition = {"$and": conditions} if conditions else {}
        return MethodCall(_MongoDocuments(store, condition, limit), "find")


def _filters_of(query: NodeQuery) -> Sequence[Any]:
    return query.settings.filters.filters if query.settings.filters is not None else ()


class _MongoDocuments:
    """Documents of the store's collection, without a ranking."""

    def __init__(self, store: Any, condition: dict[str, Any], limit: int) -> None:
        self._store, self._condition, self._limit = store, condition, limit

    def _find(self, collection: Any) -> Any:
        return collection.find(self._condition, {self._store._embedding_key: 0}, limit=self._limit)

    def find(self) -> list[Any]:
        """Find them."""
        return list(self._find(self._store._collection))

    async def afind(self) -> list[Any]:
        """Find them."""
        found: list[Any] = await self._find(self._store._async_collection).to_list(None)
        return found
