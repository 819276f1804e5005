"""Conditions on PostgreSQL rows as SQLAlchemy expressions, in which every value is a parameter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from longrag.integration.store_profiles import by_type

_EXHAUSTIVE: Final = ("btree", "hash", "gin", "gist", "spgist", "brin")
"""The index methods of PostgreSQL itself; none of them ranks vectors approximately."""

ONE_STATEMENT: Final = {"isolation_level": "AUTOCOMMIT"}
"""How a connection runs one statement, without the round trips that begin and end a transaction."""

DEEP: Final = 1000
"""The most that pgvector takes for ``hnsw.ef_search``."""


def json_text(column: Any, key: str) -> Any:
    """Return the text of the value under a key of a JSON column."""
    import sqlalchemy

    return column.op("->>")(sqlalchemy.literal(key, sqlalchemy.String))


def named(column: Any, key: str, values: Sequence[Any]) -> Any:
    """Return the condition that a JSON column has one of the values under a key.

    Raises:
        NotImplementedError: a value is not a string, boolean, integer or finite float.
    """
    return json_text(column, key).in_(texts(values))


def texts(values: Sequence[Any]) -> list[str]:
    """Write values as PostgreSQL gives the text of a JSON value.

    Raises:
        NotImplementedError: a value is not a string, boolean, integer or finite float.
    """
    return [
        value if isinstance(value, str) else json.dumps(value)
        for group in by_type(values)
        for value in group
    ]


def count_approximate_indexes(schema: str | None, table: str) -> Any:
    """Return a scalar subquery for the number of indexes that may rank vectors approximately."""
    import sqlalchemy
    from sqlalchemy import column, func, select
    from sqlalchemy import table as from_table
    from sqlalchemy.dialects.postgresql import OID

    index = from_table("pg_index", column("indexrelid"), column("indrelid")).alias("longrag_index")
    relation = from_table("pg_class", column("oid"), column("relam")).alias("longrag_relation")
    access = from_table("pg_am", column("oid"), column("amname")).alias("longrag_access")
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in (schema, table) if part)
    return (
        select(func.count())
        .select_from(
            index.join(relation, relation.c.oid == index.c.indexrelid).join(
                access, access.c.oid == relation.c.relam
            )
        )
        .where(
            index.c.indrelid
            == sqlalchemy.cast(
                func.to_regclass(sqlalchemy.literal(quoted, sqlalchemy.String)),
                OID,
            ),
            access.c.amname.not_in(_EXHAUSTIVE),
        )
        .scalar_subquery()
    )
