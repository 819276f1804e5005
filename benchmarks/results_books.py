"""Tables of QuALITY and SQuALITY, whose questions are each asked of one story alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from results_bench import Bench, at_budget, by_budget, column, costs_of, draw, read_tokens, table

from longrag.evaluation.harness import Pipeline, with_controls

BUDGETS = (500, 1000, 2000)
TREES = {"raptor": "RAPTOR, collapsed", "raptor traversal": "RAPTOR, traversal"}


def squality(bench: Bench) -> Iterator[tuple[str, str]]:
    """All systems over one story at a time, at equal budgets of tokens."""
    grid = {"token_budget": list(BUDGETS)}
    report = bench.evaluate("squality", _pipelines(), None, grid=grid)
    yield "books-squality", table(by_budget(report, "pairs", BUDGETS), "system")
    yield "books-costs", table(costs_of(at_budget(report, BUDGETS[1])), "system")
    draw(report, "squality", "pairs")


def quality(bench: Bench) -> Iterator[tuple[str, str]]:
    """Questions of four options about one story at a time."""
    report = bench.evaluate("quality", _pipelines(reader="extractive", quoted=False), None)
    columns = {
        "accuracy, extractive reader": column(report, "accuracy"),
        "tokens read": read_tokens(report),
    }
    yield "books-quality", table(columns, "system")


def _pipelines(*, quoted: bool = True, **changes: Any) -> Sequence[Pipeline]:
    given = {"chunk_size": 100, "embedder": "minilm", "token_budget": 1000, **changes}
    summaries = {"quoted sentences": "extractive", "key words": "keywords"}
    if not quoted:
        del summaries["quoted sentences"]
    trees = [
        replace(Pipeline.named(base, **given, summarizer=summarizer), name=f"{name}, {shown}")
        for base, name in (
            ("raptor", "RAPTOR, collapsed"),
            ("raptor traversal", "RAPTOR, traversal"),
        )
        for shown, summarizer in summaries.items()
    ]
    wide = Pipeline.named("passages", window=1, **given)
    pipelines = [
        Pipeline.named("passages", **given),
        replace(wide, name="passages, 1 more on each side"),
        replace(Pipeline.named("units", **given), name="long units"),
        Pipeline.named("evidence", **given),
        *trees,
        replace(Pipeline.named("bm25", **given), name="BM25"),
        Pipeline.named("hybrid", **given),
        replace(Pipeline.named("rrf", **given), name="reciprocal ranks"),
    ]
    return with_controls(pipelines)
