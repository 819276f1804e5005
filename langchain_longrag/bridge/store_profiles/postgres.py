"""PostgreSQL with pgvector: both of LangChain's classes, whose conditions take parameters.

A dense search is a statement that also tells whether an index of the table may be approximate, and
that a search of depth 1 keeps from using one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from langchain_longrag.bridge.documents import BY_VECTOR
from langchain_longrag.bridge.store_profiles.base import (
    FILTER,
    DocumentQuery,
    Row,
    StoreProfile,
)
from longrag.integration.answering import Calls, MethodCall
from longrag.integration.postgres import ONE_STATEMENT, count_approximate_indexes, named, texts
from longrag.integration.store_profiles import Rows, check_plain_key


class PGVectorProfile(StoreProfile):
    """``PGVector``: the rows of one collection in a table of all collections."""

    def takes_vector(self, store: VectorStore) -> bool:
        """Whether the store is searched by the query's vector."""
        return True

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows, without those of units to exclude, as deep as the query asks."""
        self._check_known(query, FILTER)
        if query.depth > 1:
            raise NotImplementedError
        found = yield MethodCall(_Collection(query), "rank")
        rows: list[Row] = [(_to_document(row[0]), row[1]) for row in found]
        exact = bool(found) and (query.depth > 0 or not found[0][2])
        return Rows(rows, exact, exact and len(rows) < query.top_k)

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return all rows whose unit is named by one of the values."""
        found = yield MethodCall(_Collection(query, values, inside=True), "list_rows")
        return [_to_document(row[0]) for row in found]

    def has_other(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a row that passes and whose unit is named by none of the values."""
        found = yield MethodCall(_Collection(query, values, inside=False, limit=1), "list_rows")
        return bool(found)


def _to_document(row: Any) -> Document:
    return Document(id=str(row.id), page_content=row.document, metadata=row.cmetadata or {})


class _Collection:
    """Statements over the rows of the store's collection that pass the user's filter."""

    def __init__(
        self,
        query: DocumentQuery,
        values: Sequence[Any] = (),
        *,
        inside: bool = False,
        limit: int | None = None,
    ) -> None:
        self._query, self._limit = query, limit
        self._conditions: list[Any] = []
        table = query.store.EmbeddingStore
        if inside:
            self._conditions.append(named(table.cmetadata, query.unit_key, values))
        elif outside := [*query.exclude, *values]:
            self._conditions.append(~named(table.cmetadata, query.unit_key, outside))

    def _select_nearest(self, collection: Any) -> Any:
        from sqlalchemy import select

        store = self._query.store
        table = store.EmbeddingStore
        distance = store.distance_strategy(list(self._query.vector or ())).label("distance")
        indexes = count_approximate_indexes(table.__table__.schema, table.__tablename__)
        # No index serves the order of an expression other than the distance itself.
        order = distance.element + 0 if self._query.depth else distance
        statement = select(table, distance, indexes.label("indexes"))
        return self._build_where(statement, collection).order_by(order).limit(self._query.top_k)

    def _select_rows(self, collection: Any) -> Any:
        from sqlalchemy import select

        table = self._query.store.EmbeddingStore
        statement = self._build_where(select(table), collection)
        return statement.order_by(table.id).limit(self._limit)

    def _build_where(self, statement: Any, collection: Any) -> Any:
        store = self._query.store
        if not collection:
            raise ValueError("Collection not found")
        conditions = [store.EmbeddingStore.collection_id == collection.uuid, *self._conditions]
        own = self._query.kwargs.get(FILTER)
        if own and store.use_jsonb:
            clause = store._create_filter_clause(own)
            conditions += [clause] if clause is not None else []
        elif own:
            conditions += store._create_filter_clause_json_deprecated(own)
        return statement.where(*conditions)

    def rank(self) -> Sequence[Any]:
        """Return the nearest rows, their distances, and the number of approximate indexes."""
        return self._run(self._select_nearest)

    def list_rows(self) -> Sequence[Any]:
        """Return the rows."""
        return self._run(self._select_rows)

    async def arank(self) -> Sequence[Any]:
        """Return the nearest rows, their distances, and the number of approximate indexes."""
        return await self._arun(self._select_nearest)

    async def alist_rows(self) -> Sequence[Any]:
        """Return the rows."""
        return await self._arun(self._select_rows)

    def _run(self, make: Any) -> Sequence[Any]:
        store = self._query.store
        with store._make_sync_session() as session:
            statement = make(store.get_collection(session))
            rows: Sequence[Any] = session.execute(statement).all()
            return rows

    async def _arun(self, make: Any) -> Sequence[Any]:
        store = self._query.store
        if store._async_engine is None:  # it was made with a sync engine
            return await asyncio.to_thread(self._run, make)
        await store.__apost_init__()
        async with store._make_async_session() as session:
            statement = make(await store.aget_collection(session))
            rows: Sequence[Any] = (await session.execute(statement)).all()
            return rows


class PGVectorStoreProfile(StoreProfile):
    """``PGVectorStore``: a table with columns of the user's choice; hybrid in its own way."""

    def __init__(self) -> None:
        super().__init__(known=("hybrid_search_config",))

    def takes_vector(self, store: VectorStore) -> bool:
        """Whether the store is searched by the query's vector."""
        return True

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows, without those of units to exclude, as deep as the query asks."""
        self._check_known(query, FILTER)
        inner = _find_async_store(query.store)
        hybrid = query.kwargs.get("hybrid_search_config") or inner.hybrid_search_config
        if hybrid:
            return (yield from self._search_hybrid(query, hybrid))
        if query.depth > 1:
            raise NotImplementedError
        rows = yield MethodCall(_Table(query, ranked=True), "select_rows")
        exact = bool(rows) and (query.depth > 0 or not rows[0]["longrag_indexes"])
        found = [(_to_row_document(row, inner), row["longrag_distance"]) for row in rows]
        return Rows(found, exact, exact and len(found) < query.top_k)

    def _search_hybrid(self, query: DocumentQuery, hybrid: Any) -> Calls[Rows[Row]]:
        """Let the store fuse both of its rankings, each as long as what is asked for."""
        from dataclasses import replace

        if query.depth:
            raise NotImplementedError
        # Its class would keep the words of the first question in the settings it is given.
        own = replace(
            hybrid,
            fts_query=hybrid.fts_query or query.text,
            primary_top_k=max(hybrid.primary_top_k, query.top_k),
            secondary_top_k=max(hybrid.secondary_top_k, query.top_k),
            fusion_function_parameters={**hybrid.fusion_function_parameters},
        )
        kwargs: dict[str, Any] = {**query.kwargs, "k": query.top_k, "hybrid_search_config": own}
        if query.exclude:
            kwargs[FILTER] = _exclude_units(query)
        rows = yield MethodCall(query.store, BY_VECTOR, (list(query.vector or ()),), kwargs)
        return Rows(rows)

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return all rows whose unit is named by one of the values."""
        self._check_known(query, FILTER)
        rows = yield MethodCall(_Table(query, values, inside=True), "select_rows")
        return [_to_row_document(row, _find_async_store(query.store)) for row in rows]

    def has_other(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a row that passes and whose unit is named by none of the values."""
        self._check_known(query, FILTER)
        return bool((yield MethodCall(_Table(query, values, inside=False, limit=1), "select_rows")))


def _find_async_store(store: Any) -> Any:
    """Return the async store that does the work of a ``PGVectorStore``."""
    return getattr(store, "_PGVectorStore__vs", store)


def _exclude_units(query: DocumentQuery) -> dict[str, Any]:
    if not all(isinstance(value, str) for value in query.exclude):
        raise NotImplementedError  # its class would cast every row's value to one type
    added = {check_plain_key(query.unit_key): {"$nin": list(query.exclude)}}
    own = query.kwargs.get(FILTER)
    return {"$and": [own, added]} if own else added


def _quote(*names: str) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def _to_row_document(row: Any, inner: Any) -> Document:
    metadata = dict(row[inner.metadata_json_column] or {}) if inner.metadata_json_column else {}
    metadata |= {column: row[column] for column in inner.metadata_columns}
    return Document(
        id=str(row[inner.id_column]), page_content=row[inner.content_column], metadata=metadata
    )


class _Table:
    """One statement over the rows of the store's table that pass the user's filter."""

    def __init__(
        self,
        query: DocumentQuery,
        values: Sequence[Any] = (),
        *,
        inside: bool = False,
        ranked: bool = False,
        limit: int | None = None,
    ) -> None:
        self._query, self._inner = query, _find_async_store(query.store)
        self._ranked, self._limit = ranked, limit
        self._names = list(values) if inside else [*query.exclude, *values]
        self._inside = inside

    def _build_statement(self) -> tuple[Any, dict[str, Any]]:
        from sqlalchemy import text

        inner, query = self._inner, self._query
        columns = [inner.id_column, inner.content_column, *inner.metadata_columns]
        columns += [inner.metadata_json_column] if inner.metadata_json_column else []
        selected = [_quote(column) for column in columns]
        parameters: dict[str, Any] = {}
        where, order, limit = self._build_where(parameters), _quote(inner.id_column), self._limit
        if self._ranked:
            strategy, column = inner.distance_strategy, _quote(inner.embedding_column)
            parameters["vector"] = str([float(value) for value in query.vector or ()])
            selected.append(f"{strategy.search_function}({column}, :vector) AS longrag_distance")
            selected.append(f"({_INDEXES}) AS longrag_indexes")
            parameters["relation"] = _quote(inner.schema_name, inner.table_name)
            order = f"{column} {strategy.operator} :vector"
            if query.depth:
                # No index serves the order of an expression other than the distance itself.
                order = f"({order}) + 0"
            limit = query.top_k
        table = _quote(inner.schema_name, inner.table_name)
        statement = f"SELECT {', '.join(selected)} FROM {table} {where} ORDER BY {order}"
        if limit is not None:
            statement, parameters["most"] = f"{statement} LIMIT :most", limit
        return text(statement), parameters

    def _build_where(self, parameters: dict[str, Any]) -> str:
        conditions = []
        own = self._query.kwargs.get(FILTER)
        if own:
            clause, given = self._inner._create_filter_clause(own)
            conditions.append(f"({clause})")
            parameters |= given
        if self._names:
            operator = "= ANY" if self._inside else "<> ALL"
            conditions.append(f"{self._build_key(parameters)} {operator} (:names)")
            parameters["names"] = texts(self._names)
        return f"WHERE {' AND '.join(conditions)}" if conditions else ""

    def _build_key(self, parameters: dict[str, Any]) -> str:
        key = self._query.unit_key
        if key in self._inner.metadata_columns:
            return f"CAST({_quote(key)} AS TEXT)"
        if not self._inner.metadata_json_column:
            raise NotImplementedError
        parameters["key"] = key
        return f"({_quote(self._inner.metadata_json_column)} ->> CAST(:key AS TEXT))"

    def select_rows(self) -> Sequence[Any]:
        """Select the rows."""
        rows: Sequence[Any] = self._query.store._engine._run_as_sync(self._select())
        return rows

    async def aselect_rows(self) -> Sequence[Any]:
        """Select the rows."""
        engine = getattr(self._query.store, "_engine", None)
        if engine is None:  # it is the async store itself
            return await self._select()
        rows: Sequence[Any] = await engine._run_as_async(self._select())
        return rows

    async def _select(self) -> Sequence[Any]:
        from sqlalchemy import text

        statement, parameters = self._build_statement()
        options = self._inner.index_query_options if self._ranked else None
        async with self._inner.engine.connect() as connection:
            if not options:
                await connection.execution_options(**ONE_STATEMENT)
            for option in options.to_parameter() if options else ():
                await connection.execute(text(f"SET LOCAL {option};"))
            rows: Sequence[Any] = (
                (await connection.execute(statement, parameters)).mappings().fetchall()
            )
            return rows


_INDEXES = (
    "SELECT count(*) FROM pg_index JOIN pg_class ON pg_class.oid = pg_index.indexrelid"
    " JOIN pg_am ON pg_am.oid = pg_class.relam WHERE indrelid = to_regclass(:relation)"
    " AND amname NOT IN ('btree', 'hash', 'gin', 'gist', 'spgist', 'brin')"
)
