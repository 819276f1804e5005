"""The choice among pipelines: the cheapest that is surely as good as the best, but for a margin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from longrag.errors import InvalidParameterError
from longrag.evaluation.harness.result import Result
from longrag.evaluation.harness.settings import is_blind
from longrag.evaluation.metrics import Estimate, mean_interval, paired_difference_interval

MARGIN: Final = 0.05
"""How much of a measure may be given up for a lower cost."""

_SAME_COST: Final = 1.02


@dataclass(frozen=True, slots=True)
class Choice:
    """The cheapest pipeline that is as good as the best, but for a margin, for one data set.

    It is chosen on one half of the questions. ``difference`` is its measure there less the best
    one's, question by question; ``kept`` are the labels of all within the margin, cheapest first.
    ``held_out`` and ``held_out_difference`` are its measure and its difference on the other half,
    which it was not chosen by; None where no question is left for it.
    """

    dataset: str
    measure: str
    cost: str
    label: str
    best: str
    margin: float
    difference: Estimate
    held_out: Estimate | None
    held_out_difference: Estimate | None
    saved: float
    kept: tuple[str, ...]

    def __str__(self) -> str:
        """Say what was chosen, and why."""
        return f"{self.dataset}: choose {self.label!r}. {self._reason()}{self._check()}"

    def _reason(self) -> str:
        asked = f"{self.difference.n} {'question' if self.difference.n == 1 else 'questions'}"
        if self.label == self.best:
            return (
                f"It has the best {self.measure} on {asked}, and nothing cheaper in {self.cost}"
                f" is surely within {self.margin:g} of it."
            )
        return (
            f"On {asked} its {self.measure} is {signed(self.difference)} against {self.best!r},"
            f" surely within {self.margin:g}, and it saves {self.saved:.0%} of the {self.cost}."
        )

    def _check(self) -> str:
        if self.held_out is None:
            return ""
        told = f" On the other {self.held_out.n} it is {shown(self.held_out)}"
        if self.held_out_difference is not None and self.label != self.best:
            told += f", {signed(self.held_out_difference)} against {self.best!r}"
        return f"{told}."


class Rule(NamedTuple):
    """What is good and cheap, what may be given up, and how intervals are made."""

    measure: str
    cost: str
    margin: float
    seed: int


def choose_pipeline(results: Sequence[Result], rule: Rule) -> Choice:
    """Choose among the results of one data set; see ``Report.choose``.

    Raises:
        InvalidParameterError: no result has the measure.
    """
    measure, cost = rule.measure, rule.cost
    there = [one for one in results if measure in one.measures]
    if not there:
        held = sorted({name for one in results for name in one.measures})
        raise InvalidParameterError("measure", measure, f"one of {held}")
    there = [one for one in there if not is_blind(one.settings)] or there
    chosen_by, held_out = _halves(there, rule)
    means = {id(one): _mean_of(one, rule, chosen_by) for one in there}
    there = [one for one in there if means[id(one)] is not None]
    best = max(there, key=lambda one: (means[id(one)].mean, -one.mean_cost(cost)))  # type: ignore[union-attr]
    gaps = [(one, _gap_of(one, best, rule, chosen_by)) for one in there]
    kept = sorted(
        (
            (one, gap)
            for one, gap in gaps
            if gap is not None and (one is best or gap.low >= -rule.margin)
        ),
        key=lambda pair: (pair[0].mean_cost(cost), -pair[1].mean),
    )
    # Costs this near are the same; the better of two that cost the same is the better choice.
    least = _SAME_COST * kept[0][0].mean_cost(cost)
    alike = [pair for pair in kept if pair[0].mean_cost(cost) <= least]
    chosen, gap = max(alike, key=lambda pair: pair[1].mean)
    most = best.mean_cost(cost)
    return Choice(
        there[0].dataset,
        measure,
        cost,
        chosen.label,
        best.label,
        rule.margin,
        gap,
        _mean_of(chosen, rule, held_out),
        _gap_of(chosen, best, rule, held_out),
        1 - chosen.mean_cost(cost) / most if most else 0.0,
        tuple(one.label for one, _ in kept),
    )


def _halves(results: Sequence[Result], rule: Rule) -> tuple[list[int], list[int]]:
    """Return the numbers of the questions that are chosen by, the larger half, and of the rest.

    Questions that have the measure for no pipeline are in neither.
    """
    values = [one.values(rule.measure) for one in results]
    asked = [at for at, row in enumerate(zip(*values, strict=True)) if _any_value(row)]
    drawn = np.random.default_rng(rule.seed).permutation(asked).tolist()
    half = (len(drawn) + 1) // 2
    return sorted(drawn[:half]), sorted(drawn[half:])


def _mean_of(result: Result, rule: Rule, questions: Sequence[int]) -> Estimate | None:
    every = result.values(rule.measure)
    values = [every[at] for at in questions]
    if not _any_value(values):
        return None
    return mean_interval(values, random_state=rule.seed)


def _gap_of(result: Result, other: Result, rule: Rule, questions: Sequence[int]) -> Estimate | None:
    ours, theirs = result.values(rule.measure), other.values(rule.measure)
    pairs = [(ours[at], theirs[at]) for at in questions]
    both = sum(None not in pair for pair in pairs)
    if not both:
        return None
    if result is other:
        return Estimate(0.0, 0.0, 0.0, both, len(pairs) - both)
    return paired_difference_interval(
        [one for one, _ in pairs],
        [one for _, one in pairs],
        random_state=rule.seed,
    )


def _any_value(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)


def shown(estimate: Estimate | None) -> str:
    """Write a mean with its interval."""
    if estimate is None:
        return "-"
    return f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def signed(gap: Estimate) -> str:
    """Write a difference with its interval."""
    return f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
