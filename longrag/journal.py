"""Paid answers, committed as they come.

A journal is one SQLite file: the answer to a prompt is stored before anything is built on it, so
that a build which was killed is resumed by running it again, and only calls in flight at that
moment are paid twice. Each entry has a checksum over its key and its content, since SQLite checks
neither. Deleting a document removes every answer made from it, and SQLite overwrites the freed
pages with zeros.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from longrag import claims
from longrag.errors import EmbeddingError, GenerationError, InvalidParameterError, JournalError
from longrag.types import LARGEST_VALUE, stable_id

Vector: TypeAlias = NDArray[np.float32]

ANY_DOCUMENT: Final = "\x00any document"
"""The source of an answer made from too many documents to list; purging any document removes it."""

_VERSION = 4
_APPLICATION_ID = 0x4C52_4A31
_HEADER_BYTES = 100
_SMALLEST_BUDGET = 1 << 16

_INDEX_TABLE = "longrag_schema"
_UNLESS_THERE = "WHERE NOT EXISTS (SELECT 1 FROM journal)"

_ANSWER, _VECTOR = 0, 1

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE,"
    " kind INTEGER NOT NULL, content BLOB NOT NULL, checksum BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS sources (source BLOB, key BLOB, PRIMARY KEY (source, key))"
    " WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS sources_by_key ON sources (key)",
    claims.SCHEMA,
)


# Locked while this process creates or opens a journal.
_opening = threading.Lock()


class Journal:
    """Answers by prompt, durable after every ``put``.

    One file may hold several models, and several threads and processes may use it at once: a call
    that one of them has *claimed* is not made by the others, who take its answer. The file is
    created with mode 0600. A closed journal raises ``JournalError``.

    Args:
        path: the file; it is created when it is missing or empty. That of an index in a database
            may be given: the answers are then kept in it beside the index.
        model: names the language model and the settings that change its answers. Entries made under
            another name are never returned.
        embed_model: names the embedding model in the same way.
        max_bytes: the most bytes of entries to keep, None for no limit. Beyond it the oldest
            entries are removed; their calls are paid again when they are needed again.

    Raises:
        InvalidParameterError: ``max_bytes`` is not an integer of at least 65,536.
        JournalError: the file is not a journal, is of another version, or cannot be used.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        model: str = "",
        embed_model: str = "",
        max_bytes: int | None = None,
    ) -> None:
        check_budget(max_bytes)
        self.path = Path(path)
        self._model = model
        self._embed_model = embed_model
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._claimant = claims.Claimant()
        self._connection: sqlite3.Connection | None = None
        self._in_index = False
        try:
            with _opening:
                self._create()
                self._connection = sqlite3.connect(self.path, timeout=30, check_same_thread=False)
                self._prepare(self._connection)
        except (OSError, sqlite3.Error, UnicodeError) as error:
            self._shut()
            raise JournalError(f"cannot open the journal {self.path}: {error}") from error
        except JournalError:
            self._shut()
            raise

    def _create(self) -> None:
        """Make the file with its mode, before SQLite would under the caller's umask."""
        try:
            # Opening and closing an existing file would drop the locks that other journals of this
            # process hold on it.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            status = self.path.stat()
            # SQLite takes a file of one byte for an empty database.
            if not stat.S_ISREG(status.st_mode) or 0 < status.st_size < _HEADER_BYTES:
                raise JournalError(f"{self.path} is not a journal: name another path") from None

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA synchronous = FULL")
        # Two processes may create one journal: its check and its creation are one transaction.
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            self._check(connection)
            for statement in _SCHEMA:
                connection.execute(statement)
            if self._in_index:
                connection.execute(f"INSERT INTO journal SELECT {_VERSION} {_UNLESS_THERE}")
            else:
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("PRAGMA journal_mode = WAL")

    def _check(self, connection: sqlite3.Connection) -> None:
        named = "SELECT count(*) FROM sqlite_master WHERE name = ?"
        (indexes,) = connection.execute(named, (_INDEX_TABLE,)).fetchone()
        self._in_index = bool(indexes)
        if self._in_index:
            connection.execute("CREATE TABLE IF NOT EXISTS journal (version INTEGER NOT NULL)")
            versions = connection.execute("SELECT version FROM journal").fetchall()
            if versions not in ([], [(_VERSION,)]):
                raise JournalError(
                    f"{self.path} has paid answers of another version than this release reads,"
                    f" {_VERSION}: name another path for the journal"
                )
            return
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != _APPLICATION_ID and (application or version or objects):
            raise JournalError(f"{self.path} is an SQLite file of another kind: name another path")
        if application == _APPLICATION_ID and version != _VERSION:
            remedy = "upgrade longrag" if version > _VERSION else "remove it"
            raise JournalError(
                f"{self.path} has journal version {version}, this release reads {_VERSION}:"
                f" {remedy}, or name another path"
            )

    def get(self, prompt: str) -> str | None:
        """Return the stored answer to a prompt, or None."""
        with self._use() as connection:
            stored = self._read_content(connection, _ANSWER, self.answer_key(prompt))
        return None if stored is None else stored.decode("utf-8", "surrogatepass")

    def put(self, prompt: str, answer: str, *, sources: Iterable[str] = ()) -> str:
        """Commit an answer and return it; the first answer stored for a prompt is kept.

        Returns what is stored, so that two processes which sent one prompt use the same answer.

        Raises:
            GenerationError: ``answer`` is not a string.
            JournalError: the answer could not be written, for instance on a full disk.
        """
        if not isinstance(answer, str):
            raise GenerationError(f"a model's answer must be a string, got {answer!r}")
        key = self.answer_key(prompt)
        self._write(_ANSWER, [key], [_encode(answer)], [sources])
        with self._use() as connection:
            stored = self._read_content(connection, _ANSWER, key)
        # Another process may have purged it since.
        return answer if stored is None else stored.decode("utf-8", "surrogatepass")

    def get_vectors(self, texts: Sequence[str], *, role: str) -> list[Vector | None]:
        """Return the stored vector of each text, or None in its place."""
        found: list[Vector | None] = []
        with self._use() as connection:
            for text in texts:
                stored = self._read_content(connection, _VECTOR, self.vector_key(text, role))
                found.append(None if stored is None else np.frombuffer(stored, dtype="<f4"))
        return found

    def put_vectors(
        self,
        texts: Sequence[str],
        vectors: ArrayLike,
        *,
        role: str,
        sources: Sequence[Iterable[str]],
    ) -> list[Vector]:
        """Commit the vectors of texts and return what is stored; the first of a text is kept.

        Args:
            texts: what was embedded.
            vectors: shape (texts, width), rounded to float32.
            role: "document" or "query".
            sources: the ids of the documents each text was made from.

        Raises:
            EmbeddingError: there is not one finite vector of one width for each text.
            JournalError: they could not be written.
        """
        rows = [row.astype("<f4").tobytes() for row in _rows(vectors, len(texts))]
        self._write(_VECTOR, [self.vector_key(text, role) for text in texts], rows, sources)
        # Another process may have purged them since.
        return [
            np.frombuffer(row, dtype="<f4") if stored is None else stored
            for row, stored in zip(rows, self.get_vectors(texts, role=role), strict=True)
        ]

    def _write(
        self,
        kind: int,
        keys: Sequence[bytes],
        contents: Sequence[bytes],
        sources: Sequence[Iterable[str]],
    ) -> None:
        entries = [
            (key, kind, content, _checksum(kind, key, content))
            for key, content in zip(keys, contents, strict=True)
        ]
        named = [
            (_encode(source), key) for key, own in zip(keys, sources, strict=True) for source in own
        ]
        with self._use() as connection, connection:
            connection.executemany(
                "INSERT OR IGNORE INTO entries (key, kind, content, checksum) VALUES (?, ?, ?, ?)",
                entries,
            )
            connection.executemany("INSERT OR IGNORE INTO sources VALUES (?, ?)", named)
            self._claimant.release(connection, keys)
            self._keep_budget(connection)

    def _keep_budget(self, connection: sqlite3.Connection) -> None:
        """Remove the oldest entries until the others fit into ``max_bytes``; the newest is kept."""
        while (
            self._max_bytes is not None
            and _count_bytes(connection, in_index=self._in_index) > self._max_bytes
        ):
            oldest = connection.execute(
                "SELECT key FROM entries WHERE number < (SELECT max(number) FROM entries)"
                " ORDER BY number LIMIT 8"
            ).fetchall()
            if not oldest:
                return
            connection.executemany("DELETE FROM entries WHERE key = ?", oldest)
            connection.executemany("DELETE FROM sources WHERE key = ?", oldest)

    def claim(self, keys: Sequence[bytes]) -> bool:
        """Claim calls that are about to be made, all of them or none.

        Returns False when another run has claimed one of them. A claim ends when its entry is
        written, by ``release`` or ``close``, when its process has ended, and in any case after
        ``longrag.claims.CLAIM_SECONDS``: then the call may be made twice, and the first answer is
        kept.
        """
        with self._use() as connection:
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                return self._claimant.claim(connection, keys)

    def release(self, keys: Sequence[bytes]) -> None:
        """Give up claims of this journal, for calls that failed or were not made."""
        with self._use() as connection, connection:
            self._claimant.release(connection, keys)

    def purge(self, *sources: str) -> int:
        """Remove all that was made from any of these documents, whatever its model.

        Entries with the source ``ANY_DOCUMENT`` are removed too, unless no document is given.
        Returns how many answers and vectors these were.

        Raises:
            JournalError: the file is damaged, so that something made from them may be left.
        """
        every = (*sources, ANY_DOCUMENT) if sources else ()
        with self._use() as connection:
            with connection:
                if every:
                    self._check_sources(connection)
                removed = sum(self._remove(connection, source) for source in every)
            # Deleted text would otherwise live on in the write-ahead log.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return removed

    def _check_sources(self, connection: sqlite3.Connection) -> None:
        """Raise ``JournalError`` if an entry of the table of sources is damaged."""
        # The index by key holds every row a second time.
        if connection.execute("PRAGMA integrity_check(sources)").fetchone() != ("ok",):
            raise self._damage_error()

    def _remove(self, connection: sqlite3.Connection, source: str) -> int:
        keys = connection.execute(
            "SELECT key FROM sources WHERE source = ?", (_encode(source),)
        ).fetchall()
        removed = connection.executemany("DELETE FROM entries WHERE key = ?", keys).rowcount
        if keys and removed != len(keys):
            raise self._damage_error()
        connection.executemany("DELETE FROM sources WHERE key = ?", keys)
        return len(keys)

    def __len__(self) -> int:
        with self._use() as connection:
            counted = connection.execute(
                "SELECT count(*) FROM entries WHERE kind = ?", (_ANSWER,)
            ).fetchone()
        return int(counted[0])

    def close(self) -> None:
        """Close the file once pending writes are done; closing twice is harmless."""
        with self._lock:
            if self._connection is not None:
                # A claim that cannot be removed now expires.
                with suppress(sqlite3.Error), self._connection:
                    self._claimant.leave(self._connection)
        self._shut()

    def _shut(self) -> None:
        self._claimant.forget()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read_content(self, connection: sqlite3.Connection, kind: int, key: bytes) -> bytes | None:
        """Return what is stored under a key, as it was written."""
        row = connection.execute(
            "SELECT content, checksum FROM entries WHERE key = ?", (key,)
        ).fetchone()
        if row is None:
            return None
        content, checksum = row
        if not isinstance(content, bytes) or checksum != _checksum(kind, key, content):
            raise self._damage_error()
        return content

    def _damage_error(self) -> JournalError:
        return JournalError(
            f"the journal {self.path} is damaged: an entry is not what was written. Restore the"
            " file from a copy, or remove it and pay again"
        )

    def answer_key(self, prompt: str) -> bytes:
        """Return the key of a prompt's answer."""
        digest = sha256(len(self._model).to_bytes(8, "big"))
        digest.update(_encode(self._model))
        digest.update(_encode(prompt))
        return digest.digest()

    def vector_key(self, text: str, role: str) -> bytes:
        """Return the key of a text's vector."""
        return bytes.fromhex(stable_id("vector", self._embed_model, role, text))

    @contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._connection is None:
                raise JournalError(f"the journal {self.path} is closed")
            try:
                yield self._connection
            except (sqlite3.Error, UnicodeError) as error:
                raise JournalError(f"the journal {self.path} failed: {error}") from error


def check_budget(max_bytes: object, parameter: str = "max_bytes") -> None:
    """Raise ``InvalidParameterError`` unless a journal can keep to this many bytes."""
    if max_bytes is None:
        return
    if (
        isinstance(max_bytes, bool)
        or not isinstance(max_bytes, int)
        or max_bytes < _SMALLEST_BUDGET
    ):
        raise InvalidParameterError(
            parameter, max_bytes, f"None or an integer of at least {_SMALLEST_BUDGET}"
        )


def _count_bytes(connection: sqlite3.Connection, *, in_index: bool) -> int:
    if in_index:
        # The pages of the file are those of the index as well.
        content = "SELECT coalesce(sum(length(key) + length(content)), 0) FROM entries"
        return int(connection.execute(content).fetchone()[0])
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _encode(text: str) -> bytes:
    # Models may cut a surrogate pair in two; half of one cannot be encoded as UTF-8.
    return text.encode("utf-8", "surrogatepass")


def _checksum(kind: int, key: bytes, content: bytes) -> bytes:
    return sha256(bytes((kind,)) + key + content).digest()[:16]


def _rows(vectors: ArrayLike, count: int) -> Vector:
    """Return vectors as float32 rows, or raise ``EmbeddingError`` before bad ones are stored."""
    try:
        rows = np.asarray(vectors)
    except (TypeError, ValueError) as error:
        raise EmbeddingError(f"vectors are not rows of numbers of one width: {error}") from error
    if rows.dtype.kind not in "fiu":
        raise EmbeddingError(f"vectors must be real numbers, got values of type {rows.dtype}")
    if rows.ndim != 2 or len(rows) != count or 0 in rows.shape[1:]:
        raise EmbeddingError(
            f"the embedder returned an array of shape {rows.shape} for {count} texts"
        )
    # Written so that NaN fails too: every comparison with it is false.
    if not (np.abs(rows) <= LARGEST_VALUE).all():
        raise EmbeddingError(
            f"the embedder returned values that are not finite or beyond {LARGEST_VALUE:g}"
        )
    return rows.astype(np.float32)
