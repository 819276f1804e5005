"""Indexes in a database: one SQLite file, or PostgreSQL, through SQLAlchemy.

An index is a set of items. An item is bytes under a key, in one of the parts of the index:
documents, vectors, the nodes of a tree. Every change is one transaction that raises the generation
of the index by one. A change that was made from an older generation is refused, so that no other
change is lost. Readers compare generations, and read what is newer than what they have.
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
from longrag.journal_storage import Server
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
    """The items of an index that are newer than a generation.

    Attributes:
        generation: the present generation of the index.
        about: what changes have recorded about the whole index, as JSON values.
        keys: the keys of all present items of each part whose keys were asked for.
        new: the newer items of each part, by key.
    """

    generation: int
    about: Mapping[str, Any]
    keys: Mapping[str, frozenset[str]]
    new: Mapping[str, Mapping[str, bytes]]


@dataclass(frozen=True, slots=True)
class ItemsChange:
    """A change of an index.

    Attributes:
        put: the items to put in, by part and key; they replace those of the same keys.
        drop: the keys of the items to take out, by part.
        about: what to record about the whole index, as JSON values.
    """

    put: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    drop: Mapping[str, Iterable[str]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


class IndexDatabase:
    """One index in a database.

    Several processes and threads may use it, each with an object of this class or with one that
    they share. Many read while one writes; a second writer waits for the first.

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
        IndexFormatError: the file is damaged, is not a database of indexes, or has another
            version; it is left as it was. Or the index of this name is of another kind.
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

    def journal_place(self) -> Path | Server:
        """Return where paid answers are kept beside the index: its file, or its server."""
        return self.path or Server(self._place, self._engine.connect)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """Pickle where the database is, which another process opens for itself."""
        settings: Any = {"name": self.name, "kind": self._kind, "timeout": self._timeout}
        settings["cache"] = self._cache
        return partial(IndexDatabase, **settings), (self._given,)

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings the index was made with, and make it with these where it is missing.

        Raises:
            IndexFormatError: the index of this name is of another kind.
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
        """Return the settings the index was made with; an empty dict where there is no index."""
        with self._transaction() as connection:
            row = self._row(connection)
        return {} if row is None else dict(json.loads(row.settings))

    def generation(self) -> int:
        """Return how often the index was changed; 0 where there is no index."""
        with self._transaction() as connection:
            row = self._row(connection)
        return 0 if row is None else int(row.generation)

    def read(self, parts: Sequence[str], *, since: int = -1, listed: Sequence[str] = ()) -> Items:
        """Return the items of some parts that are newer than a generation, as of one moment.

        Args:
            parts: the parts to read.
            since: the generation; -1 for all items.
            listed: the parts whose keys are returned for all items, newer or not.

        Raises:
            IndexFormatError: the index was removed.
        """
        item = self._table("longrag_item")
        keys: dict[str, frozenset[str]] = {}
        new: dict[str, Mapping[str, bytes]] = {}
        with self._transaction() as connection:
            row = self._row(connection)
            if row is None:
                raise IndexFormatError(f"{self._place} no longer holds the index {self.name!r}")
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
        """Return the items under some keys of a part, as of one moment, without missing ones."""
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
        """Return the index's cache folder, whose files can be deleted; None without a cache."""
        if self._cache is not None:
            return Path(self._cache) / stable_id(self._place, self.name)[:_CACHE_NAME]
        if self._engine.dialect.name != "sqlite":
            return None
        return Path(f"{self._place}.cache") / stable_id(self.name)[:_CACHE_NAME]

    def write(self, change: ItemsChange, *, after: int) -> int | None:
        """Make a change in one transaction, and return the new generation.

        None means that another change came first: the generation is no longer ``after``, and
        nothing was changed.

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
        """Remove the whole index from the database, in one transaction.

        Raises:
            DatabaseError: another writer did not finish in time, or the database cannot be reached.
        """
        index, item = self._table("longrag_index"), self._table("longrag_item")
        with self._transaction(write=True) as connection:
            connection.execute(item.delete().where(item.c.index_name == self.name))
            connection.execute(index.delete().where(index.c.name == self.name))
        self._empty_log()

    def _empty_log(self) -> None:
        """Move SQLite's log into the file and empty it, since it still holds deleted text.

        While another process reads this is not possible. The next change does it then, or the
        last process that closes the file.
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
        """Rewrite a SQLite file without its free space, where deleted text may be left.

        Nothing is done for other databases, which reuse their free space themselves.

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
                # All reads of a transaction must see one moment, as they do in SQLite.
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
                    f"{self._place} is a database of another program: it has a table "
                    f"{min(names)!r}. It was left as it was. Give the path of another file."
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
                f"{self._place} has version {version} of the database format, and this release of"
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
            # Only the owner may read the file, until they change its mode.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, _NEW_FILE))

    def set_up(connection: Any, _: object) -> None:
        # A transaction must begin where SQLAlchemy begins it, not at the first change.
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
                f"{place} is damaged, or is not a database of indexes: {said}. Restore it from a"
                " copy, or build the index in another file."
            ) from error
        if "locked" in said or "lock timeout" in said:
            said = "another process is writing to it. Wait until it has finished, then try again"
        raise DatabaseError(f"{place}: {said}") from error
    except (OSError, PoolTimeoutError) as error:
        raise DatabaseError(f"{place}: {error}") from error


def _batches(keys: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(keys)
    while batch := list(islice(rest, _KEYS_AT_ONCE)):
        yield batch
