"""Runs of rows: consecutive rows of a matrix that belong together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def ranges(begins: Indices, ends: Indices) -> Indices:
    """Return the numbers of each range from begin to end, one range after the other."""
    counts = ends - begins
    before = np.cumsum(counts) - counts
    numbers: Indices = np.arange(counts.sum()) + np.repeat(begins - before, counts)
    return numbers


def runs_within(begins: Indices, ends: Indices, rows: slice) -> slice:
    """Return which runs, ascending and without overlap, have rows among the given ones."""
    first = int(np.searchsorted(ends, rows.start, side="right"))
    return slice(first, max(first, int(np.searchsorted(begins, rows.stop))))


def run_maxima(values: NDArray[Any], begins: Indices, ends: Indices) -> NDArray[Any]:
    """Return the largest value of each run of columns, shape (rows of values, runs).

    Runs ascend and do not overlap; what of the first and the last lies outside is passed over.
    """
    width = values.shape[1]
    begins, ends = np.maximum(begins, 0), np.minimum(ends, width)
    if len(begins) and (begins[1:] == ends[:-1]).all() and ends[-1] == width:
        return np.maximum.reduceat(values, begins, axis=1)
    # Between two runs lies one of columns that count for nothing.
    cuts = np.stack([begins, ends], axis=1).ravel()
    if cuts[-1] == width:
        cuts = cuts[:-1]
    return np.maximum.reduceat(values, cuts, axis=1)[:, ::2]
