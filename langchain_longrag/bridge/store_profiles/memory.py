"""Stores in this process whose rows are at hand: LangChain's own, those of FAISS, and DuckDB."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from langchain_longrag.bridge.store_profiles.base import (
    FILTER,
    DocumentQuery,
    Row,
    StoreProfile,
    ThreadCall,
    with_vector,
)
from longrag.errors import InvalidParameterError
from longrag.integration.answering import Calls, MethodCall
from longrag.integration.faiss_indexes import exhaustive_index, is_flat
from longrag.integration.store_profiles import Rows, by_type, check_plain_key


class InMemoryProfile(StoreProfile):
    """``InMemoryVectorStore``: a filter is a function, and the rows are in a dict."""

    def __init__(self) -> None:
        super().__init__(exhaustive=True)

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows, without those of units to exclude."""
        if query.depth:
            raise NotImplementedError
        if not query.exclude:
            return (yield from self._rank(query, {}))
        own, key, seen = query.kwargs.get(FILTER), query.unit_key, list(query.exclude)

        def passes(document: Document) -> bool:
            # First the caller's own: what it leaves out need not name a unit.
            return (own is None or own(document)) and document.metadata.get(key) not in seen

        return (yield from self._rank(query, {FILTER: passes}))

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return all rows whose unit is named by one of the values."""
        self._check_known(query, FILTER)
        own = query.kwargs.get(FILTER)

        def rows() -> list[Document]:
            stored = [
                Document(id=row["id"], page_content=row["text"], metadata=row["metadata"])
                for row in list(query.store.store.values())
                if row["metadata"].get(query.unit_key) in values
            ]
            return [one for one in stored if own is None or own(one)]

        found: list[Document] = yield ThreadCall(rows).as_call()
        return found


class FaissProfile(StoreProfile):
    """FAISS: filters apply to the rows that were fetched, so that all are fetched for one.

    A flat index is exhaustive; a search of depth 1 makes a graph or an inverted file so.
    """

    def __init__(self) -> None:
        super().__init__(known=("fetch_k", "score_threshold"))

    def is_exact(self, query: DocumentQuery) -> bool:
        """Whether the store ranks every row by its vector."""
        return is_flat(query.store.index)

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows, without those of units to exclude, as deep as the query asks."""
        store, flat = query.store, self.is_exact(query)
        total = store.index.ntotal
        if query.depth:
            if query.depth > 1 or flat:
                raise NotImplementedError
            store = copy.copy(store)
            store.index = exhaustive_index(store.index)
        added: dict[str, Any] = {}
        passes = _make_filter(query)
        if passes is not None:
            added = {FILTER: passes, "fetch_k": max(total, 1)}
        kwargs = {**query.kwargs, **added, "k": query.top_k}
        call = ThreadCall(lambda: _search_faiss(store, query, kwargs)).as_call()
        rows: list[Row] = yield call
        exact = flat or query.depth > 0
        everything = passes is None and len(rows) >= total
        return Rows(rows, exact, everything or (exact and len(rows) < query.top_k))

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return all rows whose unit is named by one of the values."""
        self._check_known(query, FILTER)
        own = query.kwargs.get(FILTER)
        passes = None if own is None else query.store._create_filter_func(own)
        found = yield ThreadCall(lambda: _list_faiss(query, values, passes)).as_call()
        return list(found)


def _make_filter(query: DocumentQuery) -> Callable[[dict[str, Any]], bool] | None:
    own = query.kwargs.get(FILTER)
    if own is None and not query.exclude:
        return None
    first = None if own is None else query.store._create_filter_func(own)
    seen, key = list(query.exclude), query.unit_key
    return lambda metadata: (first is None or first(metadata)) and metadata.get(key) not in seen


def _search_faiss(store: Any, query: DocumentQuery, kwargs: dict[str, Any]) -> list[Row]:
    if query.vector is None:
        rows: list[Row] = store.similarity_search_with_score(query.text, **kwargs)
    else:
        rows = store.similarity_search_with_score_by_vector(list(query.vector), **kwargs)
    return rows


def _list_faiss(
    query: DocumentQuery,
    values: Sequence[Any],
    passes: Callable[[dict[str, Any]], bool] | None,
) -> list[Document]:
    found = []
    for id_ in list(query.store.index_to_docstore_id.values()):
        document = query.store.docstore.search(id_)
        if not isinstance(document, Document):
            raise NotImplementedError  # the docstore does not hold the store's rows
        if document.metadata.get(query.unit_key) in values and (
            passes is None or passes(document.metadata)
        ):
            found.append(document if document.id else document.model_copy(update={"id": id_}))
    return found


class DuckDBProfile(StoreProfile):
    """DuckDB of ``langchain_community``: no filters in a search, every row compared; SQL lists."""

    def __init__(self) -> None:
        super().__init__(exhaustive=True)

    def takes_vector(self, store: VectorStore) -> bool:
        """Whether the store is searched by the query's vector: by one that it need not make."""
        return True

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows."""
        if query.depth or query.exclude:
            raise NotImplementedError
        if FILTER in query.kwargs:
            # Its class would pass over it without a word.
            raise InvalidParameterError(
                "search_kwargs", FILTER, "without it: DuckDB has no filters"
            )
        store = query.store
        if query.vector is not None:
            store = with_vector(store, "_embedding", query.vector)
        # One connection serves one thread at a time, and a cursor is a connection.
        store = copy.copy(store)
        store._connection = query.store._connection.cursor()
        store._table = store._connection.table(store._table_name)
        kwargs = {**query.kwargs, "k": query.top_k}
        documents = yield MethodCall(_SyncSearch(store), "similarity_search", (query.text,), kwargs)
        rows = [(one, one.metadata.pop("_similarity_score", None)) for one in documents]
        return Rows(rows, exact=True, ended=len(rows) < query.top_k)

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return all rows whose unit is named by one of the values."""
        self._check_known(query)
        path = f'$."{check_plain_key(query.unit_key)}"'
        names = [one for group in by_type(values) for one in group]
        texts = [one if isinstance(one, str) else json.dumps(one) for one in names]
        store = query.store
        statement = (
            f"SELECT {store._text_key}, metadata FROM {store._table_name}"
            " WHERE list_contains(?, json_extract_string(metadata, ?))"
        )

        def rows() -> list[Document]:
            found = store._connection.cursor().execute(statement, [texts, path]).fetchall()
            # Its searches give no ids, so that a chunk is known by its text and place.
            return [
                Document(page_content=text, metadata=json.loads(metadata))
                for text, metadata in found
            ]

        listed: list[Document] = yield ThreadCall(rows).as_call()
        return listed


class _SyncSearch:
    """The sync search of a store alone, which is then called in a thread."""

    def __init__(self, store: Any) -> None:
        self.similarity_search = store.similarity_search
