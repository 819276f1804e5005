"""Suffix arrays by prefix doubling: each round sorts by twice as many values as the one before.

Larsson, Sadakane: "Faster Suffix Sorting", 2007. A round sorts only what the rounds before it left
equal, which of natural text is little: up to eight million values it takes as long as compiled
induced sorting. Only text that repeats itself at length takes many rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from longrag.errors import InvalidParameterError

Int32: TypeAlias = NDArray[np.int32]

MAX_LENGTH = 2**31 - 2
"""The longest text: places must fit 32 bits."""

# Up to this many possible values, they need not be numbered by those that occur.
_SMALL_ALPHABET = 1 << 20
# Rows that are sorted at once, so that what sorts them stays small.
_BLOCK = 1 << 20


def suffix_array(values: NDArray[Any], largest: int) -> Int32:
    """Return the starts of all suffixes of a text in lexicographic order; a prefix comes first.

    30 to 70 bytes a value while it works. Deterministic.

    Args:
        values: unsigned integers up to ``largest``.
        largest: a bound on the values; the smaller, the faster.

    Raises:
        InvalidParameterError: more than 2**31 - 2 values.
    """
    length = len(values)
    if length > MAX_LENGTH:
        raise InvalidParameterError(
            "ids", f"{length} tokens", f"at most {MAX_LENGTH} tokens", "Build several indexes."
        )
    if largest > _SMALL_ALPHABET:
        kinds, values = np.unique(values, return_inverse=True)
        largest = len(kinds)
    rows, firsts, known = _by_first_values(values.astype(np.int32), largest)
    # The rank of a suffix is the first row of those that are equal so far; nothing is below all.
    rank = np.full(length + 1, -1, np.int32)
    sizes = np.diff(firsts, append=length)
    rank[rows] = np.repeat(firsts, sizes)
    unsorted = np.flatnonzero(np.repeat(sizes > 1, sizes))
    while len(unsorted):
        blocks = _blocks(rank[rows[unsorted]])
        left = [_refine(rows, rank, unsorted[begin:end], known) for begin, end in blocks]
        unsorted = np.concatenate(left)
        known *= 2
    return rows


def _by_first_values(values: Int32, largest: int) -> tuple[Int32, NDArray[np.int64], int]:
    """Sort suffixes by as many values as fit 64 bits beside the place.

    Returns the sorted places, the rows that differ from the one before, and how many values count.
    """
    length = len(values)
    bits, place_bits = int(largest + 1).bit_length(), length.bit_length()
    known = (63 - place_bits) // bits
    keys = np.zeros(length, np.int64)
    for shift in range(known):
        keys <<= bits
        # The end of the text is 0, below all values.
        begun = keys[: max(length - shift, 0)]
        begun += values[shift:]
        begun += 1
    keys <<= place_bits
    keys += np.arange(length)
    keys.sort()
    rows = (keys & ((1 << place_bits) - 1)).astype(np.int32)
    keys >>= place_bits
    return rows, np.flatnonzero(np.diff(keys, prepend=-1)), known


def _blocks(groups: Int32) -> Iterator[tuple[int, int]]:
    """Cut rising numbers of groups into blocks of whole groups."""
    begin = 0
    while begin < len(groups):
        last = groups[min(begin + _BLOCK, len(groups)) - 1]
        end = int(np.searchsorted(groups, last, side="right"))
        yield begin, end
        begin = end


def _refine(rows: Int32, rank: Int32, block: NDArray[np.int64], known: int) -> NDArray[np.int64]:
    """Sort equal rows by the ranks of what follows the known values; return what is equal yet."""
    places = rows[block]
    length = len(rows)
    keys = rank[places] * np.int64(length + 1)
    keys += rank[np.minimum(places.astype(np.int64) + known, length)]
    order = np.argsort(keys)
    places, keys = places[order], keys[order]
    rows[block] = places
    firsts = np.flatnonzero(np.diff(keys, prepend=-2))
    sizes = np.diff(firsts, append=len(block))
    rank[places] = np.repeat(block[firsts], sizes)
    return block[np.repeat(sizes > 1, sizes)]
