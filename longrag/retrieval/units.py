"""From a question to whole units: over the embedded index, or over any store by exclusion.

Both ways are flows, so that sync and async callers and both frameworks run this one text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from longrag.calls import Embed, Fetch, Flow, Search, ask
from longrag.errors import EmbeddingError, InvalidParameterError, StoreError
from longrag.indexing.vectors import check_vectors
from longrag.ingestion.units import embedding_text
from longrag.retrieval.assembly import keep_documents, place, unit_of_chunks
from longrag.retrieval.filters import Visible
from longrag.retrieval.maxp import MaxPIndex
from longrag.types import Chunk, LongUnit, RetrievedUnit

Vector = npt.NDArray[np.float32]

_FETCH_FACTOR = 4
_UNIT_CHUNKS = 64
_MAX_FETCH = 1 << 20
_CANNOT_FILTER = (NotImplementedError, ValueError)
"""What the frameworks' stores raise for a filter they do not have."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One stored chunk that a search found; ``score`` is the store's own, None when it has none."""

    unit_id: str
    chunk: Chunk
    score: float | None = None


class UnitIndex:
    """Units, their chunks and the exact index over the chunks' vectors, in memory.

    Vectors are scaled to unit length, so that the inner product the paper ranks by is the cosine
    that both frameworks' own stores rank by; ``normalize=False`` keeps them as they are.

    Raises:
        EmbeddingError: there is not one finite vector of one width for each chunk.
        InvalidParameterError: a chunk names a unit that is not among ``units``.
    """

    def __init__(
        self,
        units: Sequence[LongUnit],
        chunks: Sequence[Chunk],
        vectors: npt.ArrayLike,
        *,
        normalize: bool = True,
    ) -> None:
        self.units = tuple(units)
        self.chunks = tuple(chunks)
        self.normalize = normalize
        number = {unit.id: index for index, unit in enumerate(self.units)}
        missing = next((chunk for chunk in self.chunks if chunk.unit_id not in number), None)
        if missing is not None:
            raise InvalidParameterError(
                "chunks", missing.unit_id, "chunks of the given units", "Pass their units as well."
            )
        matrix = check_vectors(vectors, name="vectors")
        if len(matrix) != len(self.chunks):
            raise EmbeddingError(
                f"the embedder returned {len(matrix)} vectors for {len(self.chunks)} texts"
            )
        self.index = MaxPIndex(
            _unit_length(matrix) if normalize else matrix,
            np.array([number[chunk.unit_id] for chunk in self.chunks], dtype=np.int64),
        )

    def search(
        self, vector: npt.ArrayLike, k: int, *, visible: Visible | None = None
    ) -> list[RetrievedUnit]:
        """Return the min(k, units) units whose best chunks have the largest inner product.

        Where not all is ``visible``, units are ranked by the chunks that are, and have the text of
        the documents that are.
        """
        query = check_vectors(
            np.atleast_2d(np.asarray(vector)), name="query vector", width=self.index.width or None
        )
        scores, units, chunks = self.index.search(
            _unit_length(query) if self.normalize else query,
            k,
            chunks=None if visible is None else visible.chunks,
        )
        found = [
            RetrievedUnit(unit, float(score), place(self.chunks[chunk], unit))
            for score, unit, chunk in zip(
                scores[0], (self.units[i] for i in units[0]), chunks[0], strict=True
            )
        ]
        if visible is None:
            return found
        count_tokens = visible.count_tokens
        return [keep_documents(u, visible.documents, count_tokens=count_tokens) for u in found]


def embed_units(
    units: Sequence[LongUnit],
    chunks: Sequence[Chunk],
    *,
    texts: Sequence[str] | None = None,
    normalize: bool = True,
) -> Flow[UnitIndex]:
    """Embed the chunks and return the index over them.

    ``texts`` are what is embedded, one a chunk; by default a chunk's title and text.
    """
    to_embed = tuple(embedding_text(chunk) for chunk in chunks) if texts is None else tuple(texts)
    vectors = (
        (yield from ask(Embed(to_embed, "document"))) if to_embed else np.empty((0, 1), np.float32)
    )
    return UnitIndex(units, chunks, vectors, normalize=normalize)


def embed_query(texts: Sequence[str]) -> Flow[Vector]:
    """Embed a query given as one or more texts: the mean of their vectors, of shape (width,).

    More than one text is what query transforms such as HyDE give.
    """
    if not texts:
        raise InvalidParameterError("query", "", "some text", "Or give its embedding.")
    vectors = yield from ask(Embed(tuple(texts), "query"))
    checked = check_vectors(vectors, name="query vectors")
    if len(checked) != len(texts):
        raise EmbeddingError(
            f"the embedder returned {len(checked)} vectors for {len(texts)} query texts"
        )
    mean: Vector = checked.mean(axis=0)
    return mean


def retrieve(
    texts: Sequence[str],
    index: UnitIndex,
    *,
    k: int,
    vector: npt.ArrayLike | None = None,
    visible: Visible | None = None,
) -> Flow[list[RetrievedUnit]]:
    """Return the top ``k`` units for a query by MaxP, exactly (LongRAG §3.1).

    ``texts`` are the query's texts, ``vector`` its embedding when the caller has it. Where nothing
    is to be searched, nothing is returned and nothing embedded. See ``UnitIndex.search`` for
    ``visible``.
    """
    check_k(k)
    if not index.chunks or (visible is not None and not len(visible.chunks)):
        return []
    if vector is None:
        vector = yield from embed_query(texts)
    return index.search(vector, k, visible=visible)


def retrieve_from_store(query: Search, *, exact: bool) -> Flow[list[RetrievedUnit]]:
    """Return the top ``query.top_k`` distinct units of a store that ranks chunks.

    Chunks are asked for best first; when they cover too few units, those seen are excluded and the
    store is asked again, at most ``top_k`` times. A unit's first chunk is then its best one, so the
    result is exact whenever the store's ranking is. A store that cannot exclude is asked for twice
    as many chunks instead, until there are enough units or nothing new comes.

    ``exact`` says whether the store's ranking is known to be exact; only then do fewer rows than
    asked for mean that there are no more. Units the answerer cannot fetch whole are put together
    from their stored chunks.

    Raises:
        StoreError: the store returned something other than hits.
        Exception: whatever the store raises at its first search.
    """
    check_k(query.top_k)
    ranking = _Ranking(query, exact)
    yield from ranking.fill()
    if not ranking.seen:
        return []
    whole: Mapping[str, LongUnit] = yield from ask(Fetch(tuple(ranking.seen)))
    found = []
    for unit_id, hits in ranking.seen.items():
        unit, complete = whole.get(unit_id), True
        if unit is None:
            unit, complete = yield from _put_together(query, unit_id, hits)
        best = place(hits[0].chunk, unit)
        found.append(RetrievedUnit(unit, hits[0].score, best, exact, complete))
    return found


class _Ranking:
    """The distinct units seen so far, each with its hits, best first."""

    def __init__(self, query: Search, exact: bool) -> None:
        self.seen: dict[str, list[Hit]] = {}
        self._query = query
        self._k = query.top_k
        self._exact = exact

    def fill(self) -> Flow[None]:
        asked = _FETCH_FACTOR * self._k
        rows = self._add((yield from ask(replace(self._query, top_k=asked))))
        if not rows or self._full() or self._exhausted(rows, asked):
            return
        excluded = yield from self._by_exclusion()
        if not excluded:
            yield from self._by_doubling(rows)

    def _by_exclusion(self) -> Flow[bool]:
        """Ask again without the units seen; False when the store cannot exclude."""
        while not self._full():
            asked = _FETCH_FACTOR * (self._k - len(self.seen))
            (hits,) = yield (replace(self._query, top_k=asked, exclude=tuple(self.seen)),)
            if isinstance(hits, _CANNOT_FILTER):
                return False
            if isinstance(hits, Exception):
                raise hits
            if any(hit.unit_id in self.seen for hit in hits):
                return False
            rows = self._add(hits)
            if not rows or self._exhausted(rows, asked):
                return True
        return True

    def _by_doubling(self, rows: int) -> Flow[None]:
        """Ask for twice as many chunks until there are enough units, or twice nothing new came."""
        asked, without_new = _FETCH_FACTOR * self._k, 0
        while not self._full() and without_new < 2 and asked < _MAX_FETCH:
            asked *= 2
            found = self._add((yield from ask(replace(self._query, top_k=asked))))
            if self._exhausted(found, asked):
                return
            without_new = 0 if found > rows else without_new + 1
            rows = max(found, rows)

    def _add(self, hits: Sequence[Hit]) -> int:
        for hit in hits:
            if not isinstance(hit, Hit):
                raise StoreError(f"a search must be answered with hits, got {hit!r}")
            if hit.unit_id in self.seen or not self._full():
                known = self.seen.setdefault(hit.unit_id, [])
                if all(hit.chunk.id != other.chunk.id for other in known):
                    known.append(hit)
        return len(hits)

    def _full(self) -> bool:
        return len(self.seen) >= self._k

    def _exhausted(self, rows: int, asked: int) -> bool:
        return self._exact and rows < asked


def _put_together(query: Search, unit_id: str, hits: Sequence[Hit]) -> Flow[tuple[LongUnit, bool]]:
    """Make a unit from its stored chunks; False when only some of them can be had."""
    chunks = {hit.chunk.id: hit.chunk for hit in hits}
    asked = _UNIT_CHUNKS
    while True:
        (rows,) = yield (replace(query, top_k=asked, only=unit_id),)
        if isinstance(rows, _CANNOT_FILTER):
            return unit_of_chunks(unit_id, chunks.values()), False
        if isinstance(rows, Exception):
            raise rows
        own = [hit.chunk for hit in rows if hit.unit_id == unit_id]
        chunks |= {chunk.id: chunk for chunk in own}
        filtered = bool(own) and len(own) == len(rows)
        if len(rows) < asked or not filtered or asked >= _MAX_FETCH:
            complete = filtered and len(rows) < asked
            return unit_of_chunks(unit_id, chunks.values()), complete
        asked *= 2


def check_k(k: int, name: str = "k") -> None:
    """Raise ``InvalidParameterError`` unless ``k`` is an integer of at least 1."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InvalidParameterError(name, k, "an integer of at least 1")


def _unit_length(vectors: Vector) -> Vector:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    # A zero vector has no direction: it stays zero and scores zero against everything.
    return cast("Vector", vectors / np.where(norms > 0, norms, 1))
