"""Logistic regression by Newton's method, on a dense or a sparse matrix."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from longrag.models.sparse import Floats, SparseMatrix

_NEWTON_STEPS = 100
_SOLVE_STEPS = 200
_HALVED = 20
# Of the loss of one query.
_SLOPE = 1e-10


def logistic_regression(
    matrix: Floats | SparseMatrix, answers: NDArray[np.bool_], inverse_strength: float
) -> tuple[Floats, float]:
    """Return the coefficients and the intercept of an L2-regularised logistic regression.

    Newton's steps, each by conjugate gradients and shortened until the loss falls. ``matrix`` is of
    shape (queries, features).
    """
    # threadpoolctl looks through the loaded libraries when it is imported.
    from threadpoolctl import threadpool_limits

    turned = matrix.T
    signs = np.where(answers, 1.0, -1.0)
    penalty = np.append(np.full(matrix.shape[1], 1 / inverse_strength), 0.0)

    def score(at: Floats) -> Floats:
        scores: Floats = matrix @ at[:-1] + at[-1]
        return scores

    def gather(values: Floats) -> Floats:
        return np.append(turned @ values, values.sum())

    def bend(curve: Floats, way: Floats) -> Floats:
        return gather(curve * score(way)) + penalty * way

    def loss(at: Floats) -> float:
        return float(np.logaddexp(0, -signs * score(at)).sum() + penalty @ (at * at) / 2)

    found = np.zeros(matrix.shape[1] + 1)
    # The order in which threads add up would otherwise show in the last bits.
    with threadpool_limits(1, user_api="blas"):
        for _ in range(_NEWTON_STEPS):
            chances = np.exp(-np.logaddexp(0, -score(found)))
            slope = gather(chances - answers) + penalty * found
            if np.abs(slope).max() <= _SLOPE * len(answers):
                break
            step = _solve(partial(bend, chances * (1 - chances)), -slope)
            before, fall = loss(found), float(slope @ step)
            halves = (0.5**halved for halved in range(_HALVED))
            fits = (one for one in halves if loss(found + one * step) <= before + fall * one / 1e4)
            share = next(fits, 0.0)
            if not share:
                # Only rounding is left.
                break
            found += share * step
    return found[:-1], float(found[-1])


def _solve(multiply: Callable[[Floats], Floats], wanted: Floats) -> Floats:
    """Solve a positive definite system by conjugate gradients, as closely as Newton needs."""
    found = np.zeros_like(wanted)
    left, towards = wanted.copy(), wanted.copy()
    square = float(left @ left)
    enough = min(0.25, np.sqrt(np.sqrt(square))) ** 2 * square
    for _ in range(_SOLVE_STEPS):
        product = multiply(towards)
        bend = float(towards @ product)
        if bend <= 0:
            break
        share = square / bend
        found += share * towards
        left -= share * product
        before, square = square, float(left @ left)
        if square <= enough:
            break
        towards = left + square / before * towards
    return found
