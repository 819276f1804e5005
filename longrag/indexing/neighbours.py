"""Nearest neighbours among document vectors, and links made of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from longrag.errors import InvalidParameterError
from longrag.indexing.tree.geometry import check_integer, directions
from longrag.indexing.vectors import check_vectors

# Similarities held at a time: 16 MB as float32, and as much again twice over while ranked.
_BLOCK_VALUES = 1 << 22

# Similarities are compared to six decimals, beyond which float32 products are rounding.
_SCALE = 1_000_000


def nearest_neighbours(
    vectors: ArrayLike, *, k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the k nearest other vectors of each vector by cosine, exactly.

    Takes O(n² width) time and O(n k) memory beyond the vectors: minutes for 100,000 of width 384.
    Runs on one BLAS thread, and cosines are rounded to six decimals before they are compared, so
    that results are the same on every run; equal ones go to the lower index.

    Args:
        vectors: shape (n, width), of any length. A zero vector has no direction: it is near
            nothing.
        k: How many neighbours to find.

    Returns:
        The indices (int64) and cosines (float64), each of shape (n, min(k, n - 1)), nearest first;
        index -1 and cosine -inf where a zero vector leaves no neighbour.

    Raises:
        EmbeddingError: Vectors that are not finite, not numeric or not of one width.
        InvalidParameterError: ``k`` is not an integer of at least 1.
    """
    # threadpoolctl looks through the loaded libraries when it is imported.
    from threadpoolctl import threadpool_limits

    check_integer("k", k, at_least=1)
    checked = check_vectors(vectors, name="vectors")
    unit, directed = directions(checked), (checked != 0).any(axis=1)
    count = len(unit)
    width = max(min(int(k), count - 1), 0)
    indices = np.full((count, width), -1, np.int64)
    cosines = np.full((count, width), -np.inf)
    if not width:
        return indices, cosines
    rows = max(_BLOCK_VALUES // count, 1)
    with threadpool_limits(1, user_api="blas"):
        for first in range(0, count, rows):
            block = slice(first, min(first + rows, count))
            ranks = _ranks(unit, directed, block)
            near = _largest(ranks, width)
            known = np.take_along_axis(ranks, near, axis=1) >= 0
            steps = np.take_along_axis(ranks, near, axis=1) // count - _SCALE
            indices[block] = np.where(known, near, -1)
            cosines[block] = np.where(known, steps / _SCALE, -np.inf)
    return indices, cosines


def nearest_neighbour_links(
    vectors: ArrayLike, *, k: int = 3, mutual: bool = True, min_similarity: float = 0.0
) -> list[tuple[int, int]]:
    """Link each document to its nearest neighbours, for corpora without hyperlinks.

    The pairs are links for ``group_documents`` and compose with those of any other source. See
    ``nearest_neighbours`` for the cost, ties and determinism.

    Args:
        vectors: shape (documents, width), of any length.
        k: How many neighbours of each document are considered.
        mutual: Whether two documents are linked only if each is among the other's neighbours, which
            keeps one central document from collecting the corpus.
        min_similarity: The cosine, in [-1, 1], that linked documents have at least.

    Returns:
        Pairs of indices, sorted, each once, no document with itself. With ``mutual`` the lower
        index comes first; otherwise a pair leads from a document to its neighbour.

    Raises:
        EmbeddingError: Vectors that are not finite, not numeric or not of one width.
        InvalidParameterError: Another argument that is not allowed.
    """
    if not isinstance(min_similarity, (int, float)) or not -1 <= min_similarity <= 1:
        raise InvalidParameterError("min_similarity", min_similarity, "a number in [-1, 1]")
    indices, cosines = nearest_neighbours(vectors, k=k)
    sources, places = np.nonzero(cosines >= min_similarity)
    targets = indices[sources, places]
    pairs = set(zip(sources.tolist(), targets.tolist(), strict=True))
    if mutual:
        pairs = {(a, b) for a, b in pairs if a < b and (b, a) in pairs}
    return sorted(pairs)


def _ranks(
    unit: NDArray[np.float32], directed: NDArray[np.bool_], block: slice
) -> NDArray[np.int64]:
    """Write each cosine and its column as one integer that orders by both; -1 for no neighbour."""
    count = len(unit)
    steps: NDArray[np.int64] = np.rint(unit[block] @ unit.T * _SCALE).astype(np.int64)
    np.clip(steps, -_SCALE, _SCALE, out=steps)
    steps += _SCALE
    steps *= count
    steps += np.arange(count - 1, -1, -1)
    steps[:, ~directed] = -1
    steps[~directed[block]] = -1
    steps[np.arange(len(steps)), np.arange(block.start, block.stop)] = -1
    return steps


def _largest(ranks: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """Return the columns of the largest ranks of each row, largest first."""
    columns = np.argpartition(ranks, ranks.shape[1] - width, axis=1)[:, -width:]
    inside = np.argsort(-np.take_along_axis(ranks, columns, axis=1), axis=1, kind="stable")
    return np.take_along_axis(columns, inside, axis=1)
