"""An index over long units that lives in a database.

A page is three items: the document, what is known of it by itself, and the vectors of its chunks.
Opening reads the first two, which are decoded when they are needed, and maps the rows of vectors
from a cache beside the database where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from longrag.errors import IndexFormatError, InvalidParameterError, StaleIndexError
from longrag.indexing.database import IndexDatabase, Items, ItemsChange
from longrag.indexing.rows import VectorRows
from longrag.ingestion.builder import UnitBuilder
from longrag.locks import Lock
from longrag.retrieval.corpus import CorpusIndex, titled_text
from longrag.retrieval.corpus_cache import (
    CachedRows,
    load_cache,
    only_maker,
    remove_cache,
    save_cache,
)
from longrag.retrieval.corpus_records import settings_of
from longrag.retrieval.corpus_state import (
    Block,
    CorpusState,
    Page,
    index_of_groups,
)
from longrag.retrieval.corpus_stored import (
    CUTS,
    DOCUMENTS,
    VECTORS,
    BlockBytes,
    PageReader,
    WrittenBlock,
    decode_document,
    encode_cut,
    encode_document,
)
from longrag.types import Chunk, Document

KIND: Final = "corpus"

# Pages of which a corpus that is opened is checked to be made with the same callables.
_CHECKED = 8


class DatabaseCorpus(CorpusIndex):
    """A ``CorpusIndex`` whose documents and vectors are in a database, which all its users share.

    A change is one transaction, and is made again from what is there when another process was
    first; what was embedded for it is not embedded again. Each question and each change first
    catches up with what others have changed. In memory it is a ``CorpusIndex`` like any other.

    Args:
        database: the index in the database.
        builder: the settings of units and chunks; all who use the index must have the same.
        normalize: scale vectors to unit length.
        embedding_text: writes what is embedded of a chunk, from it and its document's metadata.
        encode: writes a document as bytes.
        decode: reads what ``encode`` wrote.
        settings: further settings of the index, which all who use it must have.

    Raises:
        InvalidParameterError: a setting of the builder is not the one the index was made with.
        IndexFormatError: a callable of the builder is another one than the index was made with,
            which is checked on eight documents; or what is saved cannot be read.
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
        self._encode = encode
        self._reader = PageReader(database, decode)
        self._cache = database.cache_folder()
        own = {**settings_of(self.builder), "normalize": normalize, **settings}
        known = database.settings(own)
        for name, value in own.items():
            if known.get(name) != value:
                allowed = f"{known.get(name)!r}, as the index was made with"
                raise InvalidParameterError(name, value, allowed)
        self._catching_up = Lock()
        if database.generation():
            self._open()

    def _open(self) -> None:
        """Read the index as it is now."""
        state = None
        while state is None:
            items = self.database.read((DOCUMENTS, CUTS))
            pages = self._read_pages(items)
            cuts = items.new[CUTS]
            digest = sha256(b"".join(cuts[key] for key in sorted(cuts))).hexdigest()
            state = self._open_pages(pages, digest, items.generation)
        self._check_callables(list(state.pages.values()))
        self._state = state

    def _open_pages(
        self, pages: Mapping[str, Page], digest: str, generation: int
    ) -> CorpusState | None:
        """Return the state of stored pages; None where they are not all there any more."""
        folder = None if self.builder.granularity == "unit" else self._cache
        if folder is None:
            return self._settle(pages, generation)
        if state := self._open_cached(folder, digest, pages, generation):
            return state
        with only_maker(folder):
            # Whoever made it meanwhile spared this process the time, and memory that is not shared.
            if state := self._open_cached(folder, digest, pages, generation):
                return state
            remove_cache(folder, parent=False)
            state = self._settle(pages, generation)
            if state is None:
                return None
            ordered = list(pages.values())
            save_cache(folder, digest, ordered, state.groups, self._plan.rows)
            if self.database.generation() != generation:
                # What was deleted meanwhile may be in it.
                remove_cache(folder)
            return self._mapped(state, load_cache(folder, digest, ordered, verify=False))

    def _open_cached(
        self, folder: Path, digest: str, pages: Mapping[str, Page], generation: int
    ) -> CorpusState | None:
        """Return the state of stored pages by the cache; None where it does not hold all of it.

        The rows that it holds are taken over in any case.
        """
        ordered = list(pages.values())
        cached = load_cache(folder, digest, ordered, granularity=self.builder.granularity)
        if cached is None:
            return None
        self._adopt(cached, ordered)
        blocks = [page.block for page in ordered]
        if cached.groups is None or _without_rows(blocks, cached.rows):
            return None
        index = index_of_groups(cached.groups, cached.rows, normalize=self.normalize)
        return CorpusState(pages, cached.groups, index, generation)

    def _mapped(self, state: CorpusState, cached: CachedRows | None) -> CorpusState:
        """Return a state with its rows mapped in place of those in memory, where there is a cache.

        Mapped rows are shared with the other processes that open the index.
        """
        blocks = list(state.blocks)
        if cached is None or not {block.name for block in blocks if len(block)} <= set(
            cached.begins
        ):
            return state
        self._adopt(cached, list(state.pages.values()))
        index = index_of_groups(state.groups, cached.rows, normalize=self.normalize)
        return replace(state, index=index)

    def _adopt(self, cached: CachedRows, pages: Sequence[Page]) -> None:
        with self._planning:
            self._plan.adopt(cached.rows)
            for page in pages:
                if page.block.name in cached.begins:
                    page.block.place(cached.rows, cached.begins[page.block.name])

    def _settle(self, pages: Mapping[str, Page], generation: int) -> CorpusState | None:
        """Return the state of pages, with what of their vectors is not known yet.

        None where a vector is not there any more, since another process has changed the index.
        """
        try:
            if self.builder.granularity == "unit":
                with self._planning:
                    groups = self._plan.follow(pages)
                own = [group.block for group in groups if group.block]
                self._load(_without_rows(own, self._plan.rows))
                return self._assemble(pages, {}, generation=generation)
            return self._assemble(pages, {}, generation=generation, load=self._load)
        except StaleIndexError as error:
            if self.database.generation() == generation:
                raise self._reader.damaged("vectors are missing") from error
            return None

    def _load(self, blocks: Sequence[Block]) -> None:
        """Read the vectors of blocks.

        Raises:
            StaleIndexError: they are not there any more.
        """
        wanted = [block for block in blocks if len(block)]
        found = self.database.fetch(VECTORS, {block.name for block in wanted})
        for block in wanted:
            if block.name not in found:
                raise StaleIndexError("vectors are not there any more: open the index again")
            block.vectors = self._reader.decode_vectors(found[block.name], len(block))

    def _read_pages(self, items: Items) -> dict[str, Page]:
        """Return the pages of items, in the order of their ids."""
        pages = [
            self._reader.page(content, items.new[DOCUMENTS].get(key))
            for key, content in items.new[CUTS].items()
        ]
        return {page.id: page for page in sorted(pages, key=lambda page: page.id)}

    def _check_callables(self, pages: Sequence[Page]) -> None:
        """Refuse callables that read documents in another way than those the index was made with.

        Eight documents are read again, or all of them where there are fewer: a callable cannot be
        compared by itself, and to read all documents would take seconds.
        """
        for page in pages[:: max(1, len(pages) // _CHECKED)]:
            read = self._page(page.document, self._cut([page.document])[page.id])
            if read.cut != page.cut or read.block.name != page.block.name:
                raise IndexFormatError(
                    f"the documents of the index {self.database.name!r} make other units or chunks"
                    " than were saved: the index was built with another link extractor, link rules,"
                    " tokenizer, splitter or metadata; use the same"
                )

    def _current(self) -> CorpusState:
        state = self._state
        if self.database.generation() == state.generation:
            return state
        with self._catching_up:
            after = None
            while after is None:
                before = self._state
                parts = (DOCUMENTS, CUTS)
                items = self.database.read(parts, since=before.generation, listed=[DOCUMENTS])
                if items.generation == before.generation:
                    return before
                after = self._settle(self._newer_pages(before, items), items.generation)
            # A change of this process may be put in place meanwhile; it is then the newer one.
            with self._lock:
                if self._state.generation < after.generation:
                    self._state = after
            return self._state

    def _newer_pages(self, before: CorpusState, items: Items) -> dict[str, Page]:
        left = items.keys[DOCUMENTS]
        kept = {id_: page for id_, page in before.pages.items() if page.key in left}
        pages = kept | self._read_pages(items)
        return {id_: pages[id_] for id_ in sorted(pages)}

    def _replace(self, before: CorpusState, after: CorpusState) -> bool:
        change = self._difference(before, after)
        if not any((*change.put.values(), *change.drop.values())):
            return True
        generation = self.database.write(change, after=before.generation)
        if generation is None:
            return False
        if self._cache is not None and change.drop[VECTORS]:
            # Nothing made from what was deleted may stay.
            remove_cache(self._cache)
        for block in after.blocks:
            block.release()
        with self._lock:
            if self._state.generation < generation:
                self._state = replace(after, generation=generation)
        return True

    def _new_block(self, keys: Sequence[bytes]) -> Block:
        return WrittenBlock(self._reader, keys)

    def _difference(self, before: CorpusState, after: CorpusState) -> ItemsChange:
        new = [page for id_, page in after.pages.items() if before.pages.get(id_) is not page]
        gone = [page.key for id_, page in before.pages.items() if id_ not in after.pages]
        old_blocks, blocks = (
            {block.name: block for block in state.blocks if len(block)} for state in (before, after)
        )
        return ItemsChange(
            put={
                DOCUMENTS: {page.key: self._encode(page.document) for page in new},
                CUTS: {page.key: encode_cut(page) for page in new},
                VECTORS: BlockBytes(
                    {name: block for name, block in blocks.items() if name not in old_blocks}
                ),
            },
            drop={
                DOCUMENTS: gone,
                CUTS: gone,
                VECTORS: [name for name in old_blocks if name not in blocks],
            },
        )


def _without_rows(blocks: Iterable[Block], rows: VectorRows) -> list[Block]:
    return [block for block in blocks if len(block) and block.first_row(rows) < 0]
