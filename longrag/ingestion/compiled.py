"""What numba compiles, where the extra ``fast`` is installed: grouping at scale.

Each kernel has an uncompiled counterpart with the same result, which is fast enough for a corpus of
a usual size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
IntArray: TypeAlias = NDArray[np.signedinteger[Any]]


def can_compile() -> bool:
    """Tell whether numba is installed; it is not imported."""
    return find_spec("numba") is not None


@cache
def jit(kernel: Kernel, *helpers: Callable[..., Any]) -> Kernel:
    """Compile a kernel, and the helpers it calls, with numba for one thread.

    The machine code is kept on disk where that is possible.
    """
    # numba takes up to half a second to import, and small corpora never need it.
    import numba

    for helper in helpers:
        numba.extending.register_jitable(helper)
    try:
        return cast(Kernel, numba.njit(cache=True, nogil=True)(kernel))
    except RuntimeError:
        # numba refuses to cache when neither the package's nor the user's folder is writable.
        return cast(Kernel, numba.njit(nogil=True)(kernel))


def count_rows(sources: IntArray, targets: IntArray, directed: bool, counts: IntArray) -> None:
    """Count into ``counts[i]`` the links at document ``i``."""
    for link in range(len(sources)):
        counts[sources[link]] += 1
        if not directed:
            counts[targets[link]] += 1


def fill_rows(
    sources: IntArray, targets: IntArray, directed: bool, ends: IntArray, neighbours: IntArray
) -> None:
    """Fill each row from its end down, which turns ``ends`` into the starts of the rows."""
    for link in range(len(sources)):
        source, target = sources[link], targets[link]
        ends[source] -= 1
        neighbours[ends[source]] = target
        if not directed:
            ends[target] -= 1
            neighbours[ends[target]] = source


def compact_rows(starts: IntArray, neighbours: IntArray) -> None:
    """Drop self-links and repeats in place."""
    count = len(starts) - 1
    seen_by = np.full(count, -1, np.int32)
    kept = 0
    begin = starts[0]
    for document in range(count):
        end = starts[document + 1]
        for slot in range(begin, end):
            neighbour = neighbours[slot]
            if neighbour != document and seen_by[neighbour] != document:
                seen_by[neighbour] = document
                neighbours[kept] = neighbour
                kept += 1
        begin = end
        starts[document + 1] = kept


def merge(  # noqa: PLR0917 (numba compiles no keyword-only parameters)
    order: IntArray,
    starts: IntArray,
    neighbours: IntArray,
    sizes: IntArray,
    max_size: int,
    heap: IntArray,
) -> IntArray:
    """Run Algorithm 1; return for each document the label of its group, which is a member.

    A group's key orders it by (size, creation) in one integer: tokens * documents + position of its
    newest member in ``order``. A document in no group yet has a key that fits nowhere. ``heap`` is
    room for as many keys as a document has neighbours.
    """
    count = len(order)
    label = np.arange(count).astype(np.int32)
    following = np.arange(count).astype(np.int32)
    members = np.ones(count, np.int32)
    keys = np.full(count, (max_size + 1) * count, np.int64)
    seen_by = np.full(count, -1, np.int32)
    for position in range(count):
        document = order[position]
        room = max_size - min(sizes[document], max_size + 1)
        found = 0
        for slot in range(starts[document], starts[document + 1]):
            related = label[neighbours[slot]]
            if keys[related] < (room + 1) * count and seen_by[related] != document:
                seen_by[related] = document
                heap[found] = keys[related]
                found += 1
        for at in range(found // 2 - 1, -1, -1):
            sift(heap, at, found)
        group = document
        while found > 0 and heap[0] < (room + 1) * count:
            room -= heap[0] // count
            group = join(group, label[order[heap[0] % count]], label, following, members)
            found -= 1
            heap[0] = heap[found]
            sift(heap, 0, found)
        keys[group] = (max_size - room) * count + position
    return label


def sift(heap: IntArray, at: int, end: int) -> None:
    """Move a key down to its place in the binary heap ``heap[:end]``, smallest on top."""
    key = heap[at]
    child = 2 * at + 1
    while child < end:
        if child + 1 < end and heap[child + 1] < heap[child]:
            child += 1
        if key <= heap[child]:
            break
        heap[at] = heap[child]
        at = child
        child = 2 * at + 1
    heap[at] = key


def join(one: int, other: int, label: IntArray, following: IntArray, members: IntArray) -> int:
    """Join two groups under the label of the one with more members, and return that label.

    Members form a ring through ``following``. As the smaller group is relabelled, a document is
    relabelled at most log2(documents) times.
    """
    if members[other] > members[one]:
        one, other = other, one
    members[one] += members[other]
    document = other
    for _ in range(members[other]):
        label[document] = one
        document = following[document]
    following[one], following[other] = following[other], following[one]
    return one
