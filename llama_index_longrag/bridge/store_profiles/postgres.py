"""PostgreSQL with pgvector, whose filters LlamaIndex's class writes into the text of its SQL.

No value goes that way here, not of the user's filters either: conditions are expressions with
parameters, which the class lets a function of the user's add to its statements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from llama_index.core.schema import BaseNode, NodeWithScore
from llama_index.core.vector_stores.types import MetadataFilters, VectorStoreQueryMode
from llama_index.core.vector_stores.utils import metadata_dict_to_node

from llama_index_longrag.bridge.store_profiles.base import (
    NodeQuery,
    StoreProfile,
    filter_by_documents,
)
from llama_index_longrag.bridge.store_profiles.sql_filters import filter_condition
from longrag.integration.answering import Calls, MethodCall
from longrag.integration.postgres import DEEP, ONE_STATEMENT, count_approximate_indexes, named
from longrag.integration.store_profiles import Rows

_INDEXES: Final = "longrag_approximate_indexes"
_CUSTOM: Final = "custom_fields"

Condition = Callable[[Any], Any]
"""Makes a condition from the class of the table."""


class PostgresProfile(StoreProfile):
    """``PGVectorStore``: exact without an index; with one, a search of depth 2 does not use it.

    One of depth 1 has ``hnsw.ef_search`` at its largest. Every search asks beside its rows whether
    there is an index, so that the answer holds for this search.
    """

    def __init__(self) -> None:
        super().__init__(tuning=("hnsw_ef_search", "ivfflat_probes"))

    def search(self, query: NodeQuery) -> Calls[Rows[NodeWithScore]]:
        """Rank rows, without those of units to exclude, as deep as the query asks."""
        own: Any = query.store
        if query.depth > 2 or (query.depth == 1 and not own.hnsw_kwargs):
            raise NotImplementedError
        if query.depth == 1:
            kwargs = {**query.settings.kwargs, "hnsw_ef_search": DEEP}
            query = replace(query, settings=replace(query.settings, kwargs=kwargs))
        conditions = [*_own_conditions(query.settings.filters), *_to_exclusions(query)]
        store = _customize_statements(query.store, conditions, exhaustive=query.depth == 2)
        plain = replace(query, settings=replace(query.settings, filters=None))
        rows = yield from self._rank(plain, store)
        indexes = [_pop_index_flag(row.node) for row in rows]
        dense = query.settings.mode == _DENSE
        exact = dense and bool(rows) and (query.depth == 2 or not any(indexes))
        return Rows(rows, exact, exact and len(rows) < query.top_k)

    def list_chunks(self, query: NodeQuery, values: Sequence[Any]) -> Calls[Sequence[BaseNode]]:
        """Return all nodes whose unit is named by one of the values."""
        wanted = _match_values(query.unit_key, values)
        rows = yield MethodCall(_Table(query, self.own_filters(query), wanted), "rows")
        return filter_by_documents(query, [_node(row) for row in rows])

    def has_other(self, query: NodeQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a node that passes and whose unit is named by none of the values."""
        if query.settings.doc_ids is not None:
            raise NotImplementedError
        named_ = _match_values(query.unit_key, values)
        wanted = (lambda table: ~named_(table)) if values else None
        table = _Table(query, self.own_filters(query), wanted, limit=1)
        return bool((yield MethodCall(table, "rows")))


_DENSE: Final = VectorStoreQueryMode.DEFAULT


def _match_values(key: str, values: Sequence[Any]) -> Condition:
    return lambda table: named(table.metadata_, key, values)


def _own_conditions(filters: MetadataFilters | None) -> list[Condition]:
    if filters is None or not filters.filters:
        return []
    own = filters  # which is not None within the function, either
    return [lambda table: filter_condition(table.metadata_, own)]


def _to_exclusions(query: NodeQuery) -> list[Condition]:
    if not query.exclude:
        return []
    excluded = _match_values(query.unit_key, query.exclude)
    return [lambda table: ~excluded(table)]


def _customize_statements(store: Any, conditions: Sequence[Condition], *, exhaustive: bool) -> Any:
    """Return the store with further conditions, and whether it has an index, in its statements."""
    store._initialize()  # a copy that is not connected would connect for every question
    own = store._customize_query_fn

    def customize(statement: Any, table: Any, **kwargs: Any) -> Any:
        if own is not None:
            statement = own(statement, table, **kwargs)
        for condition in conditions:
            statement = statement.where(condition(table))
        distance = statement.selected_columns.get("distance")
        if distance is None:
            return statement
        if exhaustive:
            # No index serves the order of an expression other than the distance itself.
            statement = statement.order_by(None).order_by(distance.element + 0)
        counted = count_approximate_indexes(store.schema_name, table.__tablename__)
        return statement.add_columns(counted.label(_INDEXES))

    changed = store.model_copy()
    changed._customize_query_fn = customize
    return changed


def _pop_index_flag(node: BaseNode) -> bool:
    """Take out of a node what was selected beside its columns: whether there are indexes."""
    custom = dict(node.metadata.get(_CUSTOM) or {})
    indexes = custom.pop(_INDEXES, 1)
    if custom:
        node.metadata[_CUSTOM] = custom
    else:
        node.metadata.pop(_CUSTOM, None)
    return bool(indexes)


class _Table:
    """Rows of the store's table, without a ranking."""

    def __init__(
        self,
        query: NodeQuery,
        filters: MetadataFilters | None,
        wanted: Condition | None,
        limit: int | None = None,
    ) -> None:
        self._store: Any = query.store
        self._filters, self._wanted, self._limit = filters, wanted, limit

    def _statement(self) -> Any:
        from sqlalchemy import select

        self._store._initialize()
        table = self._store._table_class
        statement = select(table.node_id, table.text, table.metadata_)
        for condition in _own_conditions(self._filters):
            statement = statement.where(condition(table))
        if self._wanted is not None:
            statement = statement.where(self._wanted(table))
        return statement.order_by(table.id).limit(self._limit)

    def rows(self) -> Sequence[Any]:
        """Select them."""
        with self._store._session() as session:
            session.connection(execution_options=ONE_STATEMENT)
            rows: Sequence[Any] = session.execute(self._statement()).all()
            return rows

    async def arows(self) -> Sequence[Any]:
        """Select them."""
        async with self._store._async_session() as session:
            await session.connection(execution_options=ONE_STATEMENT)
            rows: Sequence[Any] = (await session.execute(self._statement())).all()
            return rows


def _node(row: Any) -> BaseNode:
    node = metadata_dict_to_node(row.metadata_)
    node.set_content(str(row.text))
    return node
