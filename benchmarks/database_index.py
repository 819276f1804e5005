"""Measure an index in a database: opening it, changing it, and questions with and without filters.

    python benchmarks/database_index.py --pages 5000 --chunks 20

Chunks have random vectors; times are seconds of this process's CPU, the median of some runs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from longrag.calls import Embed, run
from longrag.indexing.database import IndexDatabase
from longrag.ingestion.builder import UnitBuilder
from longrag.retrieval.corpus_database import KIND, DatabaseCorpus
from longrag.retrieval.filters import DocumentFilter
from longrag.types import Document

WIDTH = 384


def answer(request: Embed) -> np.ndarray:
    """Give texts random vectors, equal texts equal ones."""
    rows = [np.random.default_rng(abs(hash(text))).random(WIDTH) - 0.5 for text in request.texts]
    return np.stack(rows).astype(np.float32)


def page(number: int, chunks: int, version: int = 0) -> Document:
    """Make a page whose sentences are a chunk each."""
    sentences = [
        f"Sentence {n} of page {number}, version {version}, says this." for n in range(chunks)
    ]
    links = " ".join(f"[on](p{(number + step) % 5000})" for step in (1, 7, 31))
    metadata = {"tenant": number % 1000, "half": number % 2}
    return Document(f"p{number}", " ".join(sentences) + " " + links, f"Page {number}", metadata)


def cpu(work: Callable[[], object], times: int) -> float:
    """Return the median seconds of CPU that some work takes."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def main() -> None:
    """Build, open, change and ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=5000)
    parser.add_argument("--chunks", type=int, default=20)
    given = parser.parse_args()
    path = Path(tempfile.mkdtemp()) / "index.db"

    def opened() -> DatabaseCorpus:
        database = IndexDatabase(path, name="benchmark", kind=KIND)
        return DatabaseCorpus(database, UnitBuilder(chunk_size=16))

    corpus = opened()
    pages = [page(n, given.chunks) for n in range(given.pages)]
    start = time.process_time()
    run(corpus.change(upsert=pages), answer)
    print(f"{given.pages} pages, {len(corpus.index.chunks)} chunks")
    print(f"build             {time.process_time() - start:8.3f} s")
    query = np.random.default_rng(0).random(WIDTH).astype(np.float32)

    def ask(index: DatabaseCorpus, wanted: DocumentFilter | None) -> None:
        view = index.view(wanted)
        view.index.search(query, 4, visible=view.visible)

    ask(corpus, None)
    print(f"open, first answer{cpu(lambda: ask(opened(), None), 2):8.3f} s")
    versions = iter(range(1, 100))
    change = cpu(
        lambda: run(corpus.change(upsert=[page(3, given.chunks, next(versions))]), answer), 5
    )
    print(f"change of a page  {change:8.3f} s")
    for name, wanted in [
        ("no filter", None),
        ("one in a thousand", {"tenant": 3}),
        ("one in ten", {"tenant": list(range(100))}),
        ("one half", {"half": 1}),
        ("everything", {"half": [0, 1]}),
    ]:
        made = DocumentFilter.of(wanted)
        ask(corpus, made)
        print(f"{name:18s}{cpu(lambda made=made: ask(corpus, made), 15) * 1000:8.2f} ms")


if __name__ == "__main__":
    main()
