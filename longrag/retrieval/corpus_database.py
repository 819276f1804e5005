"""An index over long units that lives in a database."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from longrag.errors import IndexFormatError, InvalidParameterError
from longrag.indexing.database import IndexDatabase, Items, ItemsChange
from longrag.ingestion.builder import UnitBuilder
from longrag.locks import Lock
from longrag.retrieval.corpus import CorpusIndex, titled_text
from longrag.retrieval.corpus_records import document_fields, name_of, settings_of
from longrag.retrieval.corpus_state import CorpusState
from longrag.retrieval.units import Vector
from longrag.types import Chunk, Document, stable_id

KIND: Final = "corpus"

_DOCUMENTS, _VECTORS = "document", "vector"
_PARTS = (_DOCUMENTS, _VECTORS)


def encode_document(document: Document) -> bytes:
    """Write a document as JSON.

    Raises:
        InvalidDocumentError: its metadata is not JSON.
    """
    content = json.dumps(document_fields(document), ensure_ascii=False)
    return content.encode("utf-8", "surrogatepass")


def decode_document(content: bytes) -> Document:
    """Read what ``encode_document`` wrote."""
    return Document(**json.loads(content.decode("utf-8", "surrogatepass")))


class DatabaseCorpus(CorpusIndex):
    """A ``CorpusIndex`` whose documents and vectors are in a database, which all its users share.

    A change is one transaction, and is made again from what is there when another process was
    first; what was embedded for it is not embedded again. Each question and each change first
    catches up with what others have changed. In memory it is a ``CorpusIndex`` like any other.

    Args:
        database: the index in the database.
        builder: the settings of units and chunks; all who use the index must have the same.
        embedding_text: writes what is embedded of a chunk, from it and its document's metadata.
        encode: writes a document as bytes.
        decode: reads what ``encode`` wrote.
        settings: further settings of the index, which all who use it must have.

    Raises:
        InvalidParameterError: a setting of the builder is not the one the index was made with.
        IndexFormatError: the documents group into other units than were saved, since a callable of
            the builder is another one; or what is saved cannot be read.
        DatabaseError: the database cannot be reached.
    """

    in_database = True

    def __init__(
        self,
        database: IndexDatabase,
        builder: UnitBuilder | None = None,
        *,
        normalize: bool = True,
        embedding_text: Callable[[Chunk, Mapping[str, object]], str] = titled_text,
        encode: Callable[[Document], bytes] = encode_document,
        decode: Callable[[bytes], Document] = decode_document,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(builder, normalize=normalize, embedding_text=embedding_text)
        self.database = database
        self._encode, self._decode = encode, decode
        own = {**settings_of(self.builder), "normalize": normalize, **settings}
        known = database.settings(own)
        for name, value in own.items():
            if known.get(name) != value:
                allowed = f"{known.get(name)!r}, as the index was made with"
                raise InvalidParameterError(name, value, allowed)
        self._catching_up = Lock()
        self._current()

    def _current(self) -> CorpusState:
        state = self._state
        if self.database.generation() == state.generation:
            return state
        with self._catching_up:
            before = self._state
            items = self.database.read(_PARTS, since=before.generation)
            if items.generation != before.generation:
                # A change of this process may be put in place meanwhile; it is then the newer one.
                after = self._caught_up(before, items)
                with self._lock:
                    if self._state.generation < after.generation:
                        self._state = after
            return self._state

    def _caught_up(self, before: CorpusState, items: Items) -> CorpusState:
        pages = {
            id_: page
            for id_, page in before.pages.items()
            if (key := stable_id(id_)) in items.keys[_DOCUMENTS]
            and key not in items.new[_DOCUMENTS]
        }
        try:
            new = [self._decode(content) for content in items.new[_DOCUMENTS].values()]
            vectors: dict[bytes, Vector] = dict(before.vectors) | {
                bytes.fromhex(key): np.frombuffer(content, "<f4").astype(np.float32)
                for key, content in items.new[_VECTORS].items()
            }
        except (ValueError, TypeError, KeyError) as error:
            raise IndexFormatError(
                f"the index {self.database.name!r} is damaged: {error}"
            ) from error
        pages |= {one.id: self._page(one, self._cutter.cut(one)) for one in new}
        pages = {id_: pages[id_] for id_ in sorted(pages)}
        missing = self._find_missing(pages, vectors)
        after = None if missing else self._assemble(pages, vectors, generation=items.generation)
        if after is None or name_of(after.index.units) != items.about.get("units"):
            raise IndexFormatError(
                f"the documents of the index {self.database.name!r} make other units or chunks than"
                f" were saved ({len(missing)} chunks have no vector): the index was built with"
                " another link extractor, link rules, tokenizer, splitter or metadata; use the same"
            )
        return after

    def _replace(self, before: CorpusState, after: CorpusState) -> bool:
        put = {
            stable_id(id_): self._encode(page.document)
            for id_, page in after.pages.items()
            if before.pages.get(id_) is not page
        }
        gone = [stable_id(id_) for id_ in before.pages if id_ not in after.pages]
        change = ItemsChange(
            put={
                _DOCUMENTS: put,
                _VECTORS: {
                    key.hex(): np.asarray(vector, "<f4").tobytes()
                    for key, vector in after.vectors.items()
                    if key not in before.vectors
                },
            },
            drop={
                _DOCUMENTS: gone,
                _VECTORS: [key.hex() for key in before.vectors if key not in after.vectors],
            },
            about={"units": name_of(after.index.units)},
        )
        if not any((*change.put.values(), *change.drop.values())):
            return True
        generation = self.database.write(change, after=before.generation)
        if generation is None:
            return False
        with self._lock:
            if self._state.generation < generation:
                self._state = replace(after, generation=generation)
        return True
