"""An index over long units that follows its documents and does not depend on the order of changes.

Grouping is cheap enough to be redone after every change, from all documents; what costs is kept:
the vectors, by the text that was embedded, and per document what was counted and cut.
"""

from __future__ import annotations

import json
import os
import reprlib
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, Generic, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from longrag.calls import Embed, Flow, Request, ask, run
from longrag.errors import (
    EmbeddingError,
    IndexFormatError,
    InvalidDocumentError,
    InvalidParameterError,
)
from longrag.indexing.storage import load_arrays, save_arrays, saved_version
from longrag.indexing.vectors import check_vectors
from longrag.ingestion.builder import UnitBuilder
from longrag.ingestion.chunking import chunk_spans
from longrag.ingestion.units import check_documents, embedding_text
from longrag.retrieval.assembly import keep_documents, place
from longrag.retrieval.filters import DocumentFilter, MetadataIndex, Recent, Visible
from longrag.retrieval.units import UnitIndex, Vector
from longrag.types import Chunk, Document, LongUnit, RetrievedUnit, Span, stable_id

_KIND = "corpus"
_VERSION = 1
_KEPT_DERIVED = 4
SETTINGS: Final = ("max_tokens", "chunk_size", "granularity", "directed", "split_oversized")

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Change:
    """What a change did: ids of documents, and how many chunks had to be embedded."""

    added: tuple[str, ...]
    updated: tuple[str, ...]
    deleted: tuple[str, ...]
    embedded: int


@dataclass(frozen=True)
class CorpusState:
    """The whole state of the index at one moment; a change replaces it in one step."""

    documents: Mapping[str, Document]
    vectors: Mapping[bytes, Vector]
    index: UnitIndex
    keys: Sequence[bytes] = ()
    """What was embedded of each chunk, as a key of ``vectors``."""
    generation: int = 0
    """The number of changes before, where they are counted."""

    @cached_property
    def metadata(self) -> MetadataIndex:
        """Finds the documents that pass a filter."""
        return MetadataIndex(self.documents)

    @cached_property
    def document_of_chunk(self) -> npt.NDArray[np.int64]:
        """The number of each chunk's document."""
        number = {id_: i for i, id_ in enumerate(self.documents)}
        return np.array([number[chunk.doc_id] for chunk in self.index.chunks], np.int64)


@dataclass(frozen=True, eq=False)
class CorpusView:
    """What one question may see of a corpus at one moment; equal views show the same.

    Attributes:
        documents: the documents that may be seen, in the order of their ids.
        index: the units, chunks and vectors of all documents.
        visible: what of the index may be seen; None is all of it.
        key: names the documents that may be seen, among the views of one index; None is all.
    """

    documents: Mapping[str, Document]
    index: UnitIndex
    visible: Visible | None = None
    key: bytes | None = None

    def __eq__(self, other: object) -> bool:
        """Tell whether the other shows the same documents of the same index."""
        return isinstance(other, CorpusView) and self.index is other.index and self.key == other.key

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def units(self) -> tuple[RetrievedUnit, ...]:
        """The units as they may be seen, each with the first of its chunks that is searched."""
        chunks: dict[str, Chunk] = {}
        for chunk in self.chunks:
            chunks.setdefault(chunk.unit_id, chunk)
        found = [
            RetrievedUnit(unit, None, place(chunks[unit.id], unit))
            for unit in self.index.units
            if unit.id in chunks
        ]
        if (visible := self.visible) is None:
            return tuple(found)
        count = visible.count_tokens
        return tuple(keep_documents(u, visible.documents, count_tokens=count) for u in found)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks that are searched."""
        if self.visible is None:
            return self.index.chunks
        return tuple(self.index.chunks[i] for i in self.visible.chunks.tolist())


def titled_text(chunk: Chunk, metadata: Mapping[str, object]) -> str:
    """Write a chunk as it is embedded, with its title."""
    return embedding_text(chunk)


class CorpusIndex:
    """Long units over documents that come, change and go in any order and in batches of any size.

    The units are at every moment those of one build from the present documents, and a change
    embeds only chunks whose title and text were not there before. A document that is deleted leaves
    nothing behind: neither its text nor a vector. Searches may run beside changes, and changes
    beside each other; a change that fails changes nothing.

    Args:
        builder: the settings of units and chunks.
        normalize: scale vectors to unit length.
        embedding_text: writes what is embedded of a chunk, from it and its document's metadata.
    """

    in_database = False
    """Whether a change is kept, and seen by other processes, as soon as it is made."""

    def __init__(
        self,
        builder: UnitBuilder | None = None,
        *,
        normalize: bool = True,
        embedding_text: Callable[[Chunk, Mapping[str, object]], str] = titled_text,
    ) -> None:
        self.builder = builder or UnitBuilder()
        self.normalize = normalize
        self._embedding_text = embedding_text
        self.derived: Recent[Hashable, Any] = Recent(_KEPT_DERIVED)
        """Objects made from the corpus for questions and updated with it, by their settings."""
        # What was last saved to a folder or loaded from it, by the folder.
        self._saved: dict[str, str] = {}
        self._caching_builder = _CachingBuilder(self.builder)
        self._lock = threading.Lock()
        self._state = CorpusState(MappingProxyType({}), {}, UnitIndex([], [], np.empty((0, 1))))

    @property
    def documents(self) -> Mapping[str, Document]:
        """The present documents, by id; read-only."""
        return self._state.documents

    @property
    def index(self) -> UnitIndex:
        """The present units, chunks and vectors; later changes do not alter this value."""
        return self._state.index

    def snapshot(self) -> tuple[Mapping[str, Document], UnitIndex]:
        """Return the documents, in the order of their ids, and the index of one moment."""
        state = self._current()
        return state.documents, state.index

    def view(self, wanted: DocumentFilter | None = None) -> CorpusView:
        """Return what a question with this filter may see; None is everything.

        A chunk that is a whole unit (granularity "unit") is searched only when all documents of the
        unit pass, since its vector is made from the texts of all.

        Raises:
            InvalidParameterError: a function of the filter raised an error or returned something
                else than a bool.
        """
        state = self._current()
        if wanted is None:
            return CorpusView(state.documents, state.index)
        passing = state.metadata.passing(wanted)
        if passing.everything:
            return CorpusView(state.documents, state.index)
        shown = np.zeros(len(state.documents), bool)
        shown[passing.numbers] = True
        chunks = np.flatnonzero(shown[state.document_of_chunk])
        if self.builder.granularity == "unit":
            whole = {u.id for u in state.index.units if passing.ids.issuperset(u.doc_ids)}
            chunks = chunks[[state.index.chunks[i].unit_id in whole for i in chunks.tolist()]]
        ids = list(state.documents)
        documents = {ids[i]: state.documents[ids[i]] for i in passing.numbers.tolist()}
        visible = Visible(chunks, passing.ids, self.builder.count_tokens)
        return CorpusView(documents, state.index, visible, passing.key)

    def change(
        self, *, upsert: Sequence[Document] = (), delete: Iterable[str] = ()
    ) -> Flow[Change]:
        """Put documents in, in place of those of the same ids, and take others out, in one step.

        Ids in ``delete`` that are not there are passed over; an id in both is put in.

        Raises:
            InvalidDocumentError: a document cannot be ingested; see ``check_documents``.
            EmbeddingError: the embedder returned unusable vectors.
        """
        upsert = list(upsert)
        check_documents(upsert)
        new = {document.id: document for document in upsert}
        gone = [id_ for id_ in dict.fromkeys(delete) if id_ not in new]
        paid: dict[bytes, Vector] = {}
        embedded = 0
        while True:
            before = self._current()
            documents = {**before.documents, **new}
            deleted = tuple(id_ for id_ in gone if documents.pop(id_, None) is not None)
            units, chunks, written = self._build(documents)
            keys = [text_key(text) for text in written]
            texts = dict(zip(keys, written, strict=True))
            missing = [key for key in texts if key not in before.vectors and key not in paid]
            if missing:
                paid |= yield from self._embed([texts[key] for key in missing], missing)
                embedded += len(missing)
            known = {**before.vectors, **paid}
            after = self._assemble(documents, [known[key] for key in keys], keys, units, chunks)
            if self._replace(before, after):
                self._caching_builder.forget()
                return Change(
                    tuple(id_ for id_ in new if id_ not in before.documents),
                    tuple(id_ for id_ in new if id_ in before.documents),
                    deleted,
                    embedded,
                )

    def _current(self) -> CorpusState:
        """Return the present state."""
        return self._state

    def _replace(self, before: CorpusState, after: CorpusState) -> bool:
        """Replace one state by another; False if the first is no longer the present one."""
        with self._lock:
            if self._state is before:
                self._state = after
                return True
            return False

    def _build(
        self, documents: Mapping[str, Document]
    ) -> tuple[list[LongUnit], list[Chunk], list[str]]:
        """Return the units of documents, their chunks, and what is embedded of each chunk."""
        units, chunks = self._caching_builder.build(list(documents.values()))
        return units, chunks, [self._text(chunk, documents) for chunk in chunks]

    def _embed(
        self,
        texts: Sequence[str],
        keys: Sequence[bytes],
        *,
        known: Mapping[bytes, Vector] | None = None,
    ) -> Flow[dict[bytes, Vector]]:
        vectors = check_vectors((yield from ask(Embed(tuple(texts), "document"))), name="vectors")
        if len(vectors) != len(texts):
            raise EmbeddingError(
                f"the embedder returned {len(vectors)} vectors for {len(texts)} texts"
            )
        others = self._state.vectors if known is None else known
        width = next((len(vector) for vector in others.values()), vectors.shape[1])
        if vectors.shape[1] != width:
            raise EmbeddingError(
                f"the embedder returned vectors of width {vectors.shape[1]}, the index holds width"
                f" {width}: use the embedding model the index was built with"
            )
        return dict(zip(keys, vectors, strict=True))

    def restore(
        self,
        documents: Sequence[Document],
        vector_of: Callable[[Chunk, str], Vector | None],
        *,
        units: str,
    ) -> Flow[int]:
        """Fill an empty index with documents whose chunks were embedded before.

        Chunks that have no vector, for instance since a process ended before it was stored, are
        embedded again.

        Args:
            documents: all of them.
            vector_of: gives the vector of a chunk, told its embedded text, or None.
            units: what ``vectors`` called the units.

        Returns:
            How many chunks were embedded.

        Raises:
            IndexFormatError: the units are others, since the settings are not those the index was
                made with; or the vectors are not usable.
            EmbeddingError: the embedder returned unusable vectors.
        """
        check_documents(documents)
        known = {document.id: document for document in documents}
        made, chunks, texts = self._build(known)
        if name_of(made) != units:
            raise IndexFormatError(
                "the documents group into other units than were saved: the index was built with"
                " another link extractor, link rules or tokenizer; use the same"
            )
        keys = list(map(text_key, texts))
        try:
            pairs = zip(keys, map(vector_of, chunks, texts), strict=True)
            found = {key: vector for key, vector in pairs if vector is not None}
            check_vectors(np.stack(list(found.values())) if found else np.empty((0, 1)), name="v")
        except (TypeError, ValueError) as error:
            raise IndexFormatError(f"the saved vectors are not usable: {error}") from error
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        if missing:
            found |= yield from self._embed(list(missing.values()), list(missing), known=found)
        rows = [found[key] for key in keys]
        self._state = self._assemble(known, rows, keys, made, chunks)
        return len(missing)

    def check_settings(self, builder: UnitBuilder) -> None:
        """Raise ``InvalidParameterError`` unless a builder's plain settings are the index's own."""
        check_settings_of(builder, settings_of(self.builder))

    def vectors(self) -> tuple[str, dict[str, tuple[str, Vector]]]:
        """Return a name of the present units, and what must be stored of their chunks.

        This is, by chunk id, the document and the vector as the embedder gave it.
        """
        state = self._state
        rows = {
            chunk.id: (chunk.doc_id, state.vectors[key])
            for chunk, key in zip(state.index.chunks, state.keys, strict=True)
        }
        return name_of(state.index.units), rows

    def vector_of(self, chunk: Chunk) -> Vector:
        """Return the vector of a chunk of the index, as the embedder gave it."""
        return self._state.vectors[text_key(self._text(chunk, self._state.documents))]

    def _text(self, chunk: Chunk, documents: Mapping[str, Document]) -> str:
        return self._embedding_text(chunk, documents[chunk.doc_id].metadata)

    def _assemble(
        self,
        documents: Mapping[str, Document],
        rows: Sequence[Vector],
        keys: Sequence[bytes],
        units: list[LongUnit],
        chunks: list[Chunk],
        *,
        generation: int = 0,
    ) -> CorpusState:
        matrix = np.stack(rows) if rows else np.empty((0, 1), np.float32)
        index = UnitIndex(units, chunks, matrix, normalize=self.normalize)
        ordered = {id_: documents[id_] for id_ in sorted(documents)}
        return CorpusState(
            MappingProxyType(ordered), dict(zip(keys, rows, strict=True)), index, keys, generation
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write documents, vectors and settings to a folder; see ``longrag.indexing.storage``.

        Callables (link extractor, rules, tokenizer, splitter) are not saved.

        Raises:
            InvalidDocumentError: a document's metadata is not JSON; nothing is written.
            IndexFormatError: the folder holds something else; it is left as it was.
            StaleIndexError: another process has saved to the folder since this index was loaded
                from it or saved to it; it is left as it was.
        """
        state = self._state
        keys = sorted(state.vectors)
        rows = [state.vectors[key] for key in keys]
        arrays: dict[str, npt.NDArray[Any]] = {
            "documents": documents_to_json(state.documents.values()),
            "keys": np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 32),
            "vectors": np.stack(rows) if rows else np.empty((0, 1), np.float32),
        }
        about = {"normalize": self.normalize, "units": name_of(state.index.units)}
        place = os.path.realpath(path)
        self._saved[place] = save_arrays(
            path,
            _KIND,
            _VERSION,
            arrays,
            {**settings_of(self.builder), **about},
            instead_of=self._saved.get(place),
        )

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, builder: UnitBuilder | None = None
    ) -> CorpusIndex:
        """Read an index that ``save`` wrote; its units, ids and scores are those it was saved with.

        Args:
            path: the folder.
            builder: gives the callables; its other settings must be the saved ones. None takes the
                default callables.

        Raises:
            IndexFormatError: the folder is missing, damaged or of another kind, or was built with
                other callables than ``builder`` has.
            InvalidParameterError: a setting of ``builder`` is not the saved one.
        """
        version = None
        while version is None or version != saved_version(path):
            version = saved_version(path)
            arrays, meta = load_arrays(path, _KIND, _VERSION, mmap=False)
        saved = {name: meta[name] for name in SETTINGS}
        if builder is None:
            builder = UnitBuilder(**saved)
        check_settings_of(builder, saved)
        loaded = cls(builder, normalize=meta["normalize"])
        documents = documents_from_json(arrays["documents"])
        vectors = {
            bytes(key): vector
            for key, vector in zip(arrays["keys"], arrays["vectors"], strict=True)
        }
        loaded._saved[os.path.realpath(path)] = version
        restoring = loaded.restore(
            documents, lambda _, text: vectors.get(text_key(text)), units=meta["units"]
        )
        run(restoring, _no_model)
        return loaded


def _no_model(_: Request) -> NoReturn:
    raise IndexFormatError(
        "some chunks have no vector: the index was built with another link extractor, tokenizer,"
        " splitter or metadata; use the same"
    )


def documents_to_json(documents: Iterable[Document]) -> npt.NDArray[np.uint8]:
    """Write documents as the bytes of a JSON list.

    Raises:
        InvalidDocumentError: a document's metadata is not JSON.
    """
    content = json.dumps([document_fields(document) for document in documents], ensure_ascii=False)
    return np.frombuffer(content.encode("utf-8", "surrogatepass"), np.uint8)


def documents_from_json(content: npt.NDArray[np.uint8]) -> list[Document]:
    """Read what ``documents_to_json`` wrote."""
    entries = json.loads(content.tobytes().decode("utf-8", "surrogatepass"))
    return [Document(**entry) for entry in entries]


def document_fields(document: Document) -> dict[str, Any]:
    """Return a document as JSON values.

    Raises:
        InvalidDocumentError: its metadata is not JSON.
    """
    fields = {
        "id": document.id,
        "text": document.text,
        "title": document.title,
        "metadata": dict(document.metadata),
    }
    odd = [item for item in document.metadata.items() if not is_json(dict([item]))]
    if odd:
        ((key, value), *_) = odd
        raise InvalidDocumentError(
            f"the metadata of document {document.id!r} cannot be saved: its values must be JSON,"
            f" but {key!r} has a {type(value).__name__}, {reprlib.repr(value)}. Change it, for"
            " instance a date to a string, and put the document in again."
        )
    return fields


def is_json(metadata: dict[str, Any]) -> bool:
    """Tell whether values are JSON, and are the same when they are read again."""
    try:
        return bool(json.loads(json.dumps(metadata)) == metadata)
    except (TypeError, ValueError):
        return False


def settings_of(builder: UnitBuilder) -> dict[str, Any]:
    """Return the settings of a builder that are saved: all but the callables."""
    return {name: getattr(builder, name) for name in SETTINGS}


def check_settings_of(builder: UnitBuilder, known: Mapping[str, object]) -> None:
    """Raise ``InvalidParameterError`` where a setting of a builder is not the known one."""
    for name, value in known.items():
        if getattr(builder, name) != value:
            raise InvalidParameterError(
                name, getattr(builder, name), f"{value!r}, as the index was built with"
            )


def name_of(units: Iterable[LongUnit]) -> str:
    """Return a name that other units do not have."""
    return stable_id(*(unit.id for unit in units))


def text_key(text: str) -> bytes:
    """Return the key under which the vector of an embedded text is kept."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


class _CachingBuilder:
    """A builder that remembers, from one build to the next, what it counted, cut and extracted."""

    def __init__(self, builder: UnitBuilder) -> None:
        extract = builder.extractor()
        chunker = builder.chunker or partial(
            chunk_spans,
            chunk_size=builder.chunk_size,
            count_tokens=builder.count_tokens,
            split_sentences=builder.split_sentences,
        )
        self._targets: _Cache[int, tuple[Document, Sequence[str]]] = _Cache()
        self._tokens: _Cache[str, int] = _Cache()
        self._spans: _Cache[str, Sequence[Span]] = _Cache()
        # A remembered document stays alive, so that its address names no other.
        self._builder = replace(
            builder,
            link_extractor=lambda document: self._targets.get(
                id(document), lambda: (document, extract(document))
            )[1],
            count_tokens=lambda text: self._tokens.get(text, lambda: builder.count_tokens(text)),
            chunker=lambda text: self._spans.get(text, lambda: chunker(text)),
        )

    def build(self, documents: Sequence[Document]) -> tuple[list[LongUnit], list[Chunk]]:
        return self._builder.build(documents)

    def forget(self) -> None:
        """Forget what the last build did not need, so that nothing is kept of deleted text."""
        for memory in (self._targets, self._tokens, self._spans):
            memory.drop_unused()


class _Cache(Generic[Key, Value]):
    """Values by key, of which those not read since the last ``drop_unused`` can be dropped."""

    def __init__(self) -> None:
        self._known: dict[Key, Value] = {}
        self._used: dict[Key, Value] = {}

    def get(self, key: Key, compute: Callable[[], Value]) -> Value:
        # Another thread may drop values in between: what was asked for must still be given.
        used = self._used
        if key in used:
            return used[key]
        known = self._known.get(key)
        value = compute() if known is None else known
        used[key] = value
        return value

    def drop_unused(self) -> None:
        self._known, self._used = self._used, {}
