"""Indexes in a database: one SQLite file, or PostgreSQL, through SQLAlchemy.

An index is a set of items, bytes by part and key: documents, vectors, the nodes of a tree, paid
answers. Every change is one transaction that raises the index's generation by one; a change made
from an older generation is refused, so that none is lost. Readers compare generations and read
what is newer than what they know.
"""

from __future__ import annotations

import json
import os
import sqlite3
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from longrag.errors import (
    DatabaseError,
    IndexFormatError,
    InvalidParameterError,
    MissingExtraError,
)
from longrag.types import stable_id

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, MetaData, Row, Table

_VERSION: Final = 2
_KEYS_AT_ONCE = 500
_NEW_FILE = 0o600
_CACHE_NAME = 16
# The SHA-256 of an item's key in hexadecimal digits.
_KEY_LENGTH = 64
# Any number will do: two processes that make the tables at once must use the same.
_MAKING_TABLES: Final = 7_402_511_939


@dataclass(frozen=True, slots=True)
class Items:
    """What of an index is newer than a generation.

    Attributes:
        generation: the generation this is.
        about: what the last change said of the whole, JSON values.
        keys: by part the keys of all items there are, for the parts that were to be listed.
        new: by part the items that are newer, by key.
    """

    generation: int
    about: Mapping[str, Any]
    keys: Mapping[str, frozenset[str]]
    new: Mapping[str, Mapping[str, bytes]]


@dataclass(frozen=True, slots=True)
class ItemsChange:
    """A change of an index: by part, items to put in by key and keys to take out."""

    put: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    drop: Mapping[str, Iterable[str]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


class IndexDatabase:
    """One index in a database.

    Several processes and threads may use it, each with a separate object or one they share:
    many read while one writes, and another that writes waits.

    Args:
        database: the path of a SQLite file, which is made if it is missing, or a database URL of
            SQLAlchemy such as ``postgresql+psycopg://user:password@host/name``.
        name: the name of the index; a database may hold several.
        kind: what kind of index it is.
        timeout: seconds to wait for another writer.
        cache: the folder for what can be made again from the index and is mapped at the next
            opening. By default it is beside a SQLite file; for a server there is none. It can be
            deleted at any time.

    Raises:
        InvalidParameterError: ``database`` or ``name`` is not allowed.
        IndexFormatError: the file is damaged or no database of indexes, or of another version; it
            is left as it was. Or the name is that of an index of another kind.
        DatabaseError: the database cannot be reached or written.
        MissingExtraError: the extra ``database`` is not installed.
    """

    def __init__(
        self,
        database: str | os.PathLike[str],
        *,
        name: str,
        kind: str,
        timeout: float = 30.0,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(name, str) or not 1 <= len(name) <= _KEY_LENGTH or "\0" in name:
            raise InvalidParameterError("name", name, f"a string of 1 to {_KEY_LENGTH} characters")
        self.name = name
        self._kind = kind
        self._given = os.fspath(database) if isinstance(database, os.PathLike) else database
        self._timeout = timeout
        self._cache = cache
        self._engine, self._place = _engine(database, timeout)
        self._tables = _tables()
        weakref.finalize(self, self._engine.dispose)
        self._prepare()

    @property
    def path(self) -> Path | None:
        """The SQLite file; None for a server."""
        return Path(self._place) if self._engine.dialect.name == "sqlite" else None

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle where the database is, which another process opens for itself."""
        settings: Any = {"name": self.name, "kind": self._kind, "timeout": self._timeout}
        settings["cache"] = self._cache
        return partial(IndexDatabase, **settings), (self._given,)

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings the index was made with; one that is not there is made with these.

        Raises:
            IndexFormatError: the name is that of an index of another kind.
        """
        index = self._table("longrag_index")
        with self._transaction(write=True) as connection:
            row = self._row(connection)
            if row is None:
                values = {
                    "name": self.name,
                    "kind": self._kind,
                    "generation": 0,
                    "settings": json.dumps(dict(given)),
                    "about": "{}",
                }
                connection.execute(index.insert().values(values))
                return dict(given)
            return dict(json.loads(row.settings))

    def saved_settings(self) -> dict[str, Any]:
        """Return the settings the index was made with; none when it is not there."""
        with self._transaction() as connection:
            row = self._row(connection)
        return {} if row is None else dict(json.loads(row.settings))

    def generation(self) -> int:
        """Return the number of changes there were; 0 for an index that is not there."""
        with self._transaction() as connection:
            row = self._row(connection)
        return 0 if row is None else int(row.generation)

    def read(self, parts: Sequence[str], *, since: int = -1, listed: Sequence[str] = ()) -> Items:
        """Return what of some parts is newer than a generation, all of one moment.

        Args:
            parts: the parts.
            since: the generation.
            listed: the parts of which the keys of all items are returned as well.
        """
        item = self._table("longrag_item")
        keys: dict[str, frozenset[str]] = {}
        new: dict[str, Mapping[str, bytes]] = {}
        with self._transaction() as connection:
            row = self._row(connection)
            if row is None:
                raise IndexFormatError(f"{self._place} holds no index {self.name!r} any more")
            for part in listed:
                own = (item.c.index_name == self.name) & (item.c.part == part)
                found = connection.execute(item.select().with_only_columns(item.c.key).where(own))
                keys[part] = frozenset(key for (key,) in found)
            columns = item.select().with_only_columns(item.c.key, item.c.content)
            for part in parts:
                own = (item.c.index_name == self.name) & (item.c.part == part)
                newer = columns.where(own & (item.c.generation > since) if since >= 0 else own)
                new[part] = {key: bytes(content) for key, content in connection.execute(newer)}
        return Items(int(row.generation), json.loads(row.about), keys, new)

    def fetch(self, part: str, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the items of some keys of a part, of those that are there, all of one moment."""
        item = self._table("longrag_item")
        found: dict[str, bytes] = {}
        with self._transaction() as connection:
            for batch in _batches(keys):
                own = (item.c.index_name == self.name) & (item.c.part == part)
                columns = item.select().with_only_columns(item.c.key, item.c.content)
                rows = connection.execute(columns.where(own & item.c.key.in_(batch)))
                found |= {key: bytes(content) for key, content in rows}
        return found

    def cache_folder(self) -> Path | None:
        """Return the folder for what can be made again from the index; None where there is none."""
        if self._cache is not None:
            return Path(self._cache) / stable_id(self._place, self.name)[:_CACHE_NAME]
        if self._engine.dialect.name != "sqlite":
            return None
        return Path(f"{self._place}.cache") / stable_id(self.name)[:_CACHE_NAME]

    def write(self, change: ItemsChange, *, after: int) -> int | None:
        """Make a change in one transaction, and return the new generation.

        None tells that another change came first: the index is not of the generation ``after`` any
        more, and nothing was changed.

        Raises:
            DatabaseError: another writer did not finish in time, the disk is full, or the database
                cannot be reached. Nothing was changed, unless the connection was lost while the
                change was being committed; the next read tells.
        """
        index, item = self._table("longrag_index"), self._table("longrag_item")
        with self._transaction(write=True) as connection:
            row = self._row(connection, lock=True)
            if row is None or row.generation != after:
                return None
            generation = after + 1
            for part in {**change.put, **change.drop}:
                put = change.put.get(part, {})
                own = (item.c.index_name == self.name) & (item.c.part == part)
                for keys in _batches([*change.drop.get(part, ()), *put]):
                    connection.execute(item.delete().where(own & item.c.key.in_(keys)))
                for keys in _batches(put):
                    rows = [
                        {
                            "index_name": self.name,
                            "part": part,
                            "key": key,
                            "generation": generation,
                            "content": put[key],
                        }
                        for key in keys
                    ]
                    connection.execute(item.insert(), rows)
            about = json.dumps({**json.loads(row.about), **change.about})
            connection.execute(
                index.update()
                .where(index.c.name == self.name)
                .values(generation=generation, about=about)
            )
        self._empty_log()
        return generation

    def remove(self) -> None:
        """Take the whole index out of the database, in one transaction.

        Raises:
            DatabaseError: another writer did not finish in time, or the database cannot be reached.
        """
        index, item = self._table("longrag_index"), self._table("longrag_item")
        with self._transaction(write=True) as connection:
            connection.execute(item.delete().where(item.c.index_name == self.name))
            connection.execute(index.delete().where(index.c.name == self.name))
        self._empty_log()

    def _empty_log(self) -> None:
        """Bring SQLite's log into the file, since it still holds what was deleted.

        Where another process reads, that is left to the next change, or to who closes the file.
        """
        if self._engine.dialect.name != "sqlite":
            return
        connection = self._engine.raw_connection()
        try:
            (wait,) = connection.cursor().execute("PRAGMA busy_timeout").fetchone()
            connection.cursor().execute("PRAGMA busy_timeout = 0")
            with suppress(sqlite3.OperationalError):
                connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.cursor().execute(f"PRAGMA busy_timeout = {wait}")
        finally:
            connection.close()

    def compact(self) -> None:
        """Write a SQLite file again without its free space, where deleted text may be left.

        Other databases do this themselves; there nothing is done.

        Raises:
            DatabaseError: another process uses the file, or the disk is full. Nothing was changed.
        """
        if self._engine.dialect.name != "sqlite":
            return
        with _typed_errors(self._place):
            connection = self._engine.raw_connection()
            try:
                # Not in a transaction: SQLite does this outside of any.
                connection.cursor().execute("VACUUM")
            except sqlite3.OperationalError as error:
                raise DatabaseError(f"{self._place}: {error}") from error
            finally:
                connection.close()

    def _row(self, connection: Connection, *, lock: bool = False) -> Row[Any] | None:
        index = self._table("longrag_index")
        query = index.select().where(index.c.name == self.name)
        row = connection.execute(query.with_for_update() if lock else query).one_or_none()
        if row is not None and row.kind != self._kind:
            raise IndexFormatError(
                f"{self._place} holds an index {self.name!r} of kind {row.kind!r}, not "
                f"{self._kind!r}. Open it with its own class, or give another name."
            )
        return row

    def _table(self, name: str) -> Table:
        return self._tables.tables[name]

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[Connection]:
        with _typed_errors(self._place):
            options: dict[str, Any] = {"longrag_write": write}
            if not write and self._engine.dialect.name != "sqlite":
                # All that is read must be of one moment, as it is in SQLite.
                options["isolation_level"] = "REPEATABLE READ"
            with (
                self._engine.connect().execution_options(**options) as connection,
                connection.begin(),
            ):
                yield connection

    def _prepare(self) -> None:
        from sqlalchemy import inspect, text

        schema = self._table("longrag_schema")
        with self._transaction() as connection:
            names = set(inspect(connection).get_table_names())
        if schema.name not in names:
            if names and self._engine.dialect.name == "sqlite":
                raise IndexFormatError(
                    f"{self._place} is a database of something else: it has a table "
                    f"{min(names)!r}. It was left as it was. Give an index a file of its own."
                )
            with self._transaction(write=True) as connection:
                if self._engine.dialect.name == "postgresql":
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({_MAKING_TABLES})"))
                self._tables.create_all(connection)
                if connection.execute(schema.select()).first() is None:
                    connection.execute(schema.insert().values(version=_VERSION))
        with self._transaction() as connection:
            version = connection.execute(schema.select()).scalar_one_or_none()
        if version != _VERSION:
            raise IndexFormatError(
                f"{self._place} is in version {version} of the database format, and this release of"
                f" longrag reads version {_VERSION}. Use the release that made it, or build the"
                " index in another database."
            )


def _tables() -> MetaData:
    from sqlalchemy import (
        BigInteger,
        Column,
        Index,
        Integer,
        LargeBinary,
        MetaData,
        String,
        Table,
        Text,
    )

    made = MetaData()
    Table("longrag_schema", made, Column("version", Integer, nullable=False))
    Table(
        "longrag_index",
        made,
        Column("name", String(_KEY_LENGTH), primary_key=True),
        Column("kind", String(_KEY_LENGTH), nullable=False),
        Column("generation", BigInteger, nullable=False),
        Column("settings", Text, nullable=False),
        Column("about", Text, nullable=False),
    )
    Table(
        "longrag_item",
        made,
        Column("index_name", String(_KEY_LENGTH), primary_key=True),
        Column("part", String(_KEY_LENGTH), primary_key=True),
        Column("key", String(_KEY_LENGTH), primary_key=True),
        Column("generation", BigInteger, nullable=False),
        Column("content", LargeBinary, nullable=False),
        Index("longrag_newer", "index_name", "part", "generation"),
    )
    return made


def _engine(database: str | os.PathLike[str], timeout: float) -> tuple[Engine, str]:
    """Return what connects to a database, and how it is named in errors."""
    try:
        from sqlalchemy import create_engine, make_url
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    except ImportError as error:
        raise MissingExtraError("An index in a database", "database") from error
    if not isinstance(database, (str, os.PathLike)) or not os.fspath(database):
        raise InvalidParameterError("database", database, "the path of a file, or a database URL")
    if isinstance(database, str) and "://" in database and not database.startswith("sqlite:"):
        try:
            url = make_url(database)
            return create_engine(url, pool_pre_ping=True), url.render_as_string()
        except (ArgumentError, NoSuchModuleError) as error:
            raise InvalidParameterError(
                "database", "a URL", "a URL that SQLAlchemy knows"
            ) from error
        except ImportError as error:
            raise InvalidParameterError(
                "database",
                make_url(database).render_as_string(),
                f"usable here: {error}",
                "Install the driver that the URL names.",
            ) from error
    path = Path(os.fspath(database).removeprefix("sqlite:///"))
    if str(path) in (":memory:", ".") or path.is_dir() or not path.parent.is_dir():
        raise InvalidParameterError(
            "database", str(database), "the path of a file in a folder that exists"
        )
    return _sqlite_engine(path, timeout), str(path)


def _sqlite_engine(path: Path, timeout: float) -> Engine:
    from sqlalchemy import URL, create_engine, event

    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": timeout},
    )
    if not path.exists():
        with _typed_errors(str(path)):
            # What an index holds is its owner's alone, unless they say otherwise.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, _NEW_FILE))

    def set_up(connection: Any, _: object) -> None:
        # Transactions begin where SQLAlchemy begins them, and not with the first change.
        connection.isolation_level = None
        for pragma in ("synchronous = FULL", "secure_delete = ON"):
            connection.execute(f"PRAGMA {pragma}")

    def begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("longrag_write")
        if write:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    event.listen(engine, "connect", set_up)
    event.listen(engine, "begin", begin)
    return engine


@contextmanager
def _typed_errors(place: str) -> Iterator[None]:
    from sqlalchemy.exc import DBAPIError
    from sqlalchemy.exc import TimeoutError as PoolTimeoutError

    try:
        yield
    except DBAPIError as error:
        said = str(error.orig)
        if any(sign in said for sign in ("not a database", "malformed", "no such", "corrupt")):
            raise IndexFormatError(
                f"{place} is damaged, or no database of indexes: {said}. Restore it from a copy, or"
                " build the index in another file."
            ) from error
        if "locked" in said or "lock timeout" in said:
            said = "another process is writing to it. Wait until it has finished, and try again"
        raise DatabaseError(f"{place}: {said}") from error
    except (OSError, PoolTimeoutError) as error:
        raise DatabaseError(f"{place}: {error}") from error


def _batches(keys: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(keys)
    while batch := list(islice(rest, _KEYS_AT_ONCE)):
        yield batch
