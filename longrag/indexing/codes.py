"""Vectors as one signed byte a value, with a proven bound on the rounding error.

A row x is kept as x' = scale * codes, with the norm of x - x' beside it. A query q, rounded to
q' = unit * integers, is multiplied with the codes in integers. Then
``|q.x - q'.x'| <= (|q| + |q - q'|) |x - x'| + |q - q'| |x|``. By this bound a search that reads a
quarter of float32's bytes knows which few rows can still be among the best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longrag.indexing.vectors import blocks

_LARGEST_CODE = 127
_LARGEST_SUM = 2**31 - 1
# Rows whose widened codes stay in a core's cache while they are multiplied with a batch.
_BATCH_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Codes:
    """Coded rows.

    Args:
        values: int8, shape (rows, width).
        scales: float32, shape (rows,).
        errors: float32, shape (rows,): the Euclidean norms of what the codes leave out, rounded up.
    """

    values: NDArray[np.int8]
    scales: NDArray[np.float32]
    errors: NDArray[np.float32]

    @classmethod
    def of(cls, vectors: NDArray[Any]) -> Codes:
        """Code stored vectors of finite values, shape (rows, width)."""
        codes = cls(
            np.empty(vectors.shape, np.int8),
            np.empty(len(vectors), np.float32),
            np.empty(len(vectors), np.float32),
        )
        for rows in blocks(len(vectors)):
            block = vectors[rows].astype(np.float64)
            scales = (np.abs(block).max(axis=1) / _LARGEST_CODE).astype(np.float32)
            # A row smaller than the least float32 has only an error.
            divisors = np.where(scales > 0, scales, np.inf).astype(np.float64)[:, np.newaxis]
            values = np.clip(np.rint(block / divisors), -_LARGEST_CODE, _LARGEST_CODE)
            block -= values * scales.astype(np.float64)[:, np.newaxis]
            codes.values[rows], codes.scales[rows] = values, scales
            codes.errors[rows] = _rounded_up(np.linalg.norm(block, axis=1))
        return codes

    def take(self, rows: NDArray[Any]) -> Codes:
        """Return the codes of some rows, by number or by mask."""
        return Codes(self.values[rows], self.scales[rows], self.errors[rows])

    def followed_by(self, others: Codes) -> Codes:
        """Return these rows and then the others'."""
        return Codes(
            np.concatenate([self.values, others.values]),
            np.concatenate([self.scales, others.scales]),
            np.concatenate([self.errors, others.errors]),
        )

    def bounds(
        self,
        queries: NDArray[np.float32],
        starts: NDArray[np.int64],
        largest_norm: float,
        hidden: NDArray[np.bool_] | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Bound the best inner product of each group of rows from below and from above.

        The bounds hold for the products that ``exact_inner_products`` gives, roundings included.

        Args:
            queries: shape (queries, width).
            starts: where each group of rows begins, and the number of rows at the end; no group is
                empty.
            largest_norm: at least the Euclidean norm of every coded vector.
            hidden: the rows that are passed over, as a mask; none by default.

        Returns:
            The lower and the upper bounds, each of shape (queries, groups); minus infinity for a
            group of which every row is passed over.
        """
        if hidden is None:
            hidden = np.zeros(len(self.values), bool)
        if len(queries) > 1:
            return _bound_batch(self, queries, starts, largest_norm, hidden)
        integers, unit, left_out = _integers(queries[0])
        query = (integers, unit, *_margin(queries[0], left_out, largest_norm))
        bounds = np.empty((2, len(starts) - 1), np.float32)
        _kernel()((self.values, self.scales, self.errors), hidden, starts, query, bounds)
        return bounds[:1], bounds[1:]


def _integers(query: NDArray[np.float32]) -> tuple[NDArray[np.int16], np.float32, float]:
    """Return a query as integers, their unit, and the norm of what they leave out.

    The integers are as large as sums with any codes allow in 32 bits.
    """
    largest = min(2**15 - 1, _LARGEST_SUM // (_LARGEST_CODE * len(query)))
    unit = np.float32(np.abs(query).max() / largest)
    exact = query.astype(np.float64)
    integers = np.zeros(len(query), np.int16)
    if unit > 0:
        integers[:] = np.clip(np.rint(exact / np.float64(unit)), -largest, largest)
    return integers, unit, float(np.linalg.norm(exact - integers * np.float64(unit)))


def _margin(
    query: NDArray[np.float32], left_out: float, largest_norm: float
) -> tuple[np.float32, np.float32]:
    """Return the error of a product for each unit of a row's error, and the constant part."""
    norm = float(np.linalg.norm(query.astype(np.float64)))
    # Eight roundings to float32, of which one is that of the exact product; and values below the
    # normal range, which some processors flush to zero.
    rounding = 2.0**-21 * (norm + left_out) * 2 * largest_norm
    tiny = (len(query) + 8) * 2.0**-125 * (1 + norm) * (1 + largest_norm)
    constant = left_out * largest_norm + rounding + tiny
    upward = _rounded_up(np.array([(norm + left_out) * (1 + 2.0**-20), constant]))
    return upward[0], upward[1]


def _rounded_up(values: NDArray[np.float64]) -> NDArray[np.float32]:
    rounded = values.astype(np.float32)
    return np.nextafter(rounded, np.float32(np.inf))


def _bound_batch(
    codes: Codes,
    queries: NDArray[np.float32],
    starts: NDArray[np.int64],
    largest_norm: float,
    hidden: NDArray[np.bool_],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    lower = np.full((len(queries), len(starts) - 1), -np.inf, np.float32)
    upper = lower.copy()
    width = queries.shape[1]
    margins = [_margin(query, 0.0, largest_norm) for query in queries]
    per_error = np.array([[margin[0]] for margin in margins])
    # Sums of width products in float32, in whatever order the BLAS library chooses.
    norms = np.linalg.norm(queries.astype(np.float64), axis=1, keepdims=True)
    sums = (width + 8) * 2.0**-23 * norms * 2 * largest_norm
    constant = _rounded_up(sums + np.array([[margin[1]] for margin in margins], np.float64))
    for first in range(0, len(codes.values), _BATCH_ROWS):
        rows = slice(first, min(first + _BATCH_ROWS, len(codes.values)))
        begin, end = np.searchsorted(starts, [rows.start, rows.stop - 1], side="right") - 1
        cuts = np.maximum(starts[begin : end + 1] - rows.start, 0)
        products = (queries @ codes.values[rows].astype(np.float32).T) * codes.scales[rows]
        margin = per_error * codes.errors[rows] + constant
        for bounds, values in ((lower, products - margin), (upper, products + margin)):
            values[:, hidden[rows]] = -np.inf
            here = bounds[:, begin : end + 1]
            np.maximum(here, np.maximum.reduceat(values, cuts, axis=1), out=here)
    return lower, upper


@cache
def _kernel() -> Callable[..., None]:
    # Importing numba costs a third of a second.
    from numba import njit

    @njit(nogil=True)
    def bound(rows: Any, hidden: Any, starts: Any, query: Any, bounds: Any) -> None:
        values, scales, errors = rows
        integers, unit, per_error, constant = query
        for group in range(len(starts) - 1):
            low = high = np.float32(-np.inf)
            for row in range(starts[group], starts[group + 1]):
                if hidden[row]:
                    continue
                total = np.int32(0)
                for column in range(values.shape[1]):
                    total += np.int32(values[row, column]) * np.int32(integers[column])
                product = np.float32(total) * scales[row] * unit
                margin = errors[row] * per_error + constant
                low = max(low, product - margin)
                high = max(high, product + margin)
            bounds[0, group], bounds[1, group] = low, high

    return bound
