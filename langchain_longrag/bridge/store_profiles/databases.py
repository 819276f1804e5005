"""Vector databases: Chroma, Qdrant, Milvus and LanceDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

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
from longrag.errors import InvalidParameterError
from longrag.integration.answering import Calls, MethodCall
from longrag.integration.store_profiles import (
    MILVUS_MOST,
    Rows,
    by_type,
    check_plain_key,
    lance_indexes,
    milvus_is_flat,
    milvus_literals,
    sql_literal,
)

# As many rows as a store is asked for where a smaller search has not found enough units.
_DEEP: Final = 10_000

# As many points as one page of a listing has.
_PAGE: Final = 1_000


class ChromaProfile(StoreProfile):
    """Chroma: filters are dicts whose values are parameters; the ranking is a graph's.

    A search of depth 1 ranks up to 10,000 rows.
    """

    def takes_vector(self, store: VectorStore) -> bool:
        """Whether the store is searched by the query's vector: it has a method for that."""
        return True

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows, without those of units to exclude, as deep as the query asks."""
        if query.depth > 1:
            raise NotImplementedError
        kwargs = {**query.kwargs, "k": max(query.top_k, _DEEP) if query.depth else query.top_k}
        if query.exclude:
            kwargs[FILTER] = combine_filters(
                kwargs.get(FILTER), _make_conditions(query, "$nin", query.exclude)
            )
        if query.vector is None:
            call = MethodCall(query.store, "similarity_search_with_score", (query.text,), kwargs)
        else:
            name = "similarity_search_by_vector_with_relevance_scores"
            call = MethodCall(query.store, name, (list(query.vector),), kwargs)
        rows = yield call
        return Rows(rows)

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return all rows whose unit is named by one of the values."""
        wanted = _make_conditions(query, "$in", values)
        where = combine_filters(
            query.kwargs.get(FILTER), wanted if len(wanted) == 1 else [{"$or": wanted}]
        )
        found = yield self._get(query, where, include=["documents", "metadatas"])
        rows = zip(found["ids"], found["documents"], found["metadatas"], strict=True)
        return [Document(id=i, page_content=text or "", metadata=m or {}) for i, text, m in rows]

    def has_other(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a row that passes and whose unit is named by none of the values."""
        parts = _make_conditions(query, "$nin", values)
        own = query.kwargs.get(FILTER)
        where = combine_filters(own, parts) if own or parts else None
        found = yield self._get(query, where, include=[], limit=1)
        return bool(found["ids"])

    def _get(self, query: DocumentQuery, where: Any, **asked: Any) -> MethodCall:
        self._check_known(query, FILTER, "where_document")
        document = query.kwargs.get("where_document")
        kwargs = {"where": where, "where_document": document, **asked}
        return MethodCall(query.store, "get", (), kwargs)


def _make_conditions(
    query: DocumentQuery, operator: str, values: Sequence[Any]
) -> list[dict[str, Any]]:
    return [{query.unit_key: {operator: group}} for group in by_type(values)]


class QdrantProfile(StoreProfile):
    """Qdrant: filters are objects; a local client ranks exhaustively, a server when it is told to.

    A search of depth 1 tells it to. A store in hybrid or sparse mode is searched in its own mode.
    """

    def __init__(self) -> None:
        known = ("search_params", "score_threshold", "consistency", "hybrid_fusion")
        super().__init__(known=known)

    def takes_vector(self, store: VectorStore) -> bool:
        """Whether the store is searched by the query's vector."""
        return _read_mode(store) in ("dense", "hybrid")

    def is_exact(self, query: DocumentQuery) -> bool:
        """Whether the store ranks every row that passes by its vector."""
        params = query.kwargs.get("search_params")
        exact = getattr(params, "exact", None) is True
        return _read_mode(query.store) == "dense" and (exact or _is_local(query.store))

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows, without those of units to exclude, as deep as the query asks."""
        from qdrant_client import models

        kwargs: dict[str, Any] = {**query.kwargs, "k": query.top_k}
        if query.depth:
            if query.depth > 1 or self.is_exact(query) or _read_mode(query.store) != "dense":
                raise NotImplementedError
            params = query.kwargs.get("search_params") or models.SearchParams()
            kwargs["search_params"] = params.model_copy(update={"exact": True})
        if query.exclude:
            kwargs[FILTER] = _make_points_filter(query, query.exclude, inside=False)
        exact = self.is_exact(query) or query.depth > 0
        store = query.store
        if _read_mode(store) == "dense" and query.vector is not None:
            call = MethodCall(store, BY_VECTOR, (list(query.vector),), kwargs)
        else:
            if query.vector is not None:
                store = with_vector(store, "_embeddings", query.vector)
            call = MethodCall(store, "similarity_search_with_score", (query.text,), kwargs)
        rows = yield call
        found = [(_with_id(row, "_id"), score) for row, score in rows]
        return Rows(found, exact, exact and len(found) < query.top_k)

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return all rows whose unit is named by one of the values."""
        self._check_known(query, FILTER)
        wanted = _make_points_filter(query, values, inside=True)
        found: list[Document] = yield ThreadCall(
            lambda: _list_points(query.store, wanted)
        ).as_call()
        return found

    def has_other(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a row that passes and whose unit is named by none of the values."""
        self._check_known(query, FILTER)
        other = _make_points_filter(query, values, inside=False)
        call = ThreadCall(
            lambda: query.store.client.scroll(query.store.collection_name, other, limit=1)
        )
        points, _ = yield call.as_call()
        return bool(points)


def _read_mode(store: Any) -> str:
    return str(getattr(store.retrieval_mode, "value", store.retrieval_mode))


def _is_local(store: Any) -> bool:
    return type(getattr(store.client, "_client", None)).__name__ == "QdrantLocal"


def _make_points_filter(query: DocumentQuery, values: Sequence[Any], *, inside: bool) -> Any:
    """Return the filter for points of units with these names, or of all others."""
    from qdrant_client import models

    key = f"{query.store.metadata_payload_key}.{check_plain_key(query.unit_key)}"
    wanted: list[Any] = []
    for group in by_type(values):
        if isinstance(group[0], float):
            ranges = [models.Range(gte=value, lte=value) for value in group]
            wanted += [models.FieldCondition(key=key, range=one) for one in ranges]
        elif isinstance(group[0], bool):
            matches = [models.MatchValue(value=value) for value in group]
            wanted += [models.FieldCondition(key=key, match=one) for one in matches]
        else:
            wanted.append(models.FieldCondition(key=key, match=models.MatchAny(any=group)))
    own = query.kwargs.get(FILTER)
    must = [own] if own is not None else []
    if inside:
        return models.Filter(must=[*must, models.Filter(should=wanted)])
    return models.Filter(must=must or None, must_not=wanted or None)


def _list_points(store: Any, wanted: Any) -> list[Document]:
    found, offset = [], None
    while True:
        page, offset = store.client.scroll(
            store.collection_name, wanted, limit=_PAGE, offset=offset, with_payload=True
        )
        found += [
            store._document_from_point(
                point,
                store.collection_name,
                store.content_payload_key,
                store.metadata_payload_key,
            )
            for point in page
        ]
        if offset is None:
            return [_with_id(document, "_id") for document in found]


def _with_id(document: Document, key: str) -> Document:
    """Give a document the id that its store keeps in the metadata."""
    if document.id is None and key in document.metadata:
        document.id = str(document.metadata[key])
    return document


class MilvusProfile(StoreProfile):
    """Milvus: conditions are one expression beside the user's; Milvus Lite ranks exhaustively."""

    def __init__(self) -> None:
        super().__init__(known=("param", "timeout", "fetch_k", "reranker", "ranker_type"))

    def takes_vector(self, store: Any) -> bool:
        """Whether the store is searched by the query's vector."""
        return not store._is_multi_vector and not store._is_sparse

    def needs_equal_keys(self, store: Any) -> bool:
        """Whether the metadata of all rows must have the same keys: with a field for each key."""
        return not store.enable_dynamic_field and not store._metadata_field

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows, without those of units to exclude."""
        if query.depth:
            raise NotImplementedError
        store, asked = query.store, min(query.top_k, MILVUS_MOST)
        kwargs: dict[str, Any] = {**query.kwargs, "k": asked}
        if query.exclude:
            kwargs["expr"] = _make_milvus_expression(query, query.exclude, "not in")
        if query.vector is None:
            call = MethodCall(store, "similarity_search_with_score", (query.text,), kwargs)
        else:
            call = _call_in_thread(store, BY_VECTOR, (list(query.vector),), kwargs)
        rows = yield call
        found = [(_with_id(row, store._primary_field), score) for row, score in rows]
        exact = False
        if query.vector is not None:
            uri = store._connection_args.get("uri") if store._connection_args else ""
            exact = yield from milvus_is_flat(
                store.client, uri, store.collection_name, store._vector_field
            )
        return Rows(found, exact, exact and len(found) < asked)

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return all rows whose unit is named by one of the values."""
        items = yield self._query_entities(
            query, _make_milvus_expression(query, values, "in"), MILVUS_MOST
        )
        if len(items) >= MILVUS_MOST:
            raise NotImplementedError  # there may be more than one answer holds
        store = query.store
        documents = [store._parse_document(dict(item)) for item in items]
        return [_with_id(one, store._primary_field) for one in documents]

    def has_other(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a row that passes and whose unit is named by none of the values."""
        own = query.kwargs.get("expr") or ""
        expression = _make_milvus_expression(query, values, "not in") if values else own
        return bool((yield self._query_entities(query, expression, 1)))

    def _query_entities(self, query: DocumentQuery, expression: str, limit: int) -> MethodCall:
        self._check_known(query, "expr")
        store = query.store
        fields = store._remove_forbidden_fields(store.fields[:])
        kwargs = {
            "filter": expression,
            "output_fields": ["*"] if store.enable_dynamic_field else fields,
            "limit": limit,
        }
        return MethodCall(store.client, "query", (store.collection_name,), kwargs)


def _call_in_thread(
    target: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> MethodCall:
    """Call in a thread from an event loop: an async client belongs to the loop that made it."""
    return ThreadCall(lambda: getattr(target, name)(*args, **kwargs)).as_call()


def _make_milvus_expression(query: DocumentQuery, values: Sequence[Any], operator: str) -> str:
    key = check_plain_key(query.unit_key)
    if query.store._metadata_field:
        key = f'{query.store._metadata_field}["{key}"]'
    own = query.kwargs.get("expr")
    added = f"{key} {operator} [{milvus_literals(values)}]"
    return f"({own}) and ({added})" if own else added


class LanceProfile(StoreProfile):
    """LanceDB: conditions are SQL that applies before the ranking.

    Without a vector index every row that passes is compared.
    """

    def __init__(self) -> None:
        super().__init__(known=("prefilter",))

    def takes_vector(self, store: VectorStore) -> bool:
        """Whether the store is searched by the query's vector."""
        return True

    def check_writable(self, store: Any) -> None:
        """Raise ``InvalidParameterError`` where what is added takes the place of what is there."""
        if store.mode != "append":
            raise InvalidParameterError(
                "vectorstore",
                f"LanceDB with mode={store.mode!r}",
                "made with mode='append'",
                "With any other mode each addition takes the place of all rows.",
            )

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows, without those of units to exclude."""
        own = query.kwargs.keys() - {FILTER, "prefilter", "name"}
        if query.depth or (query.exclude and own):
            raise NotImplementedError
        if own or query.vector is None:
            # A search by words, or with a metric or reranker: the store's own affair.
            kwargs = {**query.kwargs, "k": query.top_k}
            rows = yield MethodCall(
                query.store, "similarity_search_with_score", (query.text,), kwargs
            )
            return Rows(rows)
        rows = yield ThreadCall(lambda: _search_lance(query)).as_call()
        table = query.store.get_table(query.kwargs.get("name"))
        exact = not lance_indexes(table)
        return Rows(rows, exact, exact and len(rows) < query.top_k)

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return all rows whose unit is named by one of the values."""
        self._check_known(query, FILTER, "name")
        condition = _make_lance_condition(query, values, "IN")
        found: list[Document] = yield ThreadCall(lambda: _list_lance(query, condition)).as_call()
        return found

    def has_other(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a row that passes and whose unit is named by none of the values."""
        self._check_known(query, FILTER, "name")
        condition = (
            _make_lance_condition(query, values, "NOT IN") if values else _read_lance_filter(query)
        )
        return bool((yield ThreadCall(lambda: _list_lance(query, condition, 1)).as_call()))


def _read_lance_filter(query: DocumentQuery) -> str:
    own = query.kwargs.get(FILTER)
    if isinstance(own, dict):
        from langchain_community.vectorstores.lancedb import to_lance_filter

        return str(to_lance_filter(own))
    return str(own or "")


def _make_lance_condition(query: DocumentQuery, values: Sequence[Any], operator: str) -> str:
    own, key = _read_lance_filter(query), check_plain_key(query.unit_key)
    literals = ", ".join(sql_literal(value) for value in values)
    added = f"metadata.{key} {operator} ({literals})"
    return f"({own}) AND ({added})" if own else added


def _search_lance(query: DocumentQuery) -> list[Row]:
    store = query.store
    table = store.get_table(query.kwargs.get("name"))
    found = table.search(query=list(query.vector or ()), vector_column_name=store._vector_key)
    found = found.limit(query.top_k)
    own = _read_lance_filter(query)
    condition = _make_lance_condition(query, query.exclude, "NOT IN") if query.exclude else own
    if condition:
        found = found.where(condition, prefilter=bool(query.exclude) or _prefilters(query))
    rows: list[Row] = store.results_to_docs(found.to_arrow(), score=True)
    return rows


def _prefilters(query: DocumentQuery) -> bool:
    # After the ranking a filter would leave fewer rows than there are.
    return bool(query.kwargs.get("prefilter", True))


def _list_lance(query: DocumentQuery, condition: str, limit: int | None = None) -> list[Document]:
    store = query.store
    table = store.get_table(query.kwargs.get("name"))
    found = table.search().limit(limit or max(table.count_rows(), 1))
    if condition:
        found = found.where(condition)
    documents: list[Document] = store.results_to_docs(found.to_arrow())
    return documents
