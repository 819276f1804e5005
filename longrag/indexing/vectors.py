"""Vectors as indexes keep them: checked at the border, stored as float32 or float16, multiplied.

There are two products. `inner_products` is fast; its rounding is up to BLAS and depends on the
shapes it is given. `exact_inner_products` gives the same value to a pair of vectors in any
batch. Searches find candidates with the first and decide with the second.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from longrag.errors import EmbeddingError, InvalidParameterError
from longrag.types import LARGEST_VALUE

Storage: TypeAlias = Literal["float32", "float16"]
"""How vectors are kept: float16 takes half the memory and rounds each value to 11 bits."""

BLOCK_ROWS = 8192
"""Rows handled at a time, so that what is computed beside them stays a few megabytes."""

_LARGEST = {"float32": LARGEST_VALUE, "float16": 65504.0}

# From here on one matrix product is faster than a matrix-vector product per query.
_MATRIX_QUERIES = 4


def check_vectors(
    vectors: ArrayLike, *, name: str, width: int | None = None, one_row: bool = False
) -> NDArray[np.float32]:
    """Return vectors as a C-contiguous float32 array of shape (rows, width), or raise.

    The caller's array comes back as it is where it already complies; it is never changed.
    There may be no rows, but a row has at least one value.

    Args:
        vectors: rows of numbers.
        name: what the vectors are called in an error message.
        width: the width they must have; any, if None.
        one_row: take a one-dimensional array as a single row.

    Raises:
        EmbeddingError: values that are not numbers, not finite or beyond 1e15 in magnitude, or
            rows of another width.
        InvalidParameterError: not two-dimensional, or rows without values.
    """
    array = _numbers(vectors, name)
    if one_row and array.ndim == 1:
        array = array[np.newaxis]
    if array.ndim != 2 or array.shape[1] == 0:
        remedy = "Stack the vectors as rows; no vectors at all are an array of shape (0, width)."
        raise InvalidParameterError(
            f"{name}.shape", array.shape, "(rows, width) with a width of at least 1", remedy
        )
    if width is not None and array.shape[1] != width:
        raise EmbeddingError(
            f"{name} have {array.shape[1]} values each, where {width} are expected. "
            "Use one embedding model for everything in an index."
        )
    # A float64 beyond the float32 range becomes infinite, which the next check reports.
    with np.errstate(over="ignore"):
        checked = np.ascontiguousarray(array, dtype=np.float32)
    check_magnitude(checked, name, "float32")
    return checked


def _numbers(vectors: ArrayLike, name: str) -> NDArray[Any]:
    try:
        array = np.asarray(vectors)
    except (ValueError, TypeError, OverflowError) as error:
        raise EmbeddingError(
            f"{name} are not rows of numbers of one width: {error}. Check the embedder's answer."
        ) from error
    if array.dtype.kind not in "fiu":
        raise EmbeddingError(
            f"{name} must be real numbers, got values of type {array.dtype}. "
            "Convert them to float32."
        )
    return array


def check_magnitude(vectors: NDArray[Any], name: str, storage: Storage) -> None:
    """Raise ``EmbeddingError`` if a value is not finite or too large for the storage type."""
    if vectors.size == 0:
        return
    limit = _LARGEST[storage]
    # Minimum and maximum carry NaN along and need no array of the vectors' own size.
    with np.errstate(invalid="ignore"):
        if vectors.min() >= -limit and vectors.max() <= limit:
            return
    for rows in blocks(len(vectors)):
        for row, column in np.argwhere(~(np.abs(vectors[rows]) <= limit)):
            raise EmbeddingError(
                f"{name}[{rows.start + row}] holds {vectors[rows][row, column]}; {storage} vectors "
                f"need finite values of at most {limit:g} in magnitude. Check the embedder's "
                "answer for this input."
            )


def pack(
    vectors: NDArray[np.float32], order: NDArray[np.int64], *, name: str, storage: Storage
) -> NDArray[Any]:
    """Copy the rows of checked vectors, in the given order, into an array of the storage type.

    Raises:
        EmbeddingError: a value too large for float16.
    """
    check_magnitude(vectors, name, storage)
    packed = np.empty((len(order), vectors.shape[1]), dtype=storage)
    for rows in blocks(len(order)):
        packed[rows] = vectors[order[rows]]
    return packed


def blocks(count: int) -> Iterator[slice]:
    """Cut a range of rows into slices of `BLOCK_ROWS`."""
    return (slice(i, min(i + BLOCK_ROWS, count)) for i in range(0, count, BLOCK_ROWS))


def release_pages(vectors: NDArray[Any]) -> None:
    """Give back the memory of mapped vectors that were read; their file is not touched.

    Nothing is done for vectors in memory, nor where the mapping keeps its own changes (mode "c").
    """
    array: object = vectors
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap) and array.mode == "c":
            return
        array = array.base
    if isinstance(array, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        array.madvise(mmap.MADV_DONTNEED)


def largest_norm(vectors: NDArray[Any]) -> float:
    """Return the largest Euclidean norm among stored vectors; 0.0 without any."""
    # In float32 the squares of small values would vanish, and with them the error bound.
    return max(
        (
            float(np.linalg.norm(vectors[rows].astype(np.float64), axis=1).max())
            for rows in blocks(len(vectors))
        ),
        default=0.0,
    )


def inner_products(vectors: NDArray[Any], queries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Multiply float32 queries with stored vectors; shape (queries, vectors).

    The last bits depend on the shapes and the machine. `rounding_bound` bounds the difference to
    `exact_inner_products`. The first products of a process with float16 vectors take about half
    a second more, in which two loops are compiled.
    """
    if vectors.dtype == np.float16:
        if len(queries) == 1:
            return _half_products(vectors, queries[0])[np.newaxis]
        vectors = _widen(vectors)
    if len(queries) < _MATRIX_QUERIES:
        return np.stack([vectors @ query for query in queries])
    return np.asarray(queries @ vectors.T)


def inner_products_of_rows(
    vectors: NDArray[Any], rows: NDArray[np.int64], query: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Multiply one float32 query with some of the stored vectors, as `inner_products` does."""
    products = np.empty(len(rows), dtype=np.float32)
    for part in blocks(len(rows)):
        products[part] = inner_products(vectors[rows[part]], query[np.newaxis])[0]
    return products


def exact_inner_products(
    vectors: NDArray[Any], rows: NDArray[np.int64], query: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Multiply one float32 query with some stored vectors in float64, and round to float32.

    The value of a pair does not depend on the other rows, on threads or on BLAS: numpy adds each
    row on its own, in a fixed order.
    """
    products = np.empty(len(rows), dtype=np.float32)
    for part in blocks(len(rows)):
        block = np.multiply(vectors[rows[part]], query, dtype=np.float64)
        products[part] = block.sum(axis=1)
    # Adding zero turns the negative zeros of rounding into ordinary ones.
    return products + np.float32(0)


def rounding_bound(width: int, query_norm: float, largest: float) -> float:
    """Bound the difference between the two products of a query and any vector.

    Twice the standard bound ``n u |x| |y|`` for a sum of n products in any order, u = 2**-24, with
    room for the roundings of the result and of comparisons, and for values below the normal range,
    which some processors flush to zero.
    """
    relative = (width + 8) * 2.0**-23 * query_norm * largest
    return relative + (width + 8) * 2.0**-125 * (1 + query_norm) * (1 + largest)


def _half_products(vectors: NDArray[Any], query: NDArray[Any]) -> NDArray[Any]:
    products = np.empty(len(vectors), dtype=np.float32)
    _half_kernels()[0](vectors.view(np.uint16), query, products)
    return products


def _widen(vectors: NDArray[Any]) -> NDArray[Any]:
    widened = np.empty(vectors.shape, dtype=np.float32)
    _half_kernels()[1](vectors.view(np.uint16), widened)
    return widened


@cache
def _half_kernels() -> tuple[Callable[..., None], Callable[..., None]]:
    # Importing numba costs a third of a second, and numpy's own conversion is 20 times slower
    # than these loops.
    from numba import njit

    @njit
    def value(code):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        magnitude = np.uint32(code & np.uint16(0x7FFF))
        if magnitude >= np.uint32(0x0400):
            bits = np.uint32((magnitude << np.uint32(13)) + np.uint32(0x38000000))
            number = bits.view(np.float32)
        else:
            number = np.float32(magnitude) * np.float32(2.0**-24)
        return -number if code & np.uint16(0x8000) else number

    # Only a sum whose order is free can use vector instructions.
    @njit(fastmath={"reassoc", "contract"}, nogil=True)
    def multiply(codes, query, products):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        for row in range(codes.shape[0]):
            total = np.float32(0)
            for column in range(codes.shape[1]):
                total += value(codes[row, column]) * query[column]
            products[row] = total

    @njit(nogil=True)
    def widen(codes, numbers):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        for row in range(codes.shape[0]):
            for column in range(codes.shape[1]):
                numbers[row, column] = value(codes[row, column])

    return multiply, widen
