"""The link matrix: which documents are related to which, in compressed sparse rows."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from longrag.errors import InvalidParameterError
from longrag.ingestion.compiled import IntArray, compact_rows, count_rows, fill_rows, jit

MAX_DOCUMENTS = 2**31 - 1
"""The neighbours are kept as int32."""

_ALLOWED = "an iterable of pairs (source, target) of document indices, as integers"


@runtime_checkable
class Graph(Protocol):
    """What is used of a networkx graph; any object with these three methods will do."""

    def is_directed(self) -> bool:
        """Tell whether an edge leads from its first node to its second alone."""
        ...

    def nodes(self) -> Iterable[int]:
        """List the nodes, indices of documents."""
        ...

    def edges(self) -> Iterable[tuple[int, int]]:
        """List the edges as pairs of nodes."""
        ...


Links: TypeAlias = (
    NDArray[np.integer[Any]] | Mapping[int, Iterable[int]] | Iterable[tuple[int, int]] | Graph
)
"""Pairs (source, target), a mapping from sources to targets, or a graph of document indices."""


class LinkMatrix(NamedTuple):
    """The documents related to each document, without repeats and without the document itself.

    Those related to document ``i`` are ``neighbours[starts[i]:starts[i + 1]]``, in no particular
    order. ``starts`` is int64 of shape (documents + 1,); ``neighbours`` is int32 and may be longer
    than ``starts[-1]``: what follows is unused.
    """

    starts: NDArray[np.int64]
    neighbours: NDArray[np.int32]

    @property
    def degrees(self) -> NDArray[np.int64]:
        """The number of other documents related to each document, shape (documents,)."""
        return np.diff(self.starts)


def link_matrix(links: IntArray, count: int, *, directed: bool, compiled: bool) -> LinkMatrix:
    """Build the link matrix in time and memory linear in the number of links.

    Args:
        links: Shape (links, 2), each row a source and a target in ``range(count)``. Not copied.
        count: The number of documents.
        directed: Whether a link relates its source to its target alone, or both to each other.
        compiled: Whether to run the compiled kernels, or else sort, which takes several times the
            memory. The result is the same but for the order of neighbours.
    """
    if not compiled:
        return _sorted_matrix(links, count, directed=directed)
    sources, targets = links[:, 0], links[:, 1]
    starts = np.zeros(count + 1, np.int64)
    neighbours = np.empty(len(links) * (1 if directed else 2), np.int32)
    jit(count_rows)(sources, targets, directed, starts)
    np.cumsum(starts, out=starts)
    jit(fill_rows)(sources, targets, directed, starts, neighbours)
    jit(compact_rows)(starts, neighbours)
    return LinkMatrix(starts, neighbours)


def _sorted_matrix(links: IntArray, count: int, *, directed: bool) -> LinkMatrix:
    """Build the link matrix by sorting."""
    bits = max(count - 1, 1).bit_length()
    sources, targets = links.astype(np.int64).T
    pairs = sources << bits | targets
    if not directed:
        pairs = np.concatenate([pairs, targets << bits | sources])
    pairs = pairs[np.concatenate([sources, targets][: 2 - directed]) != pairs & (1 << bits) - 1]
    pairs.sort()
    # numpy's own unique takes several times as long as its sort.
    pairs = pairs[np.flatnonzero(np.diff(pairs, prepend=-1))]
    starts = np.searchsorted(pairs, np.arange(count + 1, dtype=np.int64) << bits)
    return LinkMatrix(starts.astype(np.int64), (pairs & (1 << bits) - 1).astype(np.int32))


def link_array(links: Links, count: int, *, directed: bool) -> IntArray:
    """Bring links of any accepted kind into an array of shape (links, 2), checked.

    An array of int32 or int64 is returned as it is. A link of an undirected graph means both
    directions, so with ``directed`` it appears twice.

    Raises:
        InvalidParameterError: If ``links`` is of another kind or names a document outside
            ``range(count)``.
    """
    if isinstance(links, np.ndarray):
        return _checked_array(links, count)
    pairs = _pairs(_list_pairs(links))
    if directed and isinstance(links, Graph) and not links.is_directed():
        pairs = np.concatenate([pairs, pairs[:, ::-1]])
    _check_indices(pairs, count)
    return pairs


def _checked_array(links: NDArray[Any], count: int) -> IntArray:
    if links.size == 0:
        return np.empty((0, 2), np.int64)
    if links.dtype.kind not in "iu" or links.ndim != 2 or links.shape[1] != 2:
        raise InvalidParameterError(
            "links",
            f"an array of {links.dtype} of shape {links.shape}",
            "an integer array of shape (links, 2)",
        )
    _check_indices(links, count)
    if links.dtype in (np.int32, np.int64) and links.dtype.isnative and links.flags.aligned:
        return links
    return links.astype(np.int64)


def _check_indices(pairs: NDArray[Any], count: int) -> None:
    if pairs.size == 0 or (pairs.min() >= 0 and pairs.max() < count):
        return
    outside = ((pairs < 0) | (pairs >= count)).any(axis=1)
    raise InvalidParameterError(
        "links",
        tuple(pairs[np.argmax(outside)].tolist()),
        f"a link between documents in range({count})",
        "A link names two documents by index, and there is one size per document",
    )


def _list_pairs(links: Links) -> Iterator[object]:
    """List the links of anything but an array as pairs, not yet checked.

    Nodes and keys are listed as self-links, which relate nothing but are checked like any link.
    """
    if isinstance(links, Graph):
        yield from ((node, node) for node in links.nodes())
        yield from links.edges()
    elif isinstance(links, Mapping):
        for source, targets in links.items():
            yield source, source
            yield from ((source, target) for target in _check_iterable(targets))
    else:
        yield from _check_iterable(links)


def _check_iterable(links: object) -> Iterable[object]:
    if isinstance(links, Iterable):
        return links
    raise InvalidParameterError("links", links, _ALLOWED)


def _pairs(links: Iterable[object]) -> NDArray[np.int64]:
    flat = array("q")
    for link in links:
        _append_pair(flat, link)
    return np.array(flat, np.int64).reshape(-1, 2)


def _append_pair(flat: array[int], link: Any) -> None:
    try:
        source, target = link
        flat.append(source)
        flat.append(target)
    except (TypeError, ValueError, OverflowError):
        raise InvalidParameterError(
            "links", link, _ALLOWED, "An adjacency is given as a mapping {source: [targets]}"
        ) from None
