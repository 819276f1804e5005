"""Fill the tables and pictures of docs/results.md from the prepared public data.

    make results
    python benchmarks/results.py --only chunking systems
    python benchmarks/results.py --llm my_models:gpt --only ablation
    LONGRAG_SMOLLM2=FOLDER python benchmarks/results.py --llm smollm2:answer --only readers

Every table is an evaluation by ``longrag.evaluation.harness``, kept in the folder ``.results``, so
that a run which was stopped goes on and vectors are made once. The first run takes ten minutes of
one core, most of it MiniLM. Questions are drawn by a seed from the half of each set that is not
kept apart. A cell is a mean with its 95 % interval over questions; behind it stands an arrow where
the paired difference to the first row is sure, up where it is better.

Without ``--llm`` the extractive reader reads and summaries of trees quote; with it both are the
model's, and results are kept apart. The table of readers is made with it alone. Tables stand in the
page between comments that name them; the sentences around them are written by hand.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402
from public_data import DATA  # noqa: E402

from longrag.calls import Embed, Request, run  # noqa: E402
from longrag.evaluation.datasets import Dataset, read_prepared  # noqa: E402
from longrag.evaluation.harness import Generator, Pipeline, Report, evaluate  # noqa: E402
from longrag.evaluation.harness.plots import Point, draw_lines  # noqa: E402
from longrag.index_file.models import load_generator  # noqa: E402
from longrag.indexing import ExtractiveSummarizer, TreeBuilder  # noqa: E402
from longrag.ingestion import UnitBuilder  # noqa: E402
from longrag.models import LsaEmbedder, MiniLmEmbedder  # noqa: E402
from longrag.retrieval import CorpusIndex, TreeIndex  # noqa: E402
from longrag.types import Document  # noqa: E402

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
IMAGES = ROOT / "docs" / "images"
KEPT = ROOT / ".results"
MULTI_HOP = ("hotpotqa", "musique", "2wiki")
ALPHAS = (0.1, 0.3, 0.6, 1.0, 2.0)
ARTICLES = 12
READ = 20
"""Questions that a language model reads for."""

Cells = Mapping[str, Sequence[str]]


@cache
def minilm() -> MiniLmEmbedder:
    """Return MiniLM, loaded once."""
    return MiniLmEmbedder()


PREPARED: dict[str, Any] = {}
"""Vectors made beforehand, by the text of a paragraph, for leaves of trees that are paragraphs."""


def embed(texts: Sequence[str], role: Any) -> Any:
    """Embed with MiniLM, which is loaded where something is neither kept nor prepared."""
    new = [text for text in texts if text not in PREPARED]
    made = dict(zip(new, minilm()(new, role), strict=True)) if new else {}
    return np.stack([made[text] if text in made else PREPARED[text] for text in texts])


@dataclass(frozen=True)
class Bench:
    """What every table is made with."""

    data: Path
    llm: Generator | None
    name: str

    def dataset(self, name: str) -> Dataset:
        """Read a prepared set: with its vectors where it has some, SQuAD as whole articles."""
        if name in MULTI_HOP:
            stem = str(self.data / "a_multihop" / name)
            return read_prepared(
                f"{stem}.corpus.jsonl.gz",
                f"{stem}.questions.dev.jsonl.gz",
                name=name,
                vectors=f"{stem}.vectors.f16.npy",
                question_vectors=f"{stem}.question_vectors.dev.f16.npy",
            )
        if name == "wikispeedia":
            folder = self.data / "e_wikispeedia"
            return read_prepared(
                folder / "wikispeedia.corpus.jsonl.gz",
                folder / "wikispeedia.questions.dev.jsonl.gz",
                name=name,
                chunks=folder / "subset1500.chunks.jsonl.gz",
                vectors=folder / "subset1500.chunk_vectors.f16.npy",
                question_vectors=folder / "wikispeedia.question_vectors.dev.f16.npy",
            )
        stem = str(self.data / "b_singlehop" / name)
        whole = read_prepared(
            f"{stem}.corpus.jsonl.gz", f"{stem}.questions.dev.jsonl.gz", name=name
        )
        return first_articles(whole)

    def evaluate(
        self, name: str, pipelines: Sequence[Pipeline | str], questions: int | None, **given: Any
    ) -> Report:
        """Evaluate pipelines on a set, with MiniLM, and keep the results."""
        began = time.process_time()
        dataset = self.dataset(name)
        if dataset.given is not None and name in MULTI_HOP:
            texts = (one.text for one in dataset.documents)
            PREPARED.update(zip(texts, dataset.given.vectors, strict=True))
        report = evaluate(
            [dataset],
            pipelines,
            questions=questions,
            embedders={"minilm": embed},
            llm=self.llm,
            folder=KEPT,
            names={"llm": self.name} if self.name else {},
            watch=show,
            **given,
        )
        print(f"\r{name}: {time.process_time() - began:.0f} CPU s\033[K", file=sys.stderr)
        return report


def first_articles(dataset: Dataset) -> Dataset:
    """Return a quarter of SQuAD's articles with their questions, for MiniLM on one core."""
    documents = dataset.documents[:ARTICLES]
    kept = {one.id for one in documents}
    questions = [one for one in dataset.questions if kept.issuperset(one.gold_ids)]
    return replace(dataset, documents=documents, questions=tuple(questions))


def show(label: str, done: int, total: int) -> None:
    """Show how far a run is."""
    if not total or done % 20 == 0:
        print(f"\r{label}: {done} of {total}\033[K", end="", file=sys.stderr, flush=True)


def column(report: Report, measure: str, *, digits: int = 2) -> dict[str, str]:
    """Return a cell a pipeline: the mean, its interval, and an arrow where it is surely other."""
    first, *_ = (one for one in report.results if measure in one.measures)
    cells = {}
    for one in report.results:
        mean = report.mean(one, measure)
        if mean is None:
            cells[one.label] = "-"
            continue
        gap = report.difference(one, first, measure)
        arrow = " ▲" if gap.low > 0 else " ▼" if gap.high < 0 else ""
        low, high = f"{mean.low:.{digits}f}", f"{mean.high:.{digits}f}"
        cells[one.label] = f"{mean.mean:.{digits}f} [{low}, {high}]{arrow}"
    return cells


def read_tokens(report: Report) -> dict[str, str]:
    """Return the mean tokens read a question."""
    return {
        one.label: f"{statistics.fmean(row['tokens'] for row in one.rows):,.0f}"
        for one in report.results
    }


def milliseconds(report: Report) -> dict[str, str]:
    """Return the mean CPU milliseconds a question."""
    return {
        one.label: f"{1000 * statistics.fmean(row['costs']['cpu'] for row in one.rows):,.1f}"
        for one in report.results
    }


def table(columns: Mapping[str, Mapping[str, str]], head: str = "") -> str:
    """Lay out columns of cells by label as Markdown."""
    labels = list(dict.fromkeys(label for cells in columns.values() for label in cells))
    lines = [[head, *columns], ["---"] * (len(columns) + 1)]
    lines += [[label, *(cells.get(label, "-") for cells in columns.values())] for label in labels]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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
    report = bench.evaluate("squad", [*named, *wide], 300)
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
        report = bench.evaluate(name, pipelines, 300, grid=grid)
        columns[f"{name}, {measure}, {budget:,} tokens"] = column(report, measure)
    yield "fusion", table(columns, "ranking")


def ablation(bench: Bench) -> Iterator[tuple[str, str]]:
    """One module swapped at a time (best practices, Table 11), and a whole recipe."""
    reader = "extractive" if bench.llm is None else "llm"
    given = {"chunk_size": 200, "token_budget": 500, "reader": reader}
    base = Pipeline.named("hybrid", **given)
    recipe = Pipeline.named("balanced efficiency", **given)
    both = bench.evaluate("squad", [base], 40, ablate=True)
    whole = bench.evaluate("squad", [recipe], 40)
    report = Report((*both.results, *whole.results), both.seed)
    columns = {
        "answer is read": column(report, "AR"),
        f"F1, {reader} reader": column(report, "F1"),
        "tokens read": read_tokens(report),
        "CPU ms a question": milliseconds(report),
    }
    yield "ablation", table(columns, "pipeline")


def readers(bench: Bench) -> Iterator[tuple[str, str]]:
    """What a language model answers from what is read, beside the extractive reader."""
    if bench.llm is None:
        return
    columns: dict[str, dict[str, str]] = {}
    for reader, name in (("extractive", "extractive"), ("llm", bench.name)):
        given = {"token_budget": 1000, "reader": reader}
        names = ("passages", "evidence")
        pipelines = [replace(Pipeline.named(one, **given), name=one) for one in names]
        report = bench.evaluate("hotpotqa", pipelines, READ)
        if not columns:
            columns["both paragraphs are read"] = column(report, "R")
        for measure in ("EM", "F1"):
            columns[f"{measure}, {name}"] = column(report, measure)
        columns[f"{name}, CPU s a question"] = {
            one.label: f"{statistics.fmean(row['costs']['cpu'] for row in one.rows):,.1f}"
            for one in report.results
        }
    yield "readers", table(columns, "pipeline")


def systems(bench: Bench) -> Iterator[tuple[str, str]]:
    """All systems on two corpora at equal budgets of tokens."""
    for name, measure, budgets in (
        ("hotpotqa", "R", (500, 1000, 2000, 4000)),
        ("squad", "AR", (500, 1000, 2000, 4000)),
    ):
        report = bench.evaluate(name, _systems(name), 100, grid={"token_budget": list(budgets)})
        results = report.results
        columns = {
            f"{measure}, {budget:,} tokens": _at(report, measure, budget) for budget in budgets
        }
        last = _at_all(report, budgets[1])
        costs = {
            "build, CPU s": {label: f"{one.build['cpu']:.1f}" for label, one in last.items()},
            "texts embedded": {
                label: f"{one.build['embedded']:,.0f}" for label, one in last.items()
            },
            "a question, CPU ms": {
                label: f"{1000 * statistics.fmean(row['costs']['cpu'] for row in one.rows):.1f}"
                for label, one in last.items()
            },
        }
        yield f"systems-{name}", table(columns, "system")
        yield f"costs-{name}", table(costs, "system")
        lines: dict[str, list[Point]] = {}
        for one in results:
            mean, budget = report.mean(one, measure), one.settings.token_budget
            if mean is not None and budget is not None:
                label = one.label.replace(f", token_budget={budget}", "")
                lines.setdefault(label, []).append(Point(budget, mean.mean, mean.low, mean.high))
        title = f"{name}: {measure} within a budget of tokens, with 95 % intervals"
        picture = draw_lines(title, "token budget", {k: v for k, v in lines.items() if len(v) > 1})
        (IMAGES / f"results-{name}.svg").write_text(picture, encoding="utf-8")


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


def _at_all(report: Report, budget: int) -> dict[str, Any]:
    return {
        one.label.replace(f", token_budget={budget}", ""): one
        for one in report.results
        if one.settings.token_budget == budget
    }


def _at(report: Report, measure: str, budget: int) -> dict[str, str]:
    found = _at_all(report, budget)
    part = Report(tuple(found.values()), report.seed)
    cells = column(part, measure)
    return dict(zip(found, cells.values(), strict=True))


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


SECTIONS: Mapping[str, Callable[[Bench], Iterator[tuple[str, str]]]] = {
    "fusion": fusion,
    "chunking": chunking,
    "systems": systems,
    "updates": updates,
    "ablation": ablation,
    "readers": readers,
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
    parser.add_argument("--llm", default="", help="MODULE:NAME of a language model")
    parser.add_argument("--print", action="store_true", help="print the tables, fill nothing")
    options = parser.parse_args()
    llm = load_generator(options.llm, {}) if options.llm else None
    bench = Bench(options.data, llm, options.llm)
    for section in options.only:
        for name, text in SECTIONS[section](bench):
            print(f"\n{name}\n\n{text}", flush=True)
            if not options.print:
                page = PAGE.read_text(encoding="utf-8")
                PAGE.write_text(put(page, name, text), encoding="utf-8")


if __name__ == "__main__":
    main()
