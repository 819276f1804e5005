"""The table of SQuALITY, whose questions are each asked of one story alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from results_bench import Bench, at_budget, by_budget, costs_of, draw, table

from longrag.evaluation.harness import Pipeline, with_controls

TREES = {"raptor": "RAPTOR, collapsed", "raptor traversal": "RAPTOR, traversal"}


def squality(bench: Bench) -> Iterator[tuple[str, str]]:
    """All systems over one story at a time, at equal budgets of tokens."""
    grid = {"token_budget": [500, 1000, 2000]}
    report = bench.evaluate("squality", _pipelines(), None, grid=grid)
    shown = {**by_budget(report, "pairs", (500, 2000)), **costs_of(at_budget(report, 1000))}
    yield "books-squality", table(shown, "system")
    draw(report, "squality", "pairs")


def _pipelines() -> Sequence[Pipeline]:
    given: dict[str, Any] = {"chunk_size": 100, "embedder": "minilm", "token_budget": 1000}
    trees = [
        replace(Pipeline.named(base, **given, summarizer=summarizer), name=f"{name}, {shown}")
        for base, name in TREES.items()
        for shown, summarizer in (("quoted sentences", "extractive"), ("key words", "keywords"))
    ]
    pipelines = [
        Pipeline.named("passages", **given),
        replace(Pipeline.named("units", **given), name="long units"),
        Pipeline.named("evidence", **given),
        *trees,
        replace(Pipeline.named("bm25", **given), name="BM25"),
        Pipeline.named("hybrid", **given),
        replace(Pipeline.named("rrf", **given), name="reciprocal ranks"),
    ]
    return with_controls(pipelines)
