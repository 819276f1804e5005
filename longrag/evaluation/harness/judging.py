"""How far two scores of the same answers agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def agreement(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Spearman's rank correlation of pairs; equal values share the mean of their ranks.

    None where all values of one side are equal, and there is nothing to agree on.
    """
    one, other = (_ranks(np.array(side, float)) for side in zip(*pairs, strict=True))
    one, other = one - one.mean(), other - other.mean()
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return float((one * other).sum()) / size if size else None


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: npt.NDArray[np.float64] = ends - (counts - 1) / 2
    return means[inverse]
