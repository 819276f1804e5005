"""Shares, differences and areas with their intervals, and when a text holds an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import sqrt

import numpy as np

SEED = 5
_RESAMPLES = 10_000


def share(values: Sequence[bool]) -> str:
    """Return a share with Wilson's interval of 95 %."""
    n, p, z = len(values), sum(values) / len(values), 1.96
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return f"{p:.2f} ({max(0.0, middle - half):.2f}-{min(1.0, middle + half):.2f})"


def difference(ours: Sequence[bool], theirs: Sequence[bool]) -> str:
    """Return the mean difference of paired outcomes with a bootstrapped interval of 95 %.

    The questions won and lost follow in brackets.
    """
    gaps = np.array(ours, float) - np.array(theirs, float)
    drawn = np.random.default_rng(SEED).integers(0, len(gaps), (_RESAMPLES, len(gaps)))
    low, high = np.quantile(gaps[drawn].mean(axis=1), (0.025, 0.975))
    won, lost = int((gaps > 0).sum()), int((gaps < 0).sum())
    return f"{gaps.mean():+.3f} ({low:+.3f} to {high:+.3f}) [{won} won, {lost} lost]"


def area(positive: Sequence[float], negative: Sequence[float]) -> str:
    """Return the area under the ROC curve, with an interval of 95 % over resampled values."""
    above = np.array(positive)[:, None] - np.array(negative)[None, :]
    wins = (above > 0) + 0.5 * (above == 0)
    generator = np.random.default_rng(SEED)
    drawn = [
        wins[generator.integers(0, len(wins), len(wins))][
            :, generator.integers(0, wins.shape[1], wins.shape[1])
        ].mean()
        for _ in range(2_000)
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return f"{wins.mean():.2f} ({low:.2f}-{high:.2f})"


def holds(text: str, answers: Sequence[str]) -> bool:
    """Tell whether one of the answers occurs in a text, as whole words."""
    words = f" {plain(text)} "
    return any(f" {plain(answer)} " in words for answer in answers)


def plain(text: str) -> str:
    """Return a text's words in lower case."""
    return " ".join(re.sub(r"[^\w\s]", " ", text.casefold()).split())
