"""Paid answers, committed as they come.

A journal is one SQLite file: the answer to a prompt is stored before anything is built on it, so
that a build which was killed is resumed by running it again, and only calls in flight at that
moment are paid twice. Deleting a document removes every answer made from it, and SQLite
overwrites the freed pages with zeros.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from longrag.errors import EmbeddingError, GenerationError, JournalError
from longrag.types import stable_id

Vector: TypeAlias = NDArray[np.float32]

ANY_DOCUMENT: Final = "\x00any document"
"""The source of what was made from too many documents to name: it goes with any that is purged."""

LARGEST_VALUE: Final = 1e15
"""The largest magnitude of a value in a vector: products of larger ones would leave float32."""

_VERSION = 3
_APPLICATION_ID = 0x4C52_4A31

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS answers"
    " (key BLOB PRIMARY KEY, answer TEXT NOT NULL, checksum BLOB) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS vectors"
    " (key BLOB PRIMARY KEY, vector BLOB NOT NULL, checksum BLOB)",
    "CREATE TABLE IF NOT EXISTS sources (source TEXT, key BLOB, PRIMARY KEY (source, key))"
    " WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS sources_by_key ON sources (key)",
)

_ANSWER = "SELECT answer, checksum FROM answers WHERE key = ?"
_VECTOR = "SELECT vector, checksum FROM vectors WHERE key = ?"


class Journal:
    """Answers by prompt, durable after every ``put``.

    ``model`` names the language model and the settings that change its answers, ``embed_model`` the
    embedder: entries made under another name are never returned. One file may hold several models,
    and several threads and processes may use it at once. The file is created with mode 0600. A
    closed journal raises ``JournalError``.

    Raises:
        JournalError: the file is not a journal, is of a newer version, or cannot be used.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, model: str = "", embed_model: str = ""
    ) -> None:
        self.path = Path(path)
        self._model = model
        self._embed_model = embed_model
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        try:
            # The file must exist with its mode before SQLite opens it under the caller's umask.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            self._connection = sqlite3.connect(self.path, timeout=30, check_same_thread=False)
            self._prepare(self._connection)
        except (OSError, sqlite3.Error, UnicodeError) as error:
            self.close()
            raise JournalError(f"cannot open the journal {self.path}: {error}") from error
        except JournalError:
            self.close()
            raise

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA synchronous = FULL")
        # Two processes may create one journal: the look and the creation are one transaction.
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            self._check(connection)
            for statement in _SCHEMA:
                connection.execute(statement)
            for table in ("answers", "vectors"):
                # Until version 3 there were no checksums.
                columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
                if len(columns) < 3:
                    connection.execute(f"ALTER TABLE {table} ADD COLUMN checksum BLOB")
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("PRAGMA journal_mode = WAL")

    def _check(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != _APPLICATION_ID and (application or objects):
            raise JournalError(f"{self.path} is an SQLite file of another kind: name another path")
        if version > _VERSION:
            raise JournalError(
                f"{self.path} has journal version {version}, this release reads up to {_VERSION}:"
                " upgrade longrag or name another path"
            )

    def get(self, prompt: str) -> str | None:
        """Return the stored answer to a prompt, or None when it was never paid for."""
        with self._use() as connection:
            stored = self._stored(connection, _ANSWER, self._key(prompt))
        return None if stored is None else stored.decode("utf-8", "surrogatepass")

    def put(self, prompt: str, answer: str, *, sources: Iterable[str] = ()) -> str:
        """Commit an answer and return it; the first answer stored for a prompt stays.

        Returns what is stored, so that two processes which paid for one prompt go on alike.

        Raises:
            GenerationError: ``answer`` is not a string.
            JournalError: the answer could not be written, for instance on a full disk.
        """
        if not isinstance(answer, str):
            raise GenerationError(f"a model's answer must be a string, got {answer!r}")
        key = self._key(prompt)
        with self._use() as connection:
            with connection:
                written = _written(answer)
                connection.execute(
                    "INSERT OR IGNORE INTO answers VALUES (?, ?, ?)",
                    (key, written, _checksum(written)),
                )
                connection.executemany(
                    "INSERT OR IGNORE INTO sources VALUES (?, ?)",
                    ((_written(source), key) for source in sources),
                )
            stored = self._stored(connection, _ANSWER, key)
        return answer if stored is None else stored.decode("utf-8", "surrogatepass")

    def get_vectors(self, texts: Sequence[str], *, role: str) -> list[Vector | None]:
        """Return the stored vector of each text, or None where it was never paid for."""
        found: list[Vector | None] = []
        with self._use() as connection:
            for text in texts:
                stored = self._stored(connection, _VECTOR, self._vector_key(text, role))
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
        """Commit the vectors of texts and return what is stored; the first of a text stays.

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
        keys = [self._vector_key(text, role) for text in texts]
        with self._use() as connection, connection:
            connection.executemany(
                "INSERT OR IGNORE INTO vectors VALUES (?, ?, ?)",
                [(key, row, _checksum(row)) for key, row in zip(keys, rows, strict=True)],
            )
            connection.executemany(
                "INSERT OR IGNORE INTO sources VALUES (?, ?)",
                [
                    (_written(source), key)
                    for key, own in zip(keys, sources, strict=True)
                    for source in own
                ],
            )
        # Another process may have purged them since.
        return [
            np.frombuffer(row, dtype="<f4") if stored is None else stored
            for row, stored in zip(rows, self.get_vectors(texts, role=role), strict=True)
        ]

    def purge(self, *sources: str) -> int:
        """Remove all that was made from any of these documents, whatever its model.

        What names ``ANY_DOCUMENT`` as its source is removed too, unless there are no documents.
        Returns how many answers and vectors these were.
        """
        every = (*sources, ANY_DOCUMENT) if sources else ()
        with self._use() as connection:
            with connection:
                removed = sum(self._remove(connection, source) for source in every)
            # Deleted text would otherwise live on in the write-ahead log.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return removed

    def _remove(self, connection: sqlite3.Connection, source: str) -> int:
        keys = connection.execute(
            "SELECT key FROM sources WHERE source = ?", (_written(source),)
        ).fetchall()
        removed = 0
        for table in ("answers", "vectors"):
            statement = f"DELETE FROM {table} WHERE key = ?"
            removed += max(connection.executemany(statement, keys).rowcount, 0)
        connection.executemany("DELETE FROM sources WHERE key = ?", keys)
        return removed

    def __len__(self) -> int:
        with self._use() as connection:
            return int(connection.execute("SELECT count(*) FROM answers").fetchone()[0])

    def close(self) -> None:
        """Close the file, after what is being written; closing twice is harmless."""
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

    def _stored(self, connection: sqlite3.Connection, statement: str, key: bytes) -> bytes | None:
        """Return what is stored under a key as it was written; SQLite itself checks no content."""
        row = connection.execute(statement, (key,)).fetchone()
        if row is None:
            return None
        content, checksum = row
        if checksum is not None and checksum != _checksum(content):
            raise JournalError(
                f"the journal {self.path} is damaged: an answer is not what was written. Restore"
                " the file from a copy, or remove it and pay again"
            )
        return content.encode() if isinstance(content, str) else bytes(content)

    def _key(self, prompt: str) -> bytes:
        digest = sha256(len(self._model).to_bytes(8, "big"))
        digest.update(self._model.encode("utf-8", "surrogatepass"))
        digest.update(prompt.encode("utf-8", "surrogatepass"))
        return digest.digest()

    def _vector_key(self, text: str, role: str) -> bytes:
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


def _written(text: str) -> str | bytes:
    """Return what SQLite can hold of a text: half a character pair, as models cut them, is none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _checksum(content: str | bytes) -> bytes:
    return sha256(content.encode() if isinstance(content, str) else content).digest()[:8]


def _rows(vectors: ArrayLike, count: int) -> Vector:
    """Return usable vectors; what is not must not be kept as paid for."""
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
    # A comparison with NaN is false.
    if not (np.abs(rows) <= LARGEST_VALUE).all():
        raise EmbeddingError(
            f"the embedder returned values that are not finite or beyond {LARGEST_VALUE:g}"
        )
    return rows.astype(np.float32)
