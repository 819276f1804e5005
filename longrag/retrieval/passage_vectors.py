"""The cosines of a question with passages: bounds of all, and the exact ones of some.

Of many passages the one-byte codes give the bounds (see ``longrag.indexing.codes``), in the time of
an exact search; only of the few that matter are the vectors themselves read.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from longrag.indexing.codes import Codes
from longrag.indexing.vectors import blocks, exact_inner_products, largest_norm

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

# From here on the codes are read, and products are those of ``exact_inner_products``.
_CODED_PASSAGES: Final = 100_000

# Fewer of the rows than this share are copied, in place of multiplying those between them too.
_GATHER_BELOW: Final = 0.5

# A spread of this share of the products is that of their roundings.
_ROUNDING: Final = 1e-6


class PassageVectors:
    """The vectors of passages.

    Args:
        vectors: rows, float32 of shape (rows, width); not copied.
        rows: the row of each passage; None where passages are the rows.
        codes: the codes of the rows, where there are some.
        norm: at least the Euclidean norm of each row; None measures it where it is needed.
    """

    def __init__(
        self,
        vectors: NDArray[np.float32],
        rows: Numbers | None = None,
        codes: Codes | None = None,
        norm: float | None = None,
    ) -> None:
        self._vectors = vectors
        self._rows = np.arange(len(vectors)) if rows is None else rows
        self.coded = len(self._rows) >= _CODED_PASSAGES
        if self.coded:
            self._codes = Codes.of(vectors) if codes is None else codes
            self._norm = largest_norm(vectors) if norm is None else norm
        self._centroid = self._mean() if len(self._rows) else np.zeros(self.width)

    @property
    def width(self) -> int:
        """The number of values in a vector."""
        return int(self._vectors.shape[1])

    def __len__(self) -> int:
        """Return the number of passages."""
        return len(self._rows)

    def _mean(self) -> Floats:
        # By passage, not by row: so that it does not depend on where the rows are.
        total = np.zeros(self.width)
        for part in blocks(len(self._rows)):
            total += self._vectors[self._rows[part]].sum(axis=0, dtype=np.float64)
        return total / len(self._rows)

    def asked(self, query: NDArray[np.float32]) -> DenseScores:
        """Return the scores of passages for a query of shape (width,)."""
        mean = float((self._centroid * query).sum())
        if not self.coded:
            return DenseScores(self, query, mean, self._products(query))
        low, high = self._codes.bounds(query[np.newaxis], self._rows, self._rows + 1, self._norm)
        return DenseScores(self, query, mean, None, low[0], high[0])

    def _products(self, query: NDArray[np.float32]) -> Floats:
        # Not BLAS, whose last bits depend on the number of threads.
        if len(self._rows) < _GATHER_BELOW * len(self._vectors):
            products = np.einsum("ij,j->i", self._vectors[self._rows], query)
        else:
            products = np.einsum("ij,j->i", self._vectors, query)[self._rows]
        return products.astype(np.float64)

    def products_of(self, passages: Numbers, query: NDArray[np.float32]) -> Floats:
        """Return the exact products of some passages."""
        products = exact_inner_products(self._vectors, self._rows[passages], query)
        return products.astype(np.float64)


class DenseScores:
    """For a query, (product - mean) / (largest product - mean) of each passage; 0 for no spread.

    Attributes:
        upper: at least the score of each passage; shape (passages,).
    """

    def __init__(
        self,
        vectors: PassageVectors,
        query: NDArray[np.float32],
        mean: float,
        products: Floats | None,
        low: NDArray[np.float32] | None = None,
        high: NDArray[Any] | None = None,
    ) -> None:
        self._vectors, self._query, self._mean = vectors, query, mean
        self._exact = None
        if products is not None:
            self._largest = float(products.max(initial=-np.inf))
            self.upper = self._exact = self._scaled(products)
        elif low is not None and high is not None:
            best = np.flatnonzero(high >= low.max())
            self._largest = float(vectors.products_of(best, query).max())
            self.upper = self._scaled(high.astype(np.float64))

    def _scaled(self, products: Floats) -> Floats:
        spread = self._largest - self._mean
        if spread <= _ROUNDING * max(abs(self._largest), abs(self._mean)):
            return np.zeros(len(products))
        products -= self._mean
        products /= spread
        return products

    def exact(self, passages: Numbers) -> Floats:
        """Return the scores of some passages."""
        if self._exact is not None:
            return self._exact[passages]
        return self._scaled(self._vectors.products_of(passages, self._query))
