"""What a `MaxPIndex` holds: rows of vectors as runs by unit, never changed, only replaced."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longrag.indexing.codes import CodedRuns, Codes
from longrag.indexing.runs import ranges, ranges_with_owners


@dataclass(frozen=True)
class Table:
    """Runs of rows by unit, and within a unit by chunk number; never changed, only replaced.

    Attributes:
        vectors: the rows, shape (rows, width); those in no run are not searched.
        chunks: the chunk number of each row, ascending within a unit.
        units: the unit numbers, ascending.
        firsts: the first run of each unit, and the number of runs.
        begins: the first row of each run.
        ends: the row after the last one of each run; no run is empty.
        largest_norm: at least the Euclidean norm of each row.
        codes: the rows in one byte a value.
    """

    vectors: NDArray[Any]
    chunks: NDArray[np.int64]
    units: NDArray[np.int64]
    firsts: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    largest_norm: float
    codes: Codes

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The rows of all runs, in order."""
        return ranges(self.begins, self.ends)

    @cached_property
    def row_of_chunk(self) -> NDArray[np.int64]:
        """The row of each chunk; -1 for the number of a chunk that is in no run."""
        chunks = self.chunks[self.rows]
        rows = np.full(chunks.max(initial=-1) + 1, -1, np.int64)
        rows[chunks] = self.rows
        return rows

    @cached_property
    def coded_runs(self) -> CodedRuns:
        """The runs of the rows' codes."""
        return CodedRuns(self.codes, self.begins, self.ends)

    @property
    def unit_of_row(self) -> NDArray[np.int64]:
        """The unit of each of ``rows``."""
        counts = np.add.reduceat(self.ends - self.begins, self.firsts[:-1])
        return np.repeat(self.units, counts)

    @cached_property
    def unit_of_chunk(self) -> NDArray[np.int64]:
        """The unit of each chunk, by number."""
        units = np.empty(len(self.rows), dtype=np.int64)
        units[self.chunks[self.rows]] = self.unit_of_row if len(units) else 0
        units.flags.writeable = False
        return units

    def by_unit(self, of_runs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the largest value of each unit's runs; shape (queries, units)."""
        if len(self.units) == len(self.begins):
            return of_runs
        return np.maximum.reduceat(of_runs, self.firsts[:-1], axis=1)

    def rows_of_units(
        self, units: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows of units, one after the other, and of which of these units each is.

        Args:
            units: their places in ``units``.
        """
        if len(self.units) == len(self.begins):
            return ranges_with_owners(self.begins[units], self.ends[units])
        runs, owners = ranges_with_owners(self.firsts[units], self.firsts[units + 1])
        rows, at = ranges_with_owners(self.begins[runs], self.ends[runs])
        return rows, owners[at]

    def packed(self) -> Table:
        """Return the table with its rows in the order of its runs, and no others."""
        rows = self.rows
        if len(rows) == len(self.vectors) and (rows == np.arange(len(rows))).all():
            return self
        ends = np.cumsum(self.ends - self.begins)
        return Table(
            self.vectors[rows],
            self.chunks[rows],
            self.units,
            self.firsts,
            ends - (self.ends - self.begins),
            ends,
            self.largest_norm,
            self.codes.take(rows),
        )


def table_of(
    vectors: NDArray[Any],
    order: NDArray[np.int64],
    units: NDArray[np.int64],
    norm: float,
    codes: Codes,
) -> Table:
    """Return the table of rows that are sorted by unit; ``order`` are their chunk numbers."""
    numbers, starts = np.unique(units[order], return_index=True)
    ends = np.append(starts[1:], len(order)) if len(starts) else starts
    firsts = np.arange(len(numbers) + 1)
    return Table(vectors, order, numbers, firsts, starts, ends, norm, codes)
