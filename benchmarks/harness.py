"""Time what the evaluation costs beside the pipelines it asks.

    python benchmarks/harness.py
    python benchmarks/harness.py --folder /some/folder

10,000 questions of passages, and of hybrid search, over 35,000 chunks of a hundred words with given
vectors of width 384 near their topics; R, recall, nDCG and AR of each, with intervals and the
choice. What is not the pipelines' own time is the harness: cutting, counting, scoring, writing
results where ``--folder`` keeps them, intervals and tables.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

# The BLAS library reads these once, when numpy is imported; one question gains nothing by threads.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402

from longrag.evaluation.datasets import (  # noqa: E402
    Dataset,
    GivenVectors,
    PassageSpan,
    Question,
)
from longrag.evaluation.harness import Pipeline, evaluate  # noqa: E402
from longrag.types import Document  # noqa: E402

WIDTH = 384
WORDS = 100


def make(chunks: int, questions: int) -> Dataset:
    """Make a corpus of random words, each document with a word that is asked for."""
    random = np.random.default_rng(0)
    vocabulary = np.array([f"w{number:05d}" for number in range(20_000)])
    weights = 1 / np.arange(1, len(vocabulary) + 1)
    drawn = random.choice(len(vocabulary), (chunks, WORDS), p=weights / weights.sum())
    documents = tuple(
        Document(f"d{at}", f"key{at} {' '.join(vocabulary[row])}.") for at, row in enumerate(drawn)
    )
    vectors = random.standard_normal((chunks, WIDTH)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    gold = random.integers(0, chunks, questions)
    asked = vectors[gold] + 0.25 * random.standard_normal((questions, WIDTH)).astype(np.float32)
    return Dataset(
        "made",
        documents,
        tuple(
            Question(f"q{at}", f"what about key{to}", (f"key{to}",), (f"d{to}",))
            for at, to in enumerate(gold.tolist())
        ),
        (),
        given=GivenVectors(
            tuple(PassageSpan(at, 0, len(one.text)) for at, one in enumerate(documents)),
            vectors,
            {f"q{at}": vector for at, vector in enumerate(asked)},
        ),
    )


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--questions", type=int, default=10_000)
    parser.add_argument("--chunks", type=int, default=35_000)
    parser.add_argument("--folder", type=Path, help="keep the results in this folder")
    parser.add_argument("--pipelines", nargs="+", default=["passages", "hybrid"])
    options = parser.parse_args()
    dataset = make(options.chunks, options.questions)
    for name in options.pipelines:
        wall, cpu = time.perf_counter(), time.process_time()
        pipeline = Pipeline.named(name, token_budget=1000)
        report = evaluate([dataset], [pipeline], folder=options.folder)
        report.table("made")
        (choice,) = report.choose()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        (result,) = report.results
        own = result.build["cpu"] + sum(row["costs"]["cpu"] for row in result.rows)
        found = report.mean(result, "R")
        print(
            f"{choice.label}: {options.questions:,} questions over {options.chunks:,} chunks,"
            f" R {found.mean if found else 0:.3f}: {wall:.1f} s, {cpu:.1f} CPU s, of which the"
            f" pipeline {own:.1f} and the harness {cpu - own:.1f} ({(cpu - own) / cpu:.1%})"
        )


if __name__ == "__main__":
    main()
