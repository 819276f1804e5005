"""Databases whose filters are text, which no value enters but as a literal: Milvus and LanceDB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from llama_index.core.schema import BaseNode, NodeWithScore
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryMode
from llama_index.core.vector_stores.utils import metadata_dict_to_node

from llama_index_longrag.bridge.store_profiles.base import (
    NodeQuery,
    StoreProfile,
    filter_by_documents,
)
from longrag.integration.answering import Calls, MethodCall
from longrag.integration.store_profiles import (
    MILVUS_MOST,
    Rows,
    check_plain_key,
    lance_indexes,
    milvus_is_flat,
    milvus_literals,
    sql_literal,
)

_DENSE: Final = VectorStoreQueryMode.DEFAULT

# Enough for every partition of an inverted file.
_ALL_PARTITIONS: Final = 1 << 16


class MilvusProfile(StoreProfile):
    """Milvus: conditions are one expression beside the user's; Milvus Lite ranks exhaustively."""

    def __init__(self) -> None:
        super().__init__(tuning=("milvus_search_config",))

    def search(self, query: NodeQuery) -> Calls[Rows[NodeWithScore]]:
        """Rank rows, without those of units to exclude."""
        if query.depth:
            raise NotImplementedError
        adjusted = replace(query, top_k=min(query.top_k, MILVUS_MOST))
        if query.exclude:
            own = query.settings
            excluded = _write_in(query.unit_key, query.exclude, negated=True)
            kwargs = {**own.kwargs, "string_expr": _join_and(_own_expression(query), excluded)}
            kwargs.pop("milvus_scalar_filters", None)
            settings = replace(own, filters=None, doc_ids=None, kwargs=kwargs)
            adjusted = replace(adjusted, settings=settings)
        rows = yield from self._rank(adjusted, query.store)
        store: Any = query.store
        exact = query.settings.mode == _DENSE and (
            yield from milvus_is_flat(
                store.client, store.uri, store.collection_name, store.embedding_field
            )
        )
        return Rows(rows, exact, exact and len(rows) < adjusted.top_k)

    def list_chunks(self, query: NodeQuery, values: Sequence[Any]) -> Calls[Sequence[BaseNode]]:
        """Return all nodes whose unit is named by one of the values."""
        self.own_filters(query)
        expression = _join_and(_own_expression(query), _write_in(query.unit_key, values))
        items = yield MethodCall(_Entities(query.store, expression, MILVUS_MOST), "items")
        if len(items) >= MILVUS_MOST:
            raise NotImplementedError  # there may be more than one answer holds
        return [_milvus_node(item, query.store) for item in items]

    def has_other(self, query: NodeQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a node that passes and whose unit is named by none of the values."""
        self.own_filters(query)
        other = _write_in(query.unit_key, values, negated=True) if values else ""
        expression = _join_and(_own_expression(query), other)
        return bool((yield MethodCall(_Entities(query.store, expression, 1), "items")))


def _write_in(key: str, values: Sequence[Any], *, negated: bool = False) -> str:
    return f"{check_plain_key(key)} {'not ' * negated}in [{milvus_literals(values)}]"


def _join_and(own: str, added: str) -> str:
    return f"({own}) and ({added})" if own and added else own or added


def _own_expression(query: NodeQuery) -> str:
    """Return the user's own filters as the store's class writes them."""
    from llama_index.vector_stores.milvus.base import _to_milvus_filter

    own, parts = query.settings, []
    scalar = own.kwargs.get("milvus_scalar_filters")
    if own.node_ids is not None:
        raise NotImplementedError
    if own.filters is not None or scalar is not None:
        parts.append(_to_milvus_filter(own.filters, scalar))
    elif own.kwargs.get("string_expr"):
        parts.append(own.kwargs["string_expr"])
    if own.doc_ids:
        store: Any = query.store
        parts.append(f"{store.doc_id_field} in [{milvus_literals(own.doc_ids)}]")
    return " and ".join(f"({part})" for part in parts)


class _Entities:
    """Rows of the store's collection, without a ranking."""

    def __init__(self, store: BasePydanticVectorStore, expression: str, limit: int) -> None:
        self._store: Any = store
        self._expression, self._limit = expression, limit

    def items(self) -> Sequence[Any]:
        """Select them."""
        found: Sequence[Any] = self._store.client.query(
            collection_name=self._store.collection_name,
            filter=self._expression,
            output_fields=["*"],
            limit=self._limit,
        )
        return found


def _milvus_node(item: Any, store: Any) -> BaseNode:
    text = item.get(store.text_key)
    return metadata_dict_to_node(dict(item), text=text)


class LanceProfile(StoreProfile):
    """LanceDB: conditions are SQL; without a vector index every row that passes is compared.

    With one, a search of depth 1 probes every partition of the index.
    """

    def __init__(self) -> None:
        super().__init__()

    def search(self, query: NodeQuery) -> Calls[Rows[NodeWithScore]]:
        """Rank rows, without those of units to exclude, as deep as the query asks."""
        store: Any = query.store
        indexed = lance_indexes(store.table)
        if query.depth > int(indexed):
            raise NotImplementedError
        if query.depth:
            store = store.model_copy(update={"nprobes": _ALL_PARTITIONS})
        dense = query.settings.mode == _DENSE and store.query_type == "vector"
        exact = dense and not indexed and store.overfetch_factor >= 1
        adjusted = query
        own = _own_condition(query)
        if own or query.exclude:
            excluded = (
                _write_sql_in(query.unit_key, query.exclude, "NOT IN") if query.exclude else ""
            )
            kwargs = {**query.settings.kwargs, "where": _sql_join_and(own, excluded)}
            settings = replace(query.settings, filters=None, kwargs=kwargs)
            adjusted = replace(query, settings=settings)
        try:
            rows = yield from self._rank(adjusted, store)
        except Warning:  # what its class raises for an empty result
            rows = []
        return Rows(rows[: query.top_k], exact, exact and len(rows) < query.top_k)

    def list_chunks(self, query: NodeQuery, values: Sequence[Any]) -> Calls[Sequence[BaseNode]]:
        """Return all nodes whose unit is named by one of the values."""
        condition = _sql_join_and(
            _own_condition(query), _write_sql_in(query.unit_key, values, "IN")
        )
        rows = yield MethodCall(_LanceRows(query.store, condition, None), "rows")
        return filter_by_documents(query, [metadata_dict_to_node(row["metadata"]) for row in rows])

    def has_other(self, query: NodeQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a node that passes and whose unit is named by none of the values."""
        if query.settings.doc_ids is not None:
            raise NotImplementedError
        other = _write_sql_in(query.unit_key, values, "NOT IN") if values else ""
        condition = _sql_join_and(_own_condition(query), other)
        return bool((yield MethodCall(_LanceRows(query.store, condition, 1), "rows")))

    def is_made(self, store: BasePydanticVectorStore) -> bool:
        """Whether there is a table, which is made with the first row."""
        own: Any = store
        return own._table is not None

    def delete_nodes(self, store: BasePydanticVectorStore, node_ids: Sequence[str]) -> None:
        """Take nodes out of a store by their ids, which its class would take for columns."""
        table: Any = getattr(store, "table", None)
        table.delete(_write_ids(node_ids))

    def read_vectors(
        self, store: BasePydanticVectorStore, node_ids: Sequence[str]
    ) -> dict[str, Sequence[float] | None]:
        """Return the vectors of the nodes that are there; its class takes ids for columns."""
        own: Any = store
        column = own.vector_column_name
        found = own.table.search().where(_write_ids(node_ids)).limit(len(node_ids))
        return {row["id"]: row[column] for row in found.select(["id", column]).to_list()}


def _write_ids(node_ids: Sequence[str]) -> str:
    return f"id IN ({', '.join(sql_literal(node_id) for node_id in node_ids)})"


def _write_sql_in(key: str, values: Sequence[Any], operator: str) -> str:
    literals = ", ".join(sql_literal(value) for value in values)
    return f"metadata.{check_plain_key(key)} {operator} ({literals})"


def _sql_join_and(own: str, added: str) -> str:
    return f"({own}) AND ({added})" if own and added else own or added


def _own_condition(query: NodeQuery) -> str:
    from llama_index.vector_stores.lancedb.base import _to_lance_filter

    own, store = query.settings, query.store
    if own.node_ids is not None:
        raise NotImplementedError
    where = str(own.kwargs.get("where") or "")
    if own.filters is None:
        return where
    return _sql_join_and(where, _write_nested(own.filters, _to_lance_filter, store))


def _write_nested(filters: Any, write: Any, store: Any) -> str:
    """Write filters as the store's class does, which knows none within others."""
    from llama_index.core.vector_stores.types import MetadataFilters

    parts = []
    for one in filters.filters:
        if isinstance(one, MetadataFilters):
            parts.append(f"({_write_nested(one, write, store)})")
        else:
            parts.append(write(MetadataFilters(filters=[one]), store._metadata_keys))
    return f" {str(filters.condition.value).upper()} ".join(parts)


class _LanceRows:
    """Rows of the store's table, without a ranking."""

    def __init__(self, store: Any, condition: str, limit: int | None) -> None:
        self._store, self._condition, self._limit = store, condition, limit

    def rows(self) -> Sequence[Any]:
        """Select them."""
        table = self._store.table
        limit = self._limit or max(table.count_rows(), 1)
        found = table.search().limit(limit)
        if self._condition:
            found = found.where(self._condition)
        rows: Sequence[Any] = found.select(["id", "metadata"]).to_list()
        return rows
