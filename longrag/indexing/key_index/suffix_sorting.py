"""Suffix arrays by induced sorting, in linear time.

Nong, Zhang, Chan: "Two Efficient Algorithms for Linear Time Suffix Array Construction", 2011.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from longrag.errors import InvalidParameterError

Int32: TypeAlias = NDArray[np.int32]
Bytes: TypeAlias = NDArray[np.uint8]

MAX_LENGTH = 2**31 - 2
"""The longest text: places must fit 32 bits."""

# Up to this many possible values, a table of all of them is cheaper than sorting those that occur.
_SMALL_ALPHABET = 1 << 20


def suffix_array(values: NDArray[Any], largest: int) -> Int32:
    """Return the starts of all suffixes of a text in lexicographic order; a prefix comes first.

    About 13 bytes a value while it works. Deterministic.

    Args:
        values: unsigned integers up to ``largest``.
        largest: a bound on the values; the smaller, the faster.

    Raises:
        InvalidParameterError: more than 2**31 - 2 values.
    """
    if len(values) > MAX_LENGTH:
        raise InvalidParameterError(
            "ids", f"{len(values)} tokens", f"at most {MAX_LENGTH} tokens", "Build several indexes."
        )
    if largest > _SMALL_ALPHABET:
        kinds, values = np.unique(values, return_inverse=True)
        largest = len(kinds)
    return _sort(np.ascontiguousarray(values, np.int32), largest)


def _sort(text: Int32, largest: int) -> Int32:
    length = len(text)
    if length < 2:
        return np.arange(length, dtype=np.int32)
    kernels = _kernels()
    smaller = np.empty(length, np.uint8)
    buckets = np.zeros(largest + 2, np.int32)
    marked = kernels.classify(text, smaller, buckets)
    array = np.empty(length, np.int32)
    kernels.induce(text, smaller, buckets, marked, array)
    if len(marked) < 2:
        return array
    ordered = kernels.select(smaller, array, len(marked))
    reduced, names = kernels.name(text, marked, ordered, array)
    if names < len(marked):
        ordered = marked[_sort(reduced, names)]
    kernels.induce(text, smaller, buckets, ordered, array)
    return array


class _Kernels(NamedTuple):
    classify: Callable[..., Int32]
    induce: Callable[..., None]
    select: Callable[..., Int32]
    name: Callable[..., tuple[Int32, int]]


@cache
def _kernels() -> _Kernels:
    # Importing numba costs a third of a second, and only building needs it.
    from numba import njit

    compiled: Any = njit(nogil=True)
    return _Kernels(*map(compiled, (_classify, _induce, _select, _name)))


def _classify(text: Int32, smaller: Bytes, buckets: Int32) -> Int32:
    """Mark S-type places, whose suffix is smaller than the next, and find those after L-type."""
    length = len(text)
    smaller[length - 1] = 0
    count = 0
    for place in range(length - 2, -1, -1):
        here, there = text[place], text[place + 1]
        smaller[place] = here < there or (here == there and smaller[place + 1] == 1)
        if smaller[place + 1] == 1 and smaller[place] == 0:
            count += 1
    for value in text:
        buckets[value + 1] += 1
    for value in range(1, len(buckets)):
        buckets[value] += buckets[value - 1]
    marked = np.empty(count, np.int32)
    count = 0
    for place in range(1, length):
        if smaller[place] == 1 and smaller[place - 1] == 0:
            marked[count] = place
            count += 1
    return marked


def _induce(text: Int32, smaller: Bytes, buckets: Int32, marked: Int32, array: Int32) -> None:
    """Sort all suffixes by what the order of the marked ones tells of them."""
    length = len(text)
    array[:] = -1
    ends = buckets[1:].copy()
    for index in range(len(marked) - 1, -1, -1):
        value = text[marked[index]]
        ends[value] -= 1
        array[ends[value]] = marked[index]
    heads = buckets[:-1].copy()
    last = text[length - 1]
    array[heads[last]] = length - 1
    heads[last] += 1
    for row in range(length):
        place = array[row] - 1
        if place >= 0 and smaller[place] == 0:
            value = text[place]
            array[heads[value]] = place
            heads[value] += 1
    ends[:] = buckets[1:]
    for row in range(length - 1, -1, -1):
        place = array[row] - 1
        if place >= 0 and smaller[place] == 1:
            value = text[place]
            ends[value] -= 1
            array[ends[value]] = place


def _select(smaller: Bytes, array: Int32, count: int) -> Int32:
    """Return the marked places in their order in the array."""
    ordered = np.empty(count, np.int32)
    found = 0
    for place in array:
        if place > 0 and smaller[place] == 1 and smaller[place - 1] == 0:
            ordered[found] = place
            found += 1
    return ordered


def _name(text: Int32, marked: Int32, ordered: Int32, space: Int32) -> tuple[Int32, int]:
    """Rank the stretches between marked places, equal ones alike; overwrites ``space``."""
    length, count = len(text), len(marked)
    for index in range(count):
        space[marked[index]] = index
    reduced = np.empty(count, np.int32)
    names = 0
    reduced[space[ordered[0]]] = 0
    for rank in range(1, count):
        one, other = ordered[rank - 1], ordered[rank]
        index, following = space[one], space[other]
        end = marked[index + 1] if index + 1 < count else length
        stop = marked[following + 1] if following + 1 < count else length
        equal = end - one == stop - other and end < length and stop < length
        while equal and one <= end:
            equal = text[one] == text[other]
            one += 1
            other += 1
        if not equal:
            names += 1
        reduced[following] = names
    return reduced, names + 1
