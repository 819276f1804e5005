"""Runs of rows: consecutive rows of a matrix that belong together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def ranges(begins: Indices, ends: Indices) -> Indices:
    """Return the numbers of each range from begin to end, one range after the other."""
    return ranges_with_owners(begins, ends)[0]


def ranges_with_owners(begins: Indices, ends: Indices) -> tuple[Indices, Indices]:
    """Return the numbers of each range, one range after the other, and which range each is of."""
    counts = ends - begins
    owners = np.repeat(np.arange(len(counts)), counts)
    shifts = ends - np.cumsum(counts)
    numbers: Indices = shifts[owners]
    numbers += np.arange(len(owners))
    return numbers, owners
