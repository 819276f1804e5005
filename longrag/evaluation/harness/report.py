"""The results of an evaluation: means with intervals, tables, and the choice among pipelines."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from longrag.errors import InvalidParameterError
from longrag.evaluation.harness.choosing import (
    MARGIN,
    Choice,
    Rule,
    choose_pipeline,
    shown,
    signed,
)
from longrag.evaluation.harness.judging import agreement
from longrag.evaluation.harness.plots import Bar, Point, draw_bars, draw_lines
from longrag.evaluation.harness.result import COSTS, Result
from longrag.evaluation.harness.scoring import MEASURES
from longrag.evaluation.harness.trec import trec_qrels, trec_run
from longrag.evaluation.judged import JUDGED
from longrag.evaluation.metrics import (
    CONFIDENCE,
    Estimate,
    mean_interval,
    paired_difference_interval,
)
from longrag.types import stable_id


@dataclass(frozen=True, eq=False)
class Report:
    """The results of an evaluation, with 95 % intervals.

    Attributes:
        results: one a data set and pipeline.
        seed: draws the samples of the intervals.
        made: by data set, how its questions were made where no person wrote them.
        sizes: by data set, the number of documents.
        gold: by data set and question, the grades of the gold documents.
    """

    results: tuple[Result, ...]
    seed: int = 0
    made: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    gold: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    # Intervals that were drawn, by the result they are of, which lives as long as the report.
    _means: dict[tuple[int, str], Estimate | None] = field(
        default_factory=dict, init=False, repr=False
    )
    _gaps: dict[tuple[int, int, str], Estimate] = field(
        default_factory=dict, init=False, repr=False
    )

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
                self._means[key] = mean_interval(values, random_state=self.seed)
        return self._means[key]

    def difference(self, result: Result, other: Result, measure: str) -> Estimate:
        """Return the mean difference of two results of a data set, question by question."""
        key = id(result), id(other), measure
        if key not in self._gaps:
            self._gaps[key] = paired_difference_interval(
                result.values(measure),
                other.values(measure),
                random_state=self.seed,
            )
        return self._gaps[key]

    def main_measure(self, dataset: str) -> str:
        """Return the measure that results are compared by unless another is named.

        It is the last one in the chain from retrieval to the answer that at least half of the
        questions have: accuracy of options, F1 of a reader, pairs, AR, or R.
        """
        for name in ("accuracy", "F1", "pairs", "AR", "R"):
            for one in self.of(dataset):
                held = sum(value is not None for value in one.values(name))
                if 2 * held >= len(one.rows) > 0:
                    return name
        raise InvalidParameterError.because(
            f"The questions of the data set {dataset!r} have neither answers nor gold documents."
        )

    def choose(
        self,
        *,
        measure: str | None = None,
        cost: str = "tokens",
        dataset: str | None = None,
        margin: float = MARGIN,
    ) -> list[Choice]:
        """Name the cheapest pipeline that is surely as good as the best but for a margin.

        The choice is made on one half of the questions, drawn by the seed: the best is the one of
        the highest mean, and a pipeline is within the margin where the interval of its paired
        differences to the best does not reach below ``-margin``. Where nothing cheaper is, as often
        with few questions, it is the best itself. The other half tells what the chosen one is worth
        on questions that it was not chosen by. Costs within 2 % of one another count as equal, and
        controls that nobody would run (random passages, a list of words) are not chosen.

        Args:
            measure: what is good; by default see ``main_measure``.
            cost: what is cheap, one of ``COSTS``.
            dataset: one data set alone.
            margin: how much of the measure may be given up, at least 0.

        Raises:
            InvalidParameterError: no such measure, cost or data set, or another margin.
        """
        if cost not in COSTS:
            raise InvalidParameterError("cost", cost, f"one of {sorted(COSTS)}")
        if dataset is not None and dataset not in self.datasets:
            raise InvalidParameterError("dataset", dataset, f"one of {list(self.datasets)}")
        number = isinstance(margin, int | float) and not isinstance(margin, bool)
        if not (number and math.isfinite(margin) and margin >= 0):
            raise InvalidParameterError("margin", margin, "a finite number of at least 0")
        names = self.datasets if dataset is None else (dataset,)
        found = []
        for name in names:
            good = measure or self.main_measure(name)
            rule = Rule(good, cost, margin, self.seed)
            found.append(choose_pipeline(self.of(name), rule))
        return found

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
            cells = [shown(self.mean(one, name)) for name in names]
            gap = signed(self.difference(one, best, main)) if main in one.measures else "-"
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

    def markdown(self, choices: Sequence[Choice] | None = None) -> str:
        """Return all tables, and choices, by default those of ``choose``, as one page."""
        parts = []
        chosen = self.choose() if choices is None else choices
        for name in self.datasets:
            (first, *_) = self.of(name)
            documents = f"{self.sizes[name]:,} documents, " if name in self.sizes else ""
            parts += [f"## {name}", f"{documents}{len(first.rows):,} questions."]
            if name in self.made:
                parts.append(
                    f"The questions were made {self.made[name]}: they are easier than people's."
                )
            parts += [self.table(name), self.cost_table(name), self.agreement_table(name)]
            parts += [str(choice) for choice in chosen if choice.dataset == name]
        return "\n\n".join(part for part in parts if part) + "\n"

    def record(self, choices: Sequence[Choice] | None = None) -> dict[str, Any]:
        """Return all results as a JSON object, with the values of each question, and choices."""
        return {
            "seed": self.seed,
            "confidence": CONFIDENCE,
            "made_questions": dict(self.made),
            "documents": dict(self.sizes),
            "choices": [asdict(one) for one in (self.choose() if choices is None else choices)],
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

    def trec(self) -> dict[str, str]:
        """Return judgements and runs in TREC's format by name; see ``write``."""
        found = {}
        for name in self.datasets:
            if self.gold.get(name):
                found[f"{name}.qrels"] = trec_qrels(self.gold[name])
                for one in self.of(name):
                    found[f"{name}.{one.label}.run"] = trec_run(one.rows, one.label)
        return found

    def write(
        self, folder: str | os.PathLike[str], choices: Sequence[Choice] | None = None
    ) -> list[Path]:
        """Write tables, values, pictures and files of TREC, and return their paths.

        They are ``results.md``, ``results.json``, SVG files, and in ``trec`` for each data set with
        gold documents its judgements (``DATASET.qrels``) and a run of each pipeline
        (``DATASET.PIPELINE.run``), of the best 100 documents. A question for which nothing was
        found has no line in a run, as usual. Names of files have "-" for what few file systems
        allow, with a hash behind it where two would be one.

        Args:
            folder: is made where it is not there.
            choices: what ``choose`` gave; None chooses by its defaults.
        """
        root = Path(folder)
        (root / "trec").mkdir(parents=True, exist_ok=True)
        pictures = {f"{name}.svg": picture for name, picture in self.plots().items()}
        trec = self.trec()
        texts = {
            "results.md": self.markdown(choices),
            "results.json": json.dumps(self.record(choices), indent=1),
            **dict(zip(_file_names(pictures), pictures.values(), strict=True)),
            **{
                f"trec/{name}": text
                for name, text in zip(_file_names(trec), trec.values(), strict=True)
            },
        }
        for name, text in texts.items():
            (root / name).write_text(text, encoding="utf-8")
        return [root / name for name in texts]


def _file_names(names: Iterable[str]) -> list[str]:
    """Return the names of files, which differ also where a file system has no capital letters."""
    clean = {n: "".join(c if c.isalnum() or c in "-." else "-" for c in n) for n in names}
    count = Counter(one.casefold() for one in clean.values())
    return [
        one if count[one.casefold()] == 1 else f"-{stable_id(name)[:8]}.".join(one.rsplit(".", 1))
        for name, one in clean.items()
    ]


def _mean(values: Any) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *(list(row) for row in body)]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in lines)
