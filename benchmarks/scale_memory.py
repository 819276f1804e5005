"""What a process holds in memory, for the benchmarks of size."""

from __future__ import annotations

import mmap
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def memory() -> int:
    """Return the resident memory of this process in bytes, mapped pages of files included."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return peak()
    return int(statm.read_text().split()[1]) * mmap.PAGESIZE


def peak() -> int:
    """Return the most memory that this process has held, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def drop_pages(array: NDArray[Any]) -> None:
    """Let go of the pages of a mapped array that this process has touched; they stay on disk."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        if isinstance(array, np.memmap) and array.mode != "r":
            array.flush()
        mapped.madvise(mmap.MADV_DONTNEED)
