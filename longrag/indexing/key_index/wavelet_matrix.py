"""A sequence of symbols in the bits they take, with ranks: the wavelet matrix.

Claude, Navarro, Ordóñez: "The Wavelet Matrix: An Efficient Wavelet Tree for Large Alphabets", 2015.
Level by level, from the highest bit of a symbol to the lowest, the bits of all symbols are stored,
and the symbols are then split by that bit, zeros first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from longrag.ingestion.compiled import jit

# Words of 64 bits between two stored counts.
_BLOCK = 4

Int64 = NDArray[np.int64]


class WaveletMatrix:
    """The last column of a sorted text: which row precedes a row, and by which symbol.

    Args:
        bits: uint64 of shape (levels, words).
        ranks: uint32 of shape (levels, blocks + 1), the ones before each block of four words.
        zeros: the zeros of each level.
        shifts: what to add, for each symbol, to a place after the last level to get a row.
    """

    def __init__(
        self, bits: NDArray[Any], ranks: NDArray[Any], zeros: NDArray[Any], shifts: NDArray[Any]
    ) -> None:
        # Compiled code would be compiled again for arrays that can be written to.
        self._arrays = tuple(_read_only(array) for array in (bits, ranks, zeros, shifts))

    block = _BLOCK

    @staticmethod
    def words(length: int) -> int:
        """Return how many words the bits of one level take."""
        return -(-length // (64 * _BLOCK)) * _BLOCK

    @staticmethod
    def build(
        symbols: NDArray[np.uint32], before: Int64
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint32], Int64, Int64]:
        """Return the arrays of a sequence; ``before`` counts the smaller symbols of each symbol."""
        levels = max(1, int(len(before) - 2).bit_length())
        words = WaveletMatrix.words(len(symbols))
        bits = np.zeros((levels, words), np.uint64)
        ranks = np.zeros((levels, words // _BLOCK + 1), np.uint32)
        zeros = np.zeros(levels, np.int64)
        ends = np.zeros(len(before) - 1, np.int64)
        kinds = np.arange(len(before) - 1)
        for level in range(levels):
            bit = np.uint32(levels - 1 - level)
            ones = (symbols >> bit & np.uint32(1)).astype(np.bool_)
            packed = np.packbits(ones, bitorder="little")
            bits[level].view(np.uint8)[: len(packed)] = packed
            blockwise = np.add.reduceat(ones, np.arange(0, len(ones), 64 * _BLOCK), dtype=np.int64)
            ranks[level, 1:] = np.cumsum(blockwise)
            zeros[level] = len(ones) - int(ranks[level, -1])
            symbols = np.concatenate([symbols[~ones], symbols[ones]])
        # After the last level equal symbols are adjacent, in the order of their reversed bits.
        for level in range(levels):
            ends |= (kinds >> level & 1) << (levels - 1 - level)
        order = np.argsort(ends)
        starts = np.zeros(len(kinds), np.int64)
        starts[order[1:]] = np.cumsum(np.diff(before)[order])[:-1]
        return bits, ranks, zeros, before[:-1] - starts

    def follow(self, lo: int, hi: int, symbol: int) -> tuple[int, int]:
        """Return the rows that one symbol leads to from an interval of rows."""
        first, last = jit(_follow, _rank, _ones)(self._arrays, lo, hi, symbol)
        return int(first), int(last)

    def distinct(self, lo: int, hi: int) -> tuple[Int64, Int64, Int64]:
        """Return the symbols before an interval of rows, rising, and the rows each leads to."""
        found: tuple[Int64, Int64, Int64] = jit(_distinct, _rank, _ones)(self._arrays, lo, hi)
        return found

    def walk(self, rows: Int64, stop: int) -> tuple[Int64, Int64]:
        """Step from each row until ``stop`` is met; returns the rows of ``stop``, and the steps."""
        run = jit(_walk, _step, _rank, _ones)
        found: tuple[Int64, Int64] = run(self._arrays, np.asarray(rows, np.int64), stop)
        return found

    def read(self, rows: ArrayLike, lengths: ArrayLike) -> tuple[Int64, Int64]:
        """Step from each row the given number of times; return all symbols met, and their rows."""
        first, counts = np.asarray(rows, np.int64), np.asarray(lengths, np.int64)
        met: tuple[Int64, Int64] = jit(_read, _step, _rank, _ones)(self._arrays, first, counts)
        return met


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _ones(word: Any) -> Any:
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    pairs = np.uint64(0x3333333333333333)
    word = (word & pairs) + ((word >> np.uint64(2)) & pairs)
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


def _rank(bits: Any, ranks: Any, level: int, place: int) -> Any:
    word = place >> 6
    start = word // _BLOCK
    total = np.int64(ranks[level, start])
    for index in range(start * _BLOCK, word):
        total += _ones(bits[level, index])
    if place & 63:
        below = (np.uint64(1) << np.uint64(place & 63)) - np.uint64(1)
        total += _ones(bits[level, word] & below)
    return total


def _follow(matrix: Any, lo: Any, hi: Any, symbol: int) -> Any:
    bits, ranks, zeros, shifts = matrix
    levels = len(zeros)
    for level in range(levels):
        low, high = _rank(bits, ranks, level, lo), _rank(bits, ranks, level, hi)
        if symbol >> (levels - 1 - level) & 1:
            lo, hi = zeros[level] + low, zeros[level] + high
        else:
            lo, hi = lo - low, hi - high
        if lo == hi:
            return np.int64(0), np.int64(0)
    return lo + shifts[symbol], hi + shifts[symbol]


def _distinct(matrix: Any, lo: int, hi: int) -> Any:
    bits, ranks, zeros, shifts = matrix
    levels = len(zeros)
    room = max(0, min(hi - lo, len(shifts)))
    symbols, los, his = (
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
    )
    stack = np.empty((levels + 2, 4), np.int64)
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = 0, lo, hi, 0
    height, found = (1 if hi > lo else 0), 0
    while height:
        height -= 1
        level, lo, hi, symbol = stack[height]
        if level == levels:
            symbols[found] = symbol
            los[found], his[found] = lo + shifts[symbol], hi + shifts[symbol]
            found += 1
            continue
        low, high = _rank(bits, ranks, level, lo), _rank(bits, ranks, level, hi)
        if high > low:
            stack[height, 0], stack[height, 3] = level + 1, 2 * symbol + 1
            stack[height, 1], stack[height, 2] = zeros[level] + low, zeros[level] + high
            height += 1
        if hi - high > lo - low:
            stack[height, 0], stack[height, 3] = level + 1, 2 * symbol
            stack[height, 1], stack[height, 2] = lo - low, hi - high
            height += 1
    return symbols[:found], los[:found], his[:found]


def _step(matrix: Any, row: Any) -> Any:
    bits, ranks, zeros, shifts = matrix
    symbol = 0
    for level in range(len(zeros)):
        below = _rank(bits, ranks, level, row)
        if bits[level, row >> 6] >> np.uint64(row & 63) & np.uint64(1):
            symbol, row = 2 * symbol + 1, zeros[level] + below
        else:
            symbol, row = 2 * symbol, row - below
    return symbol, row + shifts[symbol]


def _walk(matrix: Any, rows: Int64, stop: int) -> Any:
    found, steps = np.empty(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for index in range(len(rows)):
        symbol, row = _step(matrix, rows[index])
        while symbol != stop:
            steps[index] += 1
            symbol, row = _step(matrix, row)
        found[index] = row
    return found, steps


def _read(matrix: Any, starts: Int64, lengths: Int64) -> Any:
    total = lengths.sum()
    symbols, rows = np.empty(total, np.int64), np.empty(total, np.int64)
    place = 0
    for index in range(len(starts)):
        row = starts[index]
        for _ in range(lengths[index]):
            symbol, row = _step(matrix, row)
            symbols[place], rows[place] = symbol, row
            place += 1
    return symbols, rows
