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

from longrag.indexing.runs import run_maxima, runs_within
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

    def fit(self, vectors: NDArray[Any]) -> bool:
        """Whether these have the types and shapes of the codes of such vectors."""
        parts = (self.values, self.scales, self.errors)
        each = ("float32", vectors.shape[:1])
        return [(part.dtype.name, part.shape) for part in parts] == [
            ("int8", vectors.shape),
            each,
            each,
        ]

    def take(self, rows: NDArray[Any] | slice) -> Codes:
        """Return the codes of some rows, by number, by mask or as a range, which copies nothing."""
        return Codes(self.values[rows], self.scales[rows], self.errors[rows])

    def with_room(self, rows: int) -> Codes:
        """Return these rows with room for more, ``rows`` in all."""
        made = Codes(
            np.empty((rows, self.values.shape[1]), np.int8),
            np.empty(rows, np.float32),
            np.empty(rows, np.float32),
        )
        made.put(0, self)
        return made

    def put(self, first: int, codes: Codes) -> None:
        """Write rows into the room there is, from ``first`` on."""
        rows = slice(first, first + len(codes.values))
        self.values[rows], self.scales[rows] = codes.values, codes.scales
        self.errors[rows] = codes.errors

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
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        largest_norm: float,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Bound the best inner product of each run of rows from below and from above.

        The bounds hold for the products that ``exact_inner_products`` gives, roundings included.

        Args:
            queries: shape (queries, width).
            begins: the first row of each run.
            ends: the row after the last one of each run; no run is empty, and none overlap.
            largest_norm: at least the Euclidean norm of every coded vector.

        Returns:
            The lower and the upper bounds, each of shape (queries, runs).
        """
        if len(queries) > 1:
            return _bound_batch(self, queries, begins, ends, largest_norm)
        integers, unit, left_out = _integers(queries[0])
        query = (integers, unit, *_margin(queries[0], left_out, largest_norm))
        bounds = np.empty((2, len(begins)), np.float32)
        _kernel()((self.values, self.scales, self.errors), begins, ends, query, bounds)
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
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    largest_norm: float,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    order = np.argsort(begins)
    begins, ends = begins[order], ends[order]
    lower = np.full((len(queries), len(begins)), -np.inf, np.float32)
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
        runs = runs_within(begins, ends, rows)
        if runs.start == runs.stop:
            continue
        products = (queries @ codes.values[rows].astype(np.float32).T) * codes.scales[rows]
        margin = per_error * codes.errors[rows] + constant
        cuts = begins[runs] - rows.start, ends[runs] - rows.start
        for bounds, values in ((lower, products - margin), (upper, products + margin)):
            here = bounds[:, runs]
            np.maximum(here, run_maxima(values, *cuts), out=here)
    back = np.argsort(order)
    return lower[:, back], upper[:, back]


@cache
def _kernel() -> Callable[..., None]:
    # Importing numba costs a third of a second.
    from numba import njit

    @njit(nogil=True)
    def bound(rows: Any, begins: Any, ends: Any, query: Any, bounds: Any) -> None:
        values, scales, errors = rows
        integers, unit, per_error, constant = query
        for run in range(len(begins)):
            low = high = np.float32(-np.inf)
            for row in range(begins[run], ends[run]):
                total = np.int32(0)
                for column in range(values.shape[1]):
                    total += np.int32(values[row, column]) * np.int32(integers[column])
                product = np.float32(total) * scales[row] * unit
                margin = errors[row] * per_error + constant
                low = max(low, product - margin)
                high = max(high, product + margin)
            bounds[0, run], bounds[1, run] = low, high

    return bound
