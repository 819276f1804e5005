"""The two passes of a MaxP search: bounds of all units, then exact scores of those in question."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longrag.indexing.runs import ranges, run_maxima, runs_within
from longrag.indexing.vectors import (
    blocks,
    exact_inner_products,
    inner_products,
    inner_products_of_rows,
    rounding_bound,
)
from longrag.retrieval.maxp_table import Table


def bound_units(
    table: Table, queries: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Bound each unit's best score from below and above; both of shape (queries, units)."""
    if table.codes is not None:
        scanned, kept = table.whole or (table, slice(None))
        bounds = table.codes.bounds(queries, scanned.begins, scanned.ends, table.largest_norm)
        lower, upper = (bound[:, kept] for bound in bounds)
        return _by_unit(table, lower), _by_unit(table, upper)
    order = table.by_row
    begins, ends = table.begins[order], table.ends[order]
    in_order = np.full((len(queries), len(order)), -np.inf, dtype=np.float32)
    for rows in blocks(len(table.vectors)):
        runs = runs_within(begins, ends, rows)
        if runs.start < runs.stop:
            scores = inner_products(table.vectors[rows], queries)
            here = in_order[:, runs]
            found = run_maxima(scores, begins[runs] - rows.start, ends[runs] - rows.start)
            np.maximum(here, found, out=here)
    best = np.empty_like(in_order)
    best[:, order] = in_order
    best = _by_unit(table, best)
    margins = np.array([[_rounding_bound(table, query)] for query in queries], np.float32)
    return best - margins, best + margins


def _by_unit(table: Table, of_runs: NDArray[np.float32]) -> NDArray[np.float32]:
    if len(table.units) == len(table.begins):
        return of_runs
    return np.maximum.reduceat(of_runs, table.firsts[:-1], axis=1)


def _rounding_bound(table: Table, query: NDArray[np.float32]) -> float:
    norm = float(np.linalg.norm(query.astype(np.float64)))
    return rounding_bound(len(query), norm, table.largest_norm)


def rank_units(
    table: Table,
    query: NDArray[np.float32],
    lower: NDArray[np.float32],
    upper: NDArray[np.float32],
    *,
    k: int,
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Return the k best units: exact scores, places in the table, rows of the best chunks.

    The k-th largest lower bound is at most the k-th best score, so no unit whose upper bound is
    smaller is in the answer. A rough score is off by at most ``bound``: a unit's best chunk has one
    at most twice that below the largest of the unit.
    """
    kth_best = np.partition(lower, len(lower) - k)[len(lower) - k]
    units = np.flatnonzero(upper >= kth_best)
    rows, owners = _rows_of_units(table, units)
    rough = inner_products_of_rows(table.vectors, rows, query)
    firsts = np.flatnonzero(np.diff(owners, prepend=-1))
    largest = np.repeat(np.maximum.reduceat(rough, firsts), np.diff(firsts, append=len(rows)))
    near = rough >= largest - np.float32(2 * _rounding_bound(table, query))
    rows, owners = rows[near], owners[near]
    scores = exact_inner_products(table.vectors, rows, query)
    # Rows ascend by unit and then by chunk, which is the rule for ties.
    order = np.argsort(-scores, kind="stable")
    first_of_unit = np.sort(np.unique(owners[order], return_index=True)[1])
    winners = order[first_of_unit[:k]]
    return scores[winners], owners[winners], rows[winners]


def _rows_of_units(
    table: Table, units: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    runs = ranges(table.firsts[units], table.firsts[units + 1])
    begins, ends = table.begins[runs], table.ends[runs]
    unit_of_run = np.repeat(units, table.firsts[units + 1] - table.firsts[units])
    return ranges(begins, ends), np.repeat(unit_of_run, ends - begins)
