"""What one pipeline gave for one data set, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from longrag.evaluation.harness.scoring import MEASURES
from longrag.evaluation.harness.settings import PipelineSettings
from longrag.evaluation.judged import JUDGED

Row = Mapping[str, Any]

COSTS: Final[Mapping[str, Callable[[Row], float]]] = {
    "tokens": lambda row: row["tokens"] + row["costs"]["prompt_tokens"],
    "seconds": lambda row: row["costs"]["seconds"],
    "cpu": lambda row: row["costs"]["cpu"],
    "calls": lambda row: row["costs"]["calls"],
}
"""What "cheap" may mean: tokens read and sent, seconds, CPU seconds, or model calls a question."""


@dataclass(frozen=True, eq=False)
class Result:
    """What one pipeline with one choice of settings gave for one data set.

    ``rows`` are its results, one a question in the order of the data set; ``build`` is what its
    index cost, as if it had been built alone.
    """

    dataset: str
    label: str
    settings: PipelineSettings
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
