"""The results of an evaluation: means with intervals, tables, and the choice among pipelines."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from longrag.errors import InvalidParameterError
from longrag.evaluation.harness.judging import agreement
from longrag.evaluation.harness.plots import Bar, Point, draw_bars, draw_lines
from longrag.evaluation.harness.scoring import MEASURES
from longrag.evaluation.harness.settings import Settings
from longrag.evaluation.judged import JUDGED
from longrag.evaluation.metrics import (
    Estimate,
    bootstrap_interval,
    paired_difference_interval,
)

Row = Mapping[str, Any]

COSTS: Final[Mapping[str, Callable[[Row], float]]] = {
    "tokens": lambda row: row["tokens"] + row["costs"]["prompt_tokens"],
    "seconds": lambda row: row["costs"]["seconds"],
    "cpu": lambda row: row["costs"]["cpu"],
    "calls": lambda row: row["costs"]["calls"],
}
"""What "cheap" may mean: tokens read and sent, seconds, CPU seconds, or model calls a question."""


_SAME_COST: Final = 1.02


@dataclass(frozen=True, eq=False)
class Result:
    """What one pipeline with one choice of settings gave for one data set.

    ``rows`` are its results, one a question in the order of the data set; ``build`` is what its
    index cost, as if it had been built alone.
    """

    dataset: str
    label: str
    settings: Settings
    rows: Sequence[Row]
    build: Mapping[str, float]

    @cached_property
    def measures(self) -> tuple[str, ...]:
        """The measures that at least one question has a value for, in the order of the tables."""
        names = [*MEASURES, *JUDGED]
        held = {
            name
            for row in self.rows
            for name, value in {**row["measures"], **row.get("judged", {})}.items()
            if value is not None
        }
        return tuple(name for name in names if name in held)

    def values(self, measure: str) -> list[float | None]:
        """Return a measure of each question; None where it has none."""
        part = "judged" if measure in JUDGED else "measures"
        return [row.get(part, {}).get(measure) for row in self.rows]

    def mean_cost(self, cost: str) -> float:
        """Return the mean cost of a question."""
        return math.fsum(COSTS[cost](row) for row in self.rows) / len(self.rows)


@dataclass(frozen=True, slots=True)
class Choice:
    """The cheapest pipeline that is not surely worse than the best, for one data set.

    ``difference`` is its measure less the best one's, question by question. ``kept`` are the labels
    of all that are not surely worse, cheapest first.
    """

    dataset: str
    measure: str
    cost: str
    label: str
    best: str
    difference: Estimate
    saved: float
    kept: tuple[str, ...]

    def __str__(self) -> str:
        """Say what was chosen, and why."""
        if self.label == self.best:
            return (
                f"{self.dataset}: choose {self.label!r}. It has the best {self.measure}, and"
                f" nothing cheaper in {self.cost} is as good."
            )
        gap = self.difference
        return (
            f"{self.dataset}: choose {self.label!r}. Its {self.measure} is {gap.mean:+.3f}"
            f" [{gap.low:+.3f}, {gap.high:+.3f}] against {self.best!r}, which is not surely"
            f" better, and it saves {self.saved:.0%} of the {self.cost}."
        )


@dataclass(frozen=True, eq=False)
class Report:
    """The results of an evaluation.

    Attributes:
        results: one a data set and pipeline.
        seed: draws the samples of the intervals.
        made: by data set, how its questions were made where no person wrote them.
        sizes: by data set, the number of documents.
        confidence: of the intervals.
    """

    results: tuple[Result, ...]
    seed: int = 0
    made: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    confidence: float = 0.95
    # Intervals that were drawn, by the result they are of, which lives as long as the report.
    _means: dict[tuple[int, str], Estimate | None] = field(default_factory=dict, repr=False)
    _gaps: dict[tuple[int, int, str], Estimate] = field(default_factory=dict, repr=False)

    @property
    def datasets(self) -> tuple[str, ...]:
        """The names of the data sets."""
        return tuple(dict.fromkeys(result.dataset for result in self.results))

    def of(self, dataset: str) -> list[Result]:
        """Return the results of a data set."""
        return [result for result in self.results if result.dataset == dataset]

    def mean(self, result: Result, measure: str) -> Estimate | None:
        """Return the mean of a measure with its interval; None where no question has a value."""
        key = id(result), measure
        if key not in self._means:
            values = result.values(measure)
            self._means[key] = None
            if any(value is not None for value in values):
                self._means[key] = bootstrap_interval(
                    values, confidence=self.confidence, random_state=self.seed
                )
        return self._means[key]

    def difference(self, result: Result, other: Result, measure: str) -> Estimate:
        """Return the mean difference of two results of a data set, question by question."""
        key = id(result), id(other), measure
        if key not in self._gaps:
            self._gaps[key] = paired_difference_interval(
                result.values(measure),
                other.values(measure),
                confidence=self.confidence,
                random_state=self.seed,
            )
        return self._gaps[key]

    def main_measure(self, dataset: str) -> str:
        """Return the measure that results are compared by unless another is named.

        It is the last one in the chain from retrieval to the answer that at least half of the
        questions have: accuracy of options, F1 of a reader, coverage, AR, or R.
        """
        for name in ("accuracy", "F1", "coverage", "AR", "R"):
            for one in self.of(dataset):
                held = sum(value is not None for value in one.values(name))
                if 2 * held >= len(one.rows) > 0:
                    return name
        raise InvalidParameterError(
            "datasets", dataset, "one whose questions have answers or gold documents"
        )

    def choose(
        self, *, measure: str | None = None, cost: str = "tokens", dataset: str | None = None
    ) -> list[Choice]:
        """Name the cheapest pipeline that is not surely worse than the best, per data set.

        A pipeline is surely worse where the whole interval of its paired differences to the best
        lies below 0. Costs within 2 % of one another count as equal. Where few questions were asked
        little is sure, and the cheapest is chosen: look at the interval.

        Args:
            measure: what is good; by default see ``main_measure``.
            cost: what is cheap, one of ``COSTS``.
            dataset: one data set alone.

        Raises:
            InvalidParameterError: no such measure, cost or data set.
        """
        if cost not in COSTS:
            raise InvalidParameterError("cost", cost, f"one of {sorted(COSTS)}")
        if dataset is not None and dataset not in self.datasets:
            raise InvalidParameterError("dataset", dataset, f"one of {list(self.datasets)}")
        names = self.datasets if dataset is None else (dataset,)
        return [self._choose(name, measure or self.main_measure(name), cost) for name in names]

    def _choose(self, dataset: str, measure: str, cost: str) -> Choice:
        there = [one for one in self.of(dataset) if measure in one.measures]
        if not there:
            held = sorted({name for one in self.of(dataset) for name in one.measures})
            raise InvalidParameterError("measure", measure, f"one of {held}")
        means = {id(one): self.mean(one, measure) for one in there}
        best = max(there, key=lambda one: (means[id(one)].mean, -one.mean_cost(cost)))  # type: ignore[union-attr]
        gaps = [(one, self.difference(one, best, measure)) for one in there]
        kept = sorted(
            ((one, gap) for one, gap in gaps if gap.high >= 0 or one is best),
            key=lambda pair: (pair[0].mean_cost(cost), -pair[1].mean),
        )
        # Costs this near are the same; the better of two that cost the same is the better choice.
        least = _SAME_COST * kept[0][0].mean_cost(cost)
        alike = [pair for pair in kept if pair[0].mean_cost(cost) <= least]
        chosen, gap = max(alike, key=lambda pair: pair[1].mean)
        most = best.mean_cost(cost)
        saved = 1 - chosen.mean_cost(cost) / most if most else 0.0
        labels = tuple(one.label for one, _ in kept)
        return Choice(dataset, measure, cost, chosen.label, best.label, gap, saved, labels)

    def table(self, dataset: str) -> str:
        """Return the measures of a data set as a Markdown table, each with its interval.

        The last column is the difference of the main measure to the best pipeline's. The same
        results and seed give the same table.
        """
        results = self.of(dataset)
        names = [n for n in (*MEASURES, *JUDGED) if any(n in one.measures for one in results)]
        main = self.main_measure(dataset)
        scored = [one for one in results if main in one.measures]
        best = max(scored, key=lambda one: self.mean(one, main).mean)  # type: ignore[union-attr]
        head = ["pipeline", "tokens read", *names, f"{main} less the best's"]
        body = []
        for one in results:
            read = sum(row["tokens"] for row in one.rows) / len(one.rows)
            cells = [_shown(self.mean(one, name)) for name in names]
            gap = _signed(self.difference(one, best, main)) if main in one.measures else "-"
            body.append([one.label, f"{read:,.0f}", *cells, "best" if one is best else gap])
        return _markdown(head, body)

    def cost_table(self, dataset: str) -> str:
        """Return what indexes and questions cost as a Markdown table.

        Times are of the machine that the questions were asked on, and differ from run to run.
        """
        head = [
            "pipeline", "build CPU s", "texts embedded", "build calls", "ms a question",
            "CPU ms a question", "calls a question", "tokens sent", "tokens written",
        ]  # fmt: skip
        body = []
        for one in self.of(dataset):
            per = [row["costs"] for row in one.rows]
            body.append(
                [
                    one.label,
                    f"{one.build.get('cpu', 0):.1f}",
                    f"{one.build.get('embedded', 0):,.0f}",
                    f"{one.build.get('calls', 0):,.0f}",
                    f"{1000 * _mean(row['seconds'] for row in per):.1f}",
                    f"{1000 * _mean(row['cpu'] for row in per):.1f}",
                    f"{_mean(row['calls'] for row in per):.1f}",
                    f"{_mean(row['prompt_tokens'] for row in per):,.0f}",
                    f"{_mean(row['reply_tokens'] for row in per):,.0f}",
                ]
            )
        return _markdown(head, body)

    def agreement_table(self, dataset: str) -> str:
        """Return how judged scores go with string metrics, over all answers; empty without them."""
        rows = [row for one in self.of(dataset) for row in one.rows if "judged" in row]
        body = []
        for judged in JUDGED:
            unusable = sum(row["judged"].get(judged, 0) is None for row in rows)
            for metric in ("EM", "F1", "AR", "R"):
                pairs = [
                    (row["judged"][judged], row["measures"][metric])
                    for row in rows
                    if row["judged"].get(judged) is not None
                    and row["measures"].get(metric) is not None
                ]
                if pairs:
                    rho = agreement(pairs)
                    shown = "-" if rho is None else f"{rho:+.2f}"
                    body.append([judged, metric, shown, str(len(pairs)), str(unusable)])
        head = ["judged", "metric", "rank correlation", "answers", "not judged or nonsense"]
        return _markdown(head, body) if body else ""

    def markdown(self) -> str:
        """Return all tables and choices as one page."""
        parts = []
        for name in self.datasets:
            (first, *_) = self.of(name)
            documents = f"{self.sizes[name]:,} documents, " if name in self.sizes else ""
            parts += [f"## {name}", f"{documents}{len(first.rows):,} questions."]
            if name in self.made:
                parts.append(
                    f"The questions were made {self.made[name]}: they are easier than people's."
                )
            parts += [self.table(name), self.cost_table(name), self.agreement_table(name)]
            parts += [str(choice) for choice in self.choose(dataset=name)]
        return "\n\n".join(part for part in parts if part) + "\n"

    def record(self) -> dict[str, Any]:
        """Return all results as a JSON object, with the values of each question."""
        return {
            "seed": self.seed,
            "confidence": self.confidence,
            "made_questions": dict(self.made),
            "documents": dict(self.sizes),
            "choices": [asdict(choice) for choice in self.choose()],
            "results": [self._record(result) for result in self.results],
        }

    def _record(self, result: Result) -> dict[str, Any]:
        means = {name: self.mean(result, name) for name in result.measures}
        return {
            "dataset": result.dataset,
            "pipeline": result.label,
            "settings": asdict(result.settings),
            "measures": {name: asdict(mean) for name, mean in means.items() if mean is not None},
            "costs": {name: result.mean_cost(name) for name in COSTS},
            "build": dict(result.build),
            "questions": [dict(row) for row in result.rows],
        }

    def plots(self) -> dict[str, str]:
        """Return pictures in SVG by name: the main measure of each pipeline, and by budget."""
        found = {}
        for name in self.datasets:
            measure = self.main_measure(name)
            points: dict[str, list[Point]] = {}
            bars = []
            for one in self.of(name):
                mean = self.mean(one, measure)
                if mean is not None:
                    bars.append(Bar(one.label, mean.mean, mean.low, mean.high))
                    budget = one.settings.token_budget
                    if budget is not None:
                        label = one.label.replace(f", token_budget={budget}", "")
                        at = Point(float(budget), mean.mean, mean.low, mean.high)
                        points.setdefault(label, []).append(at)
            found[f"{name}-{measure}"] = draw_bars(f"{name}: {measure}", bars)
            lines = {label: several for label, several in points.items() if len(several) > 1}
            if lines:
                title = f"{name}: {measure} within a token budget"
                found[f"{name}-{measure}-budget"] = draw_lines(title, "token budget", lines)
        return found

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write ``results.md``, ``results.json`` and the pictures, and return their paths."""
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        texts = {
            "results.md": self.markdown(),
            "results.json": json.dumps(self.record(), indent=1),
            **{f"{_file_stem(name)}.svg": picture for name, picture in self.plots().items()},
        }
        for name, text in texts.items():
            (root / name).write_text(text, encoding="utf-8")
        return [root / name for name in texts]


def _file_stem(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-." else "-" for c in name)


def _mean(values: Any) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)


def _shown(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    return f"{estimate.mean:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _signed(gap: Estimate) -> str:
    return f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *(list(row) for row in body)]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in lines)
