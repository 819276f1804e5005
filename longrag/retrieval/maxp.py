"""Units ranked by their best chunk (MaxP, LongRAG §3.1), exactly, over vectors held here.

One pass finds bounds of every unit's best score; the few units that these leave in question are
then scored by one fixed formula. Over many chunks a single query's pass reads one byte a value in
place of the vectors (see ``longrag.indexing.codes``). So a query gets the same answer alone
or in a batch, and a unit with thousands of near-identical chunks costs nothing extra: there is no
top-k of chunks for it to fill.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from longrag.errors import IndexFormatError, InvalidParameterError
from longrag.indexing.codes import Codes
from longrag.indexing.storage import load_arrays, save_arrays
from longrag.indexing.vectors import (
    Storage,
    blocks,
    check_vectors,
    exact_inner_products,
    inner_products,
    inner_products_of_rows,
    largest_norm,
    pack,
    rounding_bound,
)

_KIND = "maxp"
_VERSION = 2

_CODES = ("values", "scales", "errors")

# From here on a query saves more than the codes' kernel takes to compile, a few times over.
_CODED_CHUNKS = 100_000

# Queries per pass: the best scores of all units are held for each of them.
_BATCH_QUERIES = 32

# Where fewer of the chunks are searched, their rows are copied first instead of passed over.
_GATHER_BELOW = 0.25


@dataclass(frozen=True, slots=True)
class _Table:
    """The chunks sorted by unit, then by chunk number; never changed, only replaced."""

    vectors: NDArray[Any]
    chunks: NDArray[np.int64]
    units: NDArray[np.int64]
    starts: NDArray[np.int64]
    largest_norm: float
    codes: Codes | None

    @property
    def unit_of_chunk(self) -> NDArray[np.int64]:
        units = np.empty(len(self.chunks), dtype=np.int64)
        units[self.chunks] = np.repeat(self.units, np.diff(self.starts))
        return units


class MaxPIndex:
    """An exact index of chunk vectors that returns units, each scored by its best chunk.

    A unit's score is the largest inner product of the query with one of its chunks. Scores are
    summed in float64 and rounded to float32, and results are ordered by them: equal scores by unit
    number, and among equally good chunks of a unit the lowest chunk number is its best one. That is
    exact for the vectors as stored, and independent of threads and of the other queries.

    The index keeps its own copy of the vectors. Searches may run in several threads, also beside
    one that adds or deletes: each sees the index as it was before or after. Changes themselves must
    come one at a time.

    Args:
        vectors: shape (chunks, width), rounded to float32. For cosine similarity normalise them and
            the queries.
        unit_of_chunk: the unit number of each chunk: integers from 0 on, in any order, with or
            without gaps.
        storage: ``"float16"`` halves the memory and the time of single queries. Scores are then
            those of the rounded vectors: for normalised ones off by less than 0.0005.

    Raises:
        EmbeddingError: vectors that are not finite, not numeric or not of one width, or too large
            for float16.
        InvalidParameterError: another argument that is not allowed.
    """

    def __init__(
        self, vectors: ArrayLike, unit_of_chunk: ArrayLike, *, storage: Storage = "float32"
    ) -> None:
        if storage not in get_args(Storage):
            raise InvalidParameterError("storage", storage, '"float32" or "float16"')
        checked = check_vectors(vectors, name="vectors")
        units = _check_unit_numbers(unit_of_chunk, "unit_of_chunk", count=len(checked))
        order = np.argsort(units, kind="stable")
        packed = pack(checked, order, name="vectors", storage=storage)
        codes = Codes.of(packed) if len(packed) >= _CODED_CHUNKS else None
        self._table = _table(packed, order, units, largest_norm(packed), codes)

    @property
    def n_units(self) -> int:
        """The number of units that have a chunk."""
        return len(self._table.units)

    @property
    def n_chunks(self) -> int:
        """The number of chunks."""
        return len(self._table.chunks)

    @property
    def width(self) -> int:
        """The number of values in a vector."""
        return int(self._table.vectors.shape[1])

    @property
    def storage(self) -> Storage:
        """How the vectors are kept: ``"float32"`` or ``"float16"``."""
        return "float16" if self._table.vectors.dtype == np.float16 else "float32"

    @property
    def vectors(self) -> NDArray[np.float32]:
        """A copy of the vectors as stored, in the order of the chunks; shape (chunks, width)."""
        table = self._table
        ordered = np.empty(table.vectors.shape, dtype=np.float32)
        ordered[table.chunks] = table.vectors
        return ordered

    def __repr__(self) -> str:
        return (
            f"MaxPIndex(n_units={self.n_units}, n_chunks={self.n_chunks}, width={self.width}, "
            f"storage={self.storage!r})"
        )

    def vectors_of(self, chunks: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors of some chunks, by number, as stored; shape (chunks, width)."""
        table = self._table
        row_of_chunk = np.empty_like(table.chunks)
        row_of_chunk[table.chunks] = np.arange(len(table.chunks))
        return table.vectors[row_of_chunk[chunks]].astype(np.float32, copy=False)

    def search(
        self, queries: ArrayLike, k: int, *, chunks: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        """Find the k best units for each query (MaxP, LongRAG §3.1).

        Args:
            queries: shape (queries, width), or (width,) for a single query, which is answered like
                one of shape (1, width). Rounded to float32.
            k: how many units to return, at least 1. Where there are fewer, all are returned.
            chunks: the numbers of the chunks that are searched, each once; all by default. The
                answer is that of an index of these chunks alone.

        Returns:
            The scores (float32), the unit numbers and the numbers of their best chunks (int64),
            each of shape (queries, min(k, n_units)), best first. Units of which no chunk is
            searched do not count.

        Raises:
            EmbeddingError: queries that are not finite, not numeric or of another width.
            InvalidParameterError: another shape, or a k that is not allowed.
        """
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
            raise InvalidParameterError("k", k, "an integer of at least 1")
        table = self._table
        width = table.vectors.shape[1]
        checked = check_vectors(queries, name="queries", width=width, one_row=True)
        hidden: NDArray[np.bool_] | None = None
        count = len(table.units)
        if chunks is not None:
            hidden = np.ones(len(table.chunks), bool)
            hidden[chunks] = False
            hidden = hidden[table.chunks]
            if len(chunks) <= _GATHER_BELOW * len(table.chunks):
                table, hidden = _rows_alone(table, np.flatnonzero(~hidden)), None
                count = len(table.units)
            else:
                count = int((~np.logical_and.reduceat(hidden, table.starts[:-1])).sum())
        shape = (len(checked), min(int(k), count))
        scores = np.empty(shape, dtype=np.float32)
        rows = np.empty(shape, dtype=np.int64)
        if scores.size:
            for first in range(0, len(checked), _BATCH_QUERIES):
                batch = checked[first : first + _BATCH_QUERIES]
                found = _bounds(table, batch, hidden)
                for i, bounds in enumerate(zip(*found, strict=True), start=first):
                    scores[i], rows[i] = _rank(table, checked[i], *bounds, hidden, k=shape[1])
        positions = np.searchsorted(table.starts, rows, side="right") - 1
        return scores, table.units[positions], table.chunks[rows]

    def add(self, vectors: ArrayLike, unit_of_chunk: ArrayLike) -> None:
        """Add chunks, to units that exist or to new ones.

        They get the chunk numbers from `n_chunks` on. The index is then the same as one built from
        all chunks at once. Each call copies the index, so add many chunks at a time; bad input
        changes nothing.

        Raises:
            EmbeddingError: vectors that are not finite, not numeric or of another width, or too
                large for float16.
            InvalidParameterError: another argument that is not allowed.
        """
        old = self._table
        checked = check_vectors(vectors, name="vectors", width=old.vectors.shape[1])
        added = _check_unit_numbers(unit_of_chunk, "unit_of_chunk", count=len(checked))
        packed = pack(checked, np.arange(len(added)), name="vectors", storage=self.storage)
        units = np.concatenate([old.unit_of_chunk, added])
        order = np.argsort(units, kind="stable")
        row_of_chunk = np.empty_like(order)
        row_of_chunk[order] = np.arange(len(order))
        # From where each row comes: the old rows, then the added chunks.
        source = np.empty_like(order)
        source[row_of_chunk[np.append(old.chunks, np.arange(len(old.chunks), len(order)))]] = (
            np.arange(len(order))
        )
        merged = np.concatenate([old.vectors, packed])[source]
        codes = None
        if old.codes is not None:
            codes = old.codes.followed_by(Codes.of(packed)).take(source)
        elif len(merged) >= _CODED_CHUNKS:
            codes = Codes.of(merged)
        norm = max(old.largest_norm, largest_norm(packed))
        self._table = _table(merged, order, units, norm, codes)

    def delete_units(self, units: ArrayLike) -> NDArray[np.int64]:
        """Delete units with all their chunks; the numbers of the other units stay.

        The chunks that remain are renumbered from 0 in their old order, so that the index is the
        same as one built from them alone. Bad input changes nothing.

        Args:
            units: unit numbers; each must have a chunk.

        Returns:
            The old numbers of the chunks that remain: new chunk i was chunk ``kept[i]``.

        Raises:
            InvalidParameterError: a unit that is not in the index, or no sequence of integers.
        """
        old = self._table
        deleted = _check_unit_numbers(units, "units")
        unknown = deleted[~np.isin(deleted, old.units)]
        if len(unknown):
            raise InvalidParameterError(
                "units", int(unknown[0]), "units that have a chunk in the index", "Nothing changed."
            )
        unit_of_chunk = old.unit_of_chunk
        is_kept = ~np.isin(unit_of_chunk, deleted)
        kept = np.flatnonzero(is_kept)
        kept_rows = is_kept[old.chunks]
        vectors = old.vectors[kept_rows]
        codes = None if old.codes is None else old.codes.take(kept_rows)
        order = np.argsort(unit_of_chunk[kept], kind="stable")
        self._table = _table(vectors, order, unit_of_chunk[kept], largest_norm(vectors), codes)
        return kept

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the index to a folder, replacing a `MaxPIndex` saved there.

        A save that fails or is killed leaves what was there before; see
        `longrag.indexing.storage.save_arrays`.

        Raises:
            IndexFormatError: the path holds something else, which is left as it was.
            OSError: the disk is full or cannot be written.
        """
        table = self._table
        arrays = {"vectors": table.vectors, "unit_of_chunk": table.unit_of_chunk}
        if table.codes is not None:
            arrays |= {f"codes_{name}": getattr(table.codes, name) for name in _CODES}
        save_arrays(path, _KIND, _VERSION, arrays, {"largest_norm": table.largest_norm})

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, mmap: bool = True, verify: bool = True
    ) -> MaxPIndex:
        """Load a saved index.

        Args:
            path: the folder given to `save`.
            mmap: leave the vectors on disk and map them read-only.
            verify: check the vectors' SHA-256, about 0.2 s per 300 MB.

        Raises:
            IndexFormatError: nothing there, damaged, of another kind or another version.
        """
        arrays, meta = load_arrays(path, _KIND, _VERSION, mmap=mmap, verify=verify)
        vectors, units = arrays.get("vectors"), arrays.get("unit_of_chunk")
        codes = {name: arrays[f"codes_{name}"] for name in _CODES if f"codes_{name}" in arrays}
        norm = meta.get("largest_norm")
        if (
            vectors is None
            or units is None
            or not _fit_together(vectors, units, norm)
            or (codes and not _codes_fit(codes, vectors))
        ):
            raise IndexFormatError(
                f"The arrays saved in {os.fspath(path)} do not make a MaxPIndex. Rebuild the index "
                "and save it again."
            )
        order = np.argsort(units, kind="stable")
        index = cls.__new__(cls)
        coded = Codes(**codes) if codes else None
        index._table = _table(vectors, order, units, float(norm or 0.0), coded)
        return index


def _table(
    vectors: NDArray[Any],
    order: NDArray[np.int64],
    units: NDArray[np.int64],
    norm: float,
    codes: Codes | None,
) -> _Table:
    numbers, starts = np.unique(units[order], return_index=True)
    return _Table(vectors, order, numbers, np.append(starts, len(order)), norm, codes)


def _codes_fit(codes: Mapping[str, NDArray[Any]], vectors: NDArray[Any]) -> bool:
    kinds = {name: (part.dtype.name, part.shape) for name, part in codes.items()}
    each = ("float32", vectors.shape[:1])
    return kinds == {"values": ("int8", vectors.shape), "scales": each, "errors": each}


def _rows_alone(table: _Table, rows: NDArray[np.int64]) -> _Table:
    units = np.repeat(table.units, np.diff(table.starts))[rows]
    numbers, starts = np.unique(units, return_index=True)
    return _Table(
        table.vectors[rows],
        table.chunks[rows],
        numbers,
        np.append(starts, len(rows)),
        table.largest_norm,
        None if table.codes is None else table.codes.take(rows),
    )


def _fit_together(vectors: NDArray[Any], units: NDArray[Any], norm: object) -> bool:
    return (
        vectors.ndim == 2
        and vectors.shape[1] > 0
        and vectors.dtype.name in get_args(Storage)
        and units.dtype == np.int64
        and units.shape == vectors.shape[:1]
        and bool((units >= 0).all())
        and isinstance(norm, float)
        and norm >= 0
    )


def _check_unit_numbers(
    numbers: ArrayLike, name: str, *, count: int | None = None
) -> NDArray[np.int64]:
    try:
        array = np.asarray(numbers)
    except (ValueError, TypeError) as error:
        raise InvalidParameterError(name, numbers, "a sequence of integers") from error
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        received = f"{array.dtype} of shape {array.shape}"
        raise InvalidParameterError(name, received, "a sequence of integers")
    if count is not None and len(array) != count:
        raise InvalidParameterError(
            f"len({name})", len(array), f"the number of vectors, {count}", "Give each chunk a unit."
        )
    wrong = array[(array < 0) | (array > np.iinfo(np.int64).max)]
    if len(wrong):
        raise InvalidParameterError(name, int(wrong[0]), "integers from 0 to 2**63 - 1")
    return array.astype(np.int64)


def _bounds(
    table: _Table, queries: NDArray[np.float32], hidden: NDArray[np.bool_] | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Bound each unit's best score from below and above; both of shape (queries, units).

    Those of a unit whose rows are all ``hidden`` are minus infinity.
    """
    mapped = isinstance(table.vectors, np.memmap)
    # A batch multiplies a matrix, which takes longer than reading the vectors from memory.
    if table.codes is not None and (len(queries) == 1 or mapped):
        return table.codes.bounds(queries, table.starts, table.largest_norm, hidden)
    best = np.full((len(queries), len(table.units)), -np.inf, dtype=np.float32)
    for rows in blocks(len(table.chunks)):
        first, last = np.searchsorted(table.starts, [rows.start, rows.stop - 1], side="right") - 1
        # The first unit may have begun in an earlier block.
        cuts = np.maximum(table.starts[first : last + 1] - rows.start, 0)
        scores = inner_products(table.vectors[rows], queries)
        if hidden is not None:
            scores[:, hidden[rows]] = -np.inf
        here = best[:, first : last + 1]
        np.maximum(here, np.maximum.reduceat(scores, cuts, axis=1), out=here)
    margins = np.array([[_rounding_bound(table, query)] for query in queries], np.float32)
    return best - margins, best + margins


def _rounding_bound(table: _Table, query: NDArray[np.float32]) -> float:
    norm = float(np.linalg.norm(query.astype(np.float64)))
    return rounding_bound(len(query), norm, table.largest_norm)


def _rank(
    table: _Table,
    query: NDArray[np.float32],
    lower: NDArray[np.float32],
    upper: NDArray[np.float32],
    hidden: NDArray[np.bool_] | None,
    *,
    k: int,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the exact scores and the rows of the best chunks of the k best units.

    The k-th largest lower bound is at most the k-th best score, so no unit whose upper bound is
    smaller is in the answer. A rough score is off by at most ``bound``: a unit's best chunk has one
    at most twice that below the largest of the unit.
    """
    kth_best = np.partition(lower, len(lower) - k)[len(lower) - k]
    units = np.flatnonzero(upper >= kth_best)
    rows, owners = _rows_of_units(table, units)
    if hidden is not None:
        shown = ~hidden[rows]
        rows, owners = rows[shown], owners[shown]
    rough = inner_products_of_rows(table.vectors, rows, query)
    firsts = np.flatnonzero(np.diff(owners, prepend=-1))
    largest = np.repeat(np.maximum.reduceat(rough, firsts), np.diff(firsts, append=len(rows)))
    near = rough >= largest - np.float32(2 * _rounding_bound(table, query))
    rows, owners = rows[near], owners[near]
    scores = exact_inner_products(table.vectors, rows, query)
    # Rows ascend by unit and then by chunk, which is the rule for ties.
    order = np.argsort(-scores, kind="stable")
    first_of_unit = np.sort(np.unique(owners[order], return_index=True)[1])
    winners = order[first_of_unit[:k]]
    return scores[winners], rows[winners]


def _rows_of_units(
    table: _Table, units: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    counts = table.starts[units + 1] - table.starts[units]
    before = np.cumsum(counts) - counts
    rows = np.arange(counts.sum()) + np.repeat(table.starts[units] - before, counts)
    return rows, np.repeat(units, counts)
