"""Runs of rows: consecutive rows of a matrix that belong together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def ranges(begins: Indices, ends: Indices) -> Indices:
    """Return the numbers of each range from begin to end, one range after the other."""
    counts = ends - begins
    before = np.cumsum(counts) - counts
    numbers: Indices = np.arange(counts.sum()) + np.repeat(begins - before, counts)
    return numbers
