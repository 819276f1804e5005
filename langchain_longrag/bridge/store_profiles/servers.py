"""Databases that run as servers: Elasticsearch, OpenSearch, Weaviate, Pinecone, Redis, MongoDB.

These profiles rest on the documentation of the databases and on the code of LangChain's classes: no
server was at hand. So no ranking is taken to be exact.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.documents import Document

from langchain_longrag.bridge.documents import BY_VECTOR
from langchain_longrag.bridge.store_profiles.base import (
    FILTER,
    DocumentQuery,
    Row,
    StoreProfile,
    ThreadCall,
    combine_filters,
    with_vector,
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

_CUSTOM = "custom_query"
_PRE_FILTER = "pre_filter"

# As many rows as a filtered search is asked for that is to give all chunks of some units.
_LISTED = 1_000


class ElasticsearchProfile(StoreProfile):
    """Elasticsearch: conditions are objects; a search of depth 1 has 10,000 candidates."""

    def takes_vector(self, store: Any) -> bool:
        """Whether the store is searched by the query's vector alone."""
        strategy = store._store.retrieval_strategy
        return type(strategy).__name__.startswith("DenseVector") and not getattr(
            strategy, "hybrid", False
        )

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows, without those of units to exclude, as deep as the query asks."""
        if query.depth > (1 if query.vector is not None else 0):
            raise NotImplementedError
        store, kwargs = query.store, dict(query.kwargs)
        kwargs["k"] = min(query.top_k, MOST_ROWS)
        kwargs[_CUSTOM] = set_candidates(kwargs.get(_CUSTOM), deep=query.depth > 0)
        if query.exclude:
            excluded = exclude_terms(f"metadata.{query.unit_key}", query.exclude)
            kwargs[FILTER] = [*(kwargs.get(FILTER) or ()), excluded]
        if query.vector is not None:
            name = "similarity_search_by_vector_with_relevance_scores"
            call = MethodCall(store, name, (list(query.vector),), kwargs)
        elif getattr(store._store.retrieval_strategy, "hybrid", False):
            # Its class gives no scores of a hybrid search.
            documents = yield MethodCall(store, "similarity_search", (query.text,), kwargs)
            return Rows([(document, None) for document in documents])
        else:
            call = MethodCall(store, "similarity_search_with_score", (query.text,), kwargs)
        rows = yield call
        return Rows(rows)

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return all rows whose unit is named by one of the values."""
        wanted = match_terms(f"metadata.{query.unit_key}", values)
        response = yield self._select(query, wanted, MOST_ROWS)
        build = query.kwargs.get("doc_builder") or partial(
            _elastic_document, text_field=query.store.query_field
        )
        return [build(hit) for hit in read_hits(response)]

    def has_other(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a row that passes and whose unit is named by none of the values."""
        other = exclude_terms(f"metadata.{query.unit_key}", values)
        return bool(read_hits((yield self._select(query, other, 1))))

    def _select(self, query: DocumentQuery, condition: Any, limit: int) -> MethodCall:
        self._check_known(query, FILTER, "doc_builder")
        conditions = [*(query.kwargs.get(FILTER) or ()), condition]
        store = query.store
        return ThreadCall(
            lambda: store.client.search(
                index=store._store.index,
                query={"bool": {"filter": conditions}},
                size=limit,
                source_includes=["metadata", store.query_field],
            )
        ).as_call()


def _elastic_document(hit: Mapping[str, Any], text_field: str) -> Document:
    # As its class makes them, without an id.
    source = hit["_source"]
    return Document(page_content=source.get(text_field, ""), metadata=source.get("metadata", {}))


class OpenSearchProfile(StoreProfile):
    """OpenSearch: conditions are objects, which two of its engines apply within a search."""

    def __init__(self) -> None:
        super().__init__(known=("vector_field", "text_field", "metadata_field", "index_name"))

    def takes_vector(self, store: Any) -> bool:
        """Whether the store is searched by the query's vector."""
        return True

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows, without those of units to exclude."""
        if query.depth:
            raise NotImplementedError
        kwargs: dict[str, Any] = {**query.kwargs, "k": min(query.top_k, MOST_ROWS)}
        if query.exclude:
            self._check_known(query, FILTER)
            if query.store.engine not in ("faiss", "lucene"):
                raise NotImplementedError  # its filter applies after the ranking
            excluded = exclude_terms(_opensearch_key(query), query.exclude)
            kwargs[FILTER] = _join_conditions(query, excluded)
        if query.vector is not None:
            call = MethodCall(query.store, BY_VECTOR, (list(query.vector),), kwargs)
        else:
            call = MethodCall(query.store, "similarity_search_with_score", (query.text,), kwargs)
        rows = yield call
        return Rows(rows)

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return all rows whose unit is named by one of the values."""
        self._check_known(query, FILTER)
        store, own = query.store, query.kwargs
        body = {
            "size": MOST_ROWS,
            "query": _join_conditions(query, match_terms(_opensearch_key(query), values)),
            "_source": {"excludes": [own.get("vector_field", "vector_field")]},
        }
        index = own.get("index_name", store.index_name)
        response = yield ThreadCall(lambda: store.client.search(index=index, body=body)).as_call()
        text, metadata = own.get("text_field", "text"), own.get("metadata_field", "metadata")
        return [
            Document(
                id=hit["_id"],
                page_content=hit["_source"][text],
                metadata=hit["_source"].get(metadata, hit["_source"]),
            )
            for hit in read_hits(response)
        ]


def _opensearch_key(query: DocumentQuery) -> str:
    field = query.kwargs.get("metadata_field", "metadata")
    if field == "*":
        raise NotImplementedError
    return f"{field}.{query.unit_key}"


def _join_conditions(query: DocumentQuery, added: dict[str, Any]) -> dict[str, Any]:
    own = query.kwargs.get(FILTER)
    return {"bool": {"filter": [*([own] if own else ()), added]}}


class WeaviateProfile(StoreProfile):
    """Weaviate: a hybrid search of the class's own, by the query and its vector.

    Its conditions compare the words of a text and may then hold for other units besides: nothing is
    excluded, and a listing is searched for what it was asked for.
    """

    def __init__(self) -> None:
        super().__init__(known=("alpha", "fusion_type", "return_metadata", "tenant"))

    def takes_vector(self, store: Any) -> bool:
        """Whether the store is searched by the query's vector, beside its words."""
        return True

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows."""
        if query.depth or query.exclude:
            raise NotImplementedError
        kwargs: dict[str, Any] = {**query.kwargs, "k": min(query.top_k, MOST_ROWS)}
        if query.vector is not None:
            kwargs["vector"] = list(query.vector)
        rows = yield MethodCall(query.store, "similarity_search_with_score", (query.text,), kwargs)
        return Rows(rows)

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return all rows whose unit is named by one of the values."""
        from weaviate.classes.query import Filter

        self._check_known(query, "filters")
        target = Filter.by_property(query.unit_key)
        wanted: Any = Filter.any_of([target.contains_any(group) for group in by_type(values)])
        if (own := query.kwargs.get("filters")) is not None:
            wanted = Filter.all_of([own, wanted])
        store = query.store

        def fetch() -> Any:
            with store._tenant_context(query.kwargs.get("tenant")) as collection:
                return collection.query.fetch_objects(filters=wanted, limit=MOST_ROWS).objects

        found = yield ThreadCall(fetch).as_call()
        if len(found) >= MOST_ROWS:
            raise NotImplementedError("a listing did not give all rows")
        documents = []
        for one in found:
            properties = dict(one.properties)
            # As its class makes them, without an id.
            text = properties.pop(store._text_key)
            documents.append(Document(page_content=text, metadata=properties))
        return documents


class PineconeProfile(StoreProfile):
    """Pinecone: filters are dicts whose values are data; there is no listing but by a search.

    Such a search is not known to give all chunks of a unit.
    """

    def __init__(self) -> None:
        super().__init__(known=("namespace",))

    def takes_vector(self, store: Any) -> bool:
        """Whether the store is searched by the query's vector."""
        return True

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows, without those of units to exclude."""
        if query.depth:
            raise NotImplementedError
        added = compare_field(query.unit_key, "$nin", query.exclude)
        return Rows((yield from self._search(query, added, min(query.top_k, MOST_ROWS))))

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return rows whose unit is named by one of the values, as many as a search gives."""
        wanted = compare_field(query.unit_key, "$in", values)
        rows = yield from self._search(query, [{"$or": wanted}], _LISTED)
        return [document for document, _ in rows]

    def lists_all(self, query: DocumentQuery) -> bool:
        """Whether a listing is known to hold all rows of the units."""
        return False

    def _search(
        self, query: DocumentQuery, added: Sequence[dict[str, Any]], k: int
    ) -> Calls[Sequence[Row]]:
        kwargs: dict[str, Any] = {**query.kwargs, "k": k}
        if added:
            kwargs[FILTER] = combine_filters(query.kwargs.get(FILTER), added)
        if query.vector is not None:
            name = "similarity_search_by_vector_with_score"
            call = MethodCall(query.store, name, (list(query.vector),), kwargs)
        else:
            call = MethodCall(query.store, "similarity_search_with_score", (query.text,), kwargs)
        rows: Sequence[Row] = yield call
        return rows


class RedisProfile(StoreProfile):
    """Redis: conditions are text; only names without special meaning in it are written there.

    Units are excluded by a tag of the index's schema that is ``case_sensitive``.
    """

    def __init__(self) -> None:
        super().__init__(known=("sort_by", "return_metadata"))

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows, without those of units to exclude."""
        if query.depth:
            raise NotImplementedError
        if not query.exclude:
            return (yield from self._rank(query, {}))
        excluded = _redis_condition(query, query.exclude, exclude=True)
        return (yield from self._rank(query, {FILTER: excluded}))

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return all rows whose unit is named by one of the values."""
        from redisvl.query import CountQuery, FilterQuery

        self._check_known(query, FILTER)
        store, wanted = query.store, _redis_condition(query, values, exclude=False)
        fields = store._index.schema.fields.values()
        names = [one.name for one in fields if one.name != store.config.embedding_field]

        def select() -> Any:
            count = store._index.query(CountQuery(wanted))
            if not count:
                return []
            return store._index.query(FilterQuery(wanted, names, num_results=count))

        found = yield ThreadCall(select).as_call()
        return [store._build_document_from_result(one) for one in found]


def _redis_condition(query: DocumentQuery, values: Sequence[Any], *, exclude: bool) -> Any:
    from redisvl.query.filter import Tag, Text

    store, own = query.store, query.kwargs.get(FILTER)
    if isinstance(own, str):
        raise NotImplementedError  # its class cannot add to a filter that is a text
    schema = store._index.schema.fields
    names = check_tags(schema.get(query.unit_key), values, exclude=exclude)
    tag = Tag(query.unit_key)
    condition = tag != names if exclude else tag == names
    if own is not None:
        condition = own & condition
    if not exclude and "_index_name" in schema:
        # As its class does in a search, where several indexes share their keys.
        condition = condition & (Text("_index_name") == store.config.index_name)
    return condition


class MongoProfile(StoreProfile):
    """MongoDB: filters are dicts whose values are data, on fields that the index names as filters.

    A search of depth 1 compares the query with every vector.
    """

    def __init__(self) -> None:
        super().__init__(known=("oversampling_factor", "include_embeddings"))

    def takes_vector(self, store: Any) -> bool:
        """Whether the store is searched by the query's vector."""
        return not store._is_autoembedding

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows, without those of units to exclude, as deep as the query asks."""
        from pymongo.errors import OperationFailure

        if query.depth > 1:
            raise NotImplementedError
        factor = query.kwargs.get("oversampling_factor", 10)
        most = MOST_CANDIDATES if query.depth else max(MOST_CANDIDATES // factor, 1)
        kwargs: dict[str, Any] = {**query.kwargs, "k": min(query.top_k, most)}
        if query.exclude:
            added = compare_field(query.unit_key, "$nin", query.exclude)
            kwargs[_PRE_FILTER] = combine_filters(kwargs.get(_PRE_FILTER), added)
        store = query.store
        if query.vector is not None:
            store = with_vector(store, "_embedding", query.vector)
        if query.depth:
            store = copy.copy(store)
            store._collection = ExactSearches(store._collection)
        try:
            rows = yield MethodCall(store, "similarity_search_with_score", (query.text,), kwargs)
        except OperationFailure as error:
            if query.exclude or query.depth:  # such as a field that the index does not name
                raise NotImplementedError from error
            raise
        return Rows(rows)

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return all rows whose unit is named by one of the values."""
        wanted = compare_field(query.unit_key, "$in", values)
        found = yield self._find(query, [{"$or": wanted}], 0)
        return [_mongo_document(one, query.store) for one in found if query.store._text_key in one]

    def has_other(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a row that passes and whose unit is named by none of the values."""
        other = compare_field(query.unit_key, "$nin", values)
        return bool((yield self._find(query, other, 1)))

    def _find(self, query: DocumentQuery, conditions: list[Any], limit: int) -> MethodCall:
        self._check_known(query, _PRE_FILTER)
        own = query.kwargs.get(_PRE_FILTER)
        condition = combine_filters(own, conditions) if own or conditions else {}
        store = query.store
        hidden = {store._embedding_key: 0} if store._embedding_key else None
        return ThreadCall(
            lambda: list(store.collection.find(condition, hidden, limit=limit))
        ).as_call()


def _mongo_document(found: dict[str, Any], store: Any) -> Document:
    from langchain_mongodb.utils import make_serializable

    text = found.pop(store._text_key)
    make_serializable(found)
    return Document(page_content=text, metadata=found, id=found["_id"])
