"""The runs of the largest intervals of an index, found when the index is built.

What may follow the first tokens of a key is a question about a large share of the rows. There are
few such intervals, and their runs take little room beside the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from longrag.indexing.key_index.runs import Runs, check_lengths

LARGE: Final = 4096
"""Rows of an interval whose runs are kept; to find those of fewer takes some 0.2 ms."""


class ShallowRuns:
    """The runs of every interval of more than ``LARGE`` rows.

    Args:
        arrays: ``nodes`` and ``node_depths`` name the intervals by their first row and the tokens
            their rows have in common. The runs of interval ``i`` are numbered from
            ``node_runs[i]`` to ``node_runs[i + 1]``; ``run_tokens`` are their tokens, ``run_rows``
            the rows where they begin, and the last one ends at ``node_ends[i]``.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = {name: arrays[name] for name in _NAMES}
        pairs = zip(arrays["nodes"].tolist(), arrays["node_depths"].tolist(), strict=True)
        self._numbers = {pair: number for number, pair in enumerate(pairs)}

    @classmethod
    def build(
        cls, expand: Callable[[int, int, int], Runs], rows: int, width: np.dtype[Any]
    ) -> ShallowRuns:
        """Find the runs of the large intervals among ``rows`` rows.

        Args:
            expand: gives the runs of an interval and the tokens its rows have in common.
            rows: the number of rows.
            width: the type of row numbers.
        """
        found = []
        waiting = [(0, rows, 0)] if rows > LARGE else []
        for lo, hi, depth in waiting:
            runs = expand(lo, hi, depth)
            found.append((lo, hi, depth, runs))
            large = runs.hi - runs.lo > LARGE
            borders = zip(runs.lo[large].tolist(), runs.hi[large].tolist(), strict=True)
            waiting.extend((low, high, depth + 1) for low, high in borders)
        counts = [len(runs.tokens) for *_, runs in found]
        empty = np.empty(0, np.int64)
        tokens = np.concatenate([empty, *(runs.tokens for *_, runs in found)])
        begins = np.concatenate([empty, *(runs.lo for *_, runs in found)])
        arrays = {
            "nodes": np.array([lo for lo, *_ in found], width),
            "node_depths": np.array([depth for *_, depth, _ in found], np.int32),
            "node_ends": np.array([hi for _, hi, *_ in found], width),
            "node_runs": np.cumsum([0, *counts], dtype=np.int64),
            "run_tokens": tokens.astype(np.uint32),
            "run_rows": begins.astype(width),
        }
        return cls(arrays)

    def of(self, lo: int, depth: int) -> Runs | None:
        """Return the runs of a large interval by its first row and depth; None of another."""
        number = self._numbers.get((lo, depth))
        if number is None:
            return None
        known = self._arrays
        first, last = known["node_runs"][number : number + 2].tolist()
        begins = known["run_rows"][first:last].astype(np.int64)
        ends = np.append(begins[1:], np.int64(known["node_ends"][number]))[: len(begins)]
        return Runs(known["run_tokens"][first:last].astype(np.int64), begins, ends)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save."""
        return self._arrays

    def check(self, rows: int) -> None:
        """Raise ``ValueError`` where loaded arrays do not fit together or to the rows."""
        known, count = self._arrays, len(self._arrays["nodes"])
        check_lengths(
            node_depths=(len(known["node_depths"]), count),
            node_ends=(len(known["node_ends"]), count),
            node_runs=(len(known["node_runs"]), count + 1),
            run_tokens=(len(known["run_tokens"]), int(known["node_runs"][-1])),
            run_rows=(len(known["run_rows"]), int(known["node_runs"][-1])),
            intervals=(len(self._numbers), count),
            rows=(int(known["node_ends"][0]) if count else rows, rows),
        )


_NAMES: Final = ("nodes", "node_depths", "node_ends", "node_runs", "run_tokens", "run_rows")
