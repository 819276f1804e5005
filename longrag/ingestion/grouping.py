"""Grouping of linked documents into long units (LongRAG, Algorithm 1).

The kernel here and those of the link matrix are plain Python over arrays of integers. numba
compiles that same source when there is enough work to repay the compilation.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longrag.errors import InvalidParameterError
from longrag.ingestion.adjacency import (
    MAX_DOCUMENTS,
    IntArray,
    LinkMatrix,
    Links,
    jit,
    link_array,
    link_matrix,
)

COMPILE_FROM = 200_000
"""Documents plus links from which the kernels run compiled.

Uncompiled they take about 0.3 s for that many. Compiling takes 2 s the first time on a machine, and
loading the compiled kernels 0.3 s in each process after that.
"""

_SIZE = "an integer from 0 to 2**63 - 1"


def group_documents(
    sizes: Sequence[int] | NDArray[np.integer[Any]],
    links: Links,
    *,
    max_size: int = 4096,
    directed: bool = True,
) -> list[list[int]]:
    """Group linked documents into units of at most ``max_size`` tokens (LongRAG, Algorithm 1).

    Documents are visited in order of (degree, index), where the degree is the number of other
    documents related to them. Each one begins a group and takes in the groups that already hold a
    related document, in order of (size, creation), as long as the sum stays within ``max_size``.
    The paper leaves ties open; here they are settled, so the result depends on nothing but the
    sizes and the set of links. Time and memory are linear in documents and links.

    Args:
        sizes: The tokens of each document, non-negative integers of shape (documents,).
        links: Pairs (source, target) of document indices: an integer array of shape (links, 2),
            of which int32 and int64 are not copied; any iterable of pairs; a mapping from source
            to targets; or a networkx graph whose nodes are document indices. Repeated links and
            links of a document to itself are ignored.
        max_size: The most tokens a group may hold. A larger document stays alone.
        directed: Whether a document is related to those it links to alone, or also to those that
            link to it. An edge of an undirected graph counts as two links.

    Returns:
        A partition of ``range(len(sizes))``: each group ascending, groups in order of their first
        document. A document without related documents is its own group unless another takes it in.

    Raises:
        InvalidParameterError: If a size is negative or no integer, a link is no pair or leads
            outside the documents, or ``max_size`` is not a positive integer.
    """
    limit = _checked_limit(max_size)
    if directed not in (True, False):
        raise InvalidParameterError("directed", directed, "True or False")
    tokens = _checked_sizes(sizes)
    pairs = link_array(links, len(tokens), directed=bool(directed))
    compiled = len(tokens) + len(pairs) >= COMPILE_FROM
    matrix = link_matrix(pairs, len(tokens), directed=bool(directed), compiled=compiled)
    return groups_of(matrix, tokens, max_size=limit, compiled=compiled)


def groups_of(
    matrix: LinkMatrix, tokens: NDArray[np.int64], *, max_size: int, compiled: bool
) -> list[list[int]]:
    """Group the documents of a link matrix that is already built.

    Args:
        matrix: The related documents of each document.
        tokens: The tokens of each document, int64 of shape (documents,).
        max_size: The most tokens a group may hold.
        compiled: Whether to run the kernel compiled. The result is the same.
    """
    order = np.argsort(matrix.degrees, kind="stable").astype(np.int32)
    merge = jit(_merge) if compiled else _merge
    return _as_lists(merge(order, matrix.starts, matrix.neighbours, tokens.copy(), max_size))


def _merge(
    order: IntArray, starts: IntArray, neighbours: IntArray, size: IntArray, max_size: int
) -> IntArray:
    """Run Algorithm 1 over a forest in which the root of a group is its newest document.

    Returns each document's parent. ``size`` is overwritten: it becomes that of the group at its
    root. The heap yields the candidates in order of (size, creation), and few more than are merged
    are taken from it, so all taking together is bounded by the number of documents.
    """
    parent = np.full(len(order), -1, np.int32)
    created = np.zeros(len(order), np.int32)
    seen_by = np.full(len(order), -1, np.int32)
    # Empty, but numba learns from it what the list will hold.
    candidates = [(size[0], created[0]) for _ in range(0)]
    for position in range(len(order)):
        document = order[position]
        room = max_size - size[document]
        for slot in range(starts[document], starts[document + 1]):
            group = neighbours[slot]
            if parent[group] < 0:
                continue
            while parent[group] != group:
                parent[group] = parent[parent[group]]
                group = parent[group]
            if seen_by[group] != document:
                seen_by[group] = document
                if size[group] <= room:
                    candidates.append((size[group], created[group]))
        parent[document] = document
        created[document] = position
        heapify(candidates)
        while len(candidates) > 0:
            tokens, creation = heappop(candidates)
            if tokens > room:
                break
            room -= tokens
            parent[order[creation]] = document
        candidates.clear()
        size[document] = max_size - room
    return parent


def _as_lists(parent: NDArray[np.int32]) -> list[list[int]]:
    root = parent
    while not np.array_equal(root, root[root]):
        root = root[root]
    first = np.empty_like(root)
    # Written backwards, so that of a group's documents the first is what remains.
    first[root[::-1]] = np.arange(len(root), dtype=np.int32)[::-1]
    label = first[root]
    members = np.argsort(label, kind="stable")
    bounds = np.flatnonzero(np.diff(label[members], prepend=-1, append=len(label)))
    ordered = members.tolist()
    return [ordered[begin:end] for begin, end in pairwise(bounds.tolist())]


def _checked_limit(max_size: int) -> int:
    if (
        isinstance(max_size, bool)
        or not isinstance(max_size, int | np.integer)
        or not 1 <= max_size < 2**63
    ):
        raise InvalidParameterError("max_size", max_size, "an integer from 1 to 2**63 - 1")
    return int(max_size)


def _checked_sizes(sizes: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    listed = hasattr(sizes, "__getitem__") and not isinstance(sizes, Mapping)
    if not listed or getattr(sizes, "ndim", 1) != 1:
        raise InvalidParameterError("sizes", sizes, "a sequence with one size a document")
    if len(sizes) > MAX_DOCUMENTS:
        raise InvalidParameterError("sizes", len(sizes), f"of at most {MAX_DOCUMENTS} documents")
    if isinstance(sizes, np.ndarray) and sizes.size and sizes.dtype.kind not in "iu":
        raise InvalidParameterError("sizes", f"an array of {sizes.dtype}", "integers")
    tokens = sizes.astype(np.int64) if isinstance(sizes, np.ndarray) else _as_integers(sizes)
    # An unsigned size beyond int64 has become negative, and is refused with the others.
    if (tokens < 0).any():
        index = int(np.argmax(tokens < 0))
        raise InvalidParameterError(f"sizes[{index}]", sizes[index], _SIZE)
    return tokens


def _as_integers(sizes: Sequence[int]) -> NDArray[np.int64]:
    tokens = array("q")
    try:
        tokens.extend(iter(sizes))
    except (TypeError, OverflowError):
        # What was taken in before the failure tells which one failed.
        index = len(tokens)
        raise InvalidParameterError(f"sizes[{index}]", sizes[index], _SIZE) from None
    return np.array(tokens, np.int64)
