"""What ``choose`` loses: the true loss of three rules on drawn outcomes, by number of questions.

    python benchmarks/choosing.py
    python benchmarks/choosing.py --trials 50

Five pipelines of known worth answer questions of drawn difficulty, rightly or wrongly. The dearest
is right on .90 of all questions, the others on the share less ``LOSSES``, at 1/2, 1/4, 1/8 and 1/16
of its tokens. Like systems over one corpus they tend to be right about the same questions: what
decides about an answer is correlated by ``SHARED``. Each rule chooses on the same drawn questions:

- "not surely worse": the cheapest whose interval of differences to the best reaches 0;
- "margin": the cheapest whose interval does not reach below -0.05, on all questions;
- "margin, one half": the same on one half, the other tells its worth: what ``Report.choose`` does.

True loss is the share of the best less that of the chosen one. "Told" is what the rule says of the
chosen one less its true share: of a mean by which it was chosen, or of the other half's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from statistics import NormalDist, fmean

import numpy as np

from longrag.evaluation.harness import Report, Result
from longrag.evaluation.harness.choosing import MARGIN
from longrag.evaluation.harness.settings import PipelineSettings
from longrag.evaluation.metrics import Estimate

BEST = 0.90
LOSSES = {
    "one cheap, .08 worse": (0.0, 0.01, 0.02, 0.08),
    "all .02 apart": (0.02, 0.04, 0.06, 0.08),
    "all as good": (0.0, 0.0, 0.0, 0.0),
}
SHARED = 0.6
TOKENS = (16_000, 8_000, 4_000, 2_000, 1_000)
QUESTIONS = (50, 100, 200)


def draw(shares: Sequence[float], count: int, random: np.random.Generator) -> list[Result]:
    """Draw right and wrong answers of pipelines to the same questions."""
    ease = random.normal(size=count)
    results = []
    for number, (share, tokens) in enumerate(zip(shares, TOKENS, strict=True)):
        own = random.normal(size=count)
        known = np.sqrt(SHARED) * ease + np.sqrt(1 - SHARED) * own
        right = known < NormalDist().inv_cdf(share)
        rows = [
            {"tokens": tokens, "measures": {"AR": float(one)}, "costs": {"prompt_tokens": 0}}
            for one in right.tolist()
        ]
        results.append(Result("drawn", str(number), PipelineSettings(), rows, {}))
    return results


def cheapest(report: Report, keep: Callable[[Estimate], bool]) -> tuple[str, float]:
    """Return the cheapest whose difference to the best is kept, and its mean on all questions."""
    means = {one.label: fmean(one.values("AR")) for one in report.results}  # type: ignore[type-var]
    best = max(report.results, key=lambda one: (means[one.label], -one.mean_cost("tokens")))
    kept = [
        one for one in report.results if one is best or keep(report.difference(one, best, "AR"))
    ]
    chosen = min(kept, key=lambda one: one.mean_cost("tokens"))
    return chosen.label, means[chosen.label]


def by_half(report: Report) -> tuple[str, float]:
    """Return what ``Report.choose`` chooses, and its mean on the half that it was not chosen by."""
    (choice,) = report.choose(measure="AR")
    assert choice.held_out is not None
    return choice.label, choice.held_out.mean


RULES: dict[str, Callable[[Report], tuple[str, float]]] = {
    "not surely worse": lambda report: cheapest(report, lambda gap: gap.high >= 0),
    "margin": lambda report: cheapest(report, lambda gap: gap.low >= -MARGIN),
    "margin, one half": by_half,
}


def simulate(losses: Sequence[float], count: int, trials: int) -> dict[str, str]:
    """Return the cells of each rule for one number of questions."""
    shares = [BEST, *(BEST - loss for loss in losses)]
    lost: dict[str, list[float]] = {name: [] for name in RULES}
    told: dict[str, list[float]] = {name: [] for name in RULES}
    tokens: dict[str, list[int]] = {name: [] for name in RULES}
    for trial in range(trials):
        report = Report(tuple(draw(shares, count, np.random.default_rng([count, trial]))), trial)
        for name, rule in RULES.items():
            label, mean = rule(report)
            lost[name].append(BEST - shares[int(label)])
            told[name].append(mean - shares[int(label)])
            tokens[name].append(TOKENS[int(label)])
    return {
        name: f"{fmean(lost[name]):.3f} | {fmean(one > MARGIN for one in lost[name]):.0%}"
        f" | {1 - fmean(tokens[name]) / TOKENS[0]:.0%} | {fmean(told[name]):+.3f}"
        for name in RULES
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=300)
    options = parser.parse_args()
    print("| pipelines | questions | rule | true loss | loses more than .05 | saved | told |")
    print("|---|---|---|---|---|---|---|")
    for name, losses in LOSSES.items():
        for count in QUESTIONS:
            for rule, cells in simulate(losses, count, options.trials).items():
                print(f"| {name} | {count} | {rule} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
