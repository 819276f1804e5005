"""Vectors as one signed byte a value, with a proven bound on the rounding error.

A row x is kept as x' = scale * codes, with the norm of x - x' beside it. A query q, rounded to
q' = unit * integers, is multiplied with the codes in integers. Then
``|q.x - q'.x'| <= (|q| + |q - q'|) |x - x'| + |q - q'| |x|``. By this bound a search that reads a
quarter of float32's bytes knows which few rows can still be among the best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longrag.indexing.vectors import blocks
from longrag.ingestion.adjacency import jit

_LARGEST_CODE = 127
_LARGEST_SUM = 2**31 - 1


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
        # Codes in memory and mapped ones then run the same compiled loop.
        rows = (_frozen(self.values), _frozen(self.scales), _frozen(self.errors))
        bounds = np.empty((len(queries), 2, len(begins)), np.float32)
        asked = _Asked.of(queries, largest_norm)
        jit(_scan)(rows, _frozen(begins), _frozen(ends), asked, bounds)
        return bounds[:, 0], bounds[:, 1]


class _Asked(NamedTuple):
    """Coded queries: integers, their units, and the two parts of the margin of a product."""

    integers: NDArray[np.int16]
    units: NDArray[np.float32]
    per_error: NDArray[np.float32]
    constant: NDArray[np.float32]

    @classmethod
    def of(cls, queries: NDArray[np.float32], largest_norm: float) -> _Asked:
        coded = [_integers(query) for query in queries]
        margins = [
            _margin(query, left_out, largest_norm)
            for query, (_, _, left_out) in zip(queries, coded, strict=True)
        ]
        return cls(
            np.array([integers for integers, _, _ in coded], np.int16).reshape(queries.shape),
            np.array([unit for _, unit, _ in coded], np.float32),
            np.array([per_error for per_error, _ in margins], np.float32),
            np.array([constant for _, constant in margins], np.float32),
        )


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


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


def _scan(rows: Any, begins: Any, ends: Any, asked: Any, bounds: Any) -> None:
    values, scales, errors = rows
    integers, units, per_error, constant = asked
    for run in range(len(begins)):
        for query in range(len(units)):
            low = high = np.float32(-np.inf)
            for row in range(begins[run], ends[run]):
                total = np.int32(0)
                for column in range(values.shape[1]):
                    product = np.int32(values[row, column]) * np.int32(integers[query, column])
                    # numba adds 32 bits in 64, for which processors have no fast product.
                    total = np.int32(total + np.int32(product))
                score = np.float32(total) * scales[row] * units[query]
                margin = errors[row] * per_error[query] + constant[query]
                low = max(low, score - margin)
                high = max(high, score + margin)
            bounds[query, 0, run], bounds[query, 1, run] = low, high
