"""The tables of ``results.py`` for which a language model is needed."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from results_bench import Bench, column, milliseconds, read_tokens, table

from longrag.evaluation.harness import Pipeline, Report, with_controls
from longrag.evaluation.judged import JUDGED
from longrag.index_file.models import load_generator

if TYPE_CHECKING:
    from longrag.models import TransformersLanguageModel

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
READ = 20
"""Questions that a language model reads for."""
SWAPPED = 6
"""Questions of each row where modules are swapped."""
SCORED = 6
"""Questions whose answers are judged, of two pipelines."""
QUOTED = 25
"""Questions that RICHES answers."""


def with_smollm2(data: Path, folder: Path) -> Bench:
    """Return what the tables are made with where SmolLM2 reads, judges and quotes."""
    os.environ["LONGRAG_SMOLLM2"] = str(folder)
    # Pipelines that read the same are answered the same.
    reader, judge = (cache(load_generator(f"smollm2:{name}", {})) for name in ("answer", "judge"))
    return Bench(data, reader, "SmolLM2", judge, folder)


def readers(bench: Bench) -> Iterator[tuple[str, str]]:
    """What a language model answers from what is read, beside the extractive reader."""
    columns: dict[str, dict[str, str]] = {}
    for reader, name in (("extractive", "extractive"), ("llm", bench.model)):
        given = {"token_budget": 1000, "reader": reader}
        names = ("passages", "evidence")
        pipelines = [replace(Pipeline.named(one, **given), name=one) for one in names]
        report = bench.evaluate("hotpotqa", pipelines, READ, model=reader == "llm")
        if not columns:
            columns["both paragraphs are read"] = column(report, "R")
        for measure in ("EM", "F1"):
            columns[f"{measure}, {name}"] = column(report, measure)
        columns[f"{name}, CPU s a question"] = {
            one.label: f"{statistics.fmean(row['costs']['cpu'] for row in one.rows):,.1f}"
            for one in report.results
        }
    yield "readers", table(columns, "pipeline")


def swapped(bench: Bench) -> Iterator[tuple[str, str]]:
    """One module swapped at a time with a language model as the reader, and the recipes."""
    given = {"chunk_size": 100, "token_budget": 300, "embedder": "minilm", "reader": "llm"}
    base = Pipeline.named("hybrid", **given)
    names = ("balanced efficiency", "best performance")
    recipes = [Pipeline.named(one, **given) for one in names]
    both = bench.evaluate("squad", [base], SWAPPED, model=True, ablate=True)
    whole = bench.evaluate("squad", recipes, SWAPPED, model=True)
    report = Report((*both.results, *whole.results), both.seed)
    columns = {
        "answer is read": column(report, "AR"),
        f"EM, {bench.model}": column(report, "EM"),
        f"F1, {bench.model}": column(report, "F1"),
        "calls a question": {
            one.label: f"{statistics.fmean(row['costs']['calls'] for row in one.rows):.1f}"
            for one in report.results
        },
    }
    yield "swapped", table(columns, "pipeline")


def judged(bench: Bench) -> Iterator[tuple[str, str]]:
    """Scores by a judge, how many of its replies could be used, and what they agree with."""
    given = {"token_budget": 300, "reader": "extractive"}
    pipelines = [Pipeline.named(one, **given) for one in ("passages", "evidence")]
    report = bench.evaluate("hotpotqa", pipelines, SCORED, model=True, judge=bench.judge)
    columns: dict[str, dict[str, str]] = {}
    for score in JUDGED:
        for one, cell in column(report, score).items():
            columns.setdefault(one, {})[score] = cell
    for one in report.results:
        columns[f"{one.label}, usable"] = {
            score: f"{sum(value is not None for value in one.values(score))} of {len(one.rows)}"
            for score in JUDGED
        }
    yield "judged", table(columns, "score")
    yield "agreement", report.agreement_table("hotpotqa")


def riches(bench: Bench) -> Iterator[tuple[str, str]]:
    """RICHES beside searches that read one passage, and more."""
    if bench.smollm2 is None:
        return
    given = {"embedder": "minilm", "token_budget": 500}
    names = ("passages", "hybrid", "evidence")
    best = [
        replace(Pipeline.named(one, k=1, **given), name=f"{one}, the best one") for one in names
    ]
    more = [replace(Pipeline.named(one, **given), name=f"{one}, 500 tokens") for one in names]
    own = replace(Pipeline.named("riches", embedder="minilm"), name="RICHES, SmolLM2's first quote")
    model = _decodable(bench.smollm2)
    compared = with_controls([*best, *more, own])
    report = bench.evaluate("nq_open", compared, QUOTED, language_model=model)
    columns = {
        "R": column(report, "R"),
        "answer is read": column(report, "AR"),
        "tokens read": read_tokens(report),
        "CPU ms a question": milliseconds(report),
    }
    yield "riches", table(columns, "system")


@cache
def _decodable(folder: Path) -> TransformersLanguageModel:
    # Imported here, since the other tables need neither torch nor the weights.
    import torch

    from longrag.models import TransformersLanguageModel
    from longrag.models.transformers.dtypes import native_dtype

    torch.set_num_threads(1)
    return TransformersLanguageModel.load(str(folder), gguf_file=GGUF, dtype=native_dtype())
