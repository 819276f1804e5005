"""Measure an index in a database: opening it, changing it, and questions with and without filters.

    python benchmarks/database_index.py --pages 5000 --chunks 20

Chunks have random vectors; times are seconds of this process's CPU, the median of some runs.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from longrag.calls import Embed, run
from longrag.indexing.codes import Codes
from longrag.indexing.database import IndexDatabase
from longrag.ingestion.builder import UnitBuilder
from longrag.retrieval.corpus_database import KIND, DatabaseCorpus
from longrag.retrieval.filters import DocumentFilter
from longrag.types import Document

WIDTH = 384
RANDOM = np.random.default_rng(0)


def answer(request: Embed) -> np.ndarray:
    """Give texts random vectors, equal texts equal ones."""
    rows = [
        np.random.default_rng(zlib.crc32(text.encode())).random(WIDTH) - 0.5
        for text in request.texts
    ]
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


def opened(path: Path) -> DatabaseCorpus:
    """Open an index, or make it."""
    database = IndexDatabase(path, name="benchmark", kind=KIND)
    return DatabaseCorpus(database, UnitBuilder(chunk_size=16))


def ask(index: DatabaseCorpus, wanted: DocumentFilter | None) -> None:
    """Ask for the four units that are best for a random vector."""
    query = RANDOM.random(WIDTH).astype(np.float32) - 0.5
    view = index.view(wanted)
    view.index.search(query, 4, visible=view.visible)


def print_opening(path: Path) -> None:
    """Open an index and ask it, in a process that has loaded its kernels and libraries."""
    small = np.ones((2, WIDTH), np.float32)
    Codes.of(small).bounds(small[:1], np.array([0]), np.array([2]), 1.0)
    with tempfile.TemporaryDirectory() as folder:
        opened(Path(folder) / "small.db")
    print(f"{cpu(lambda: ask(opened(path), None), 1):8.3f} s, first answer included")


def main() -> None:
    """Build, open, change and ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=5000)
    parser.add_argument("--chunks", type=int, default=20)
    parser.add_argument("--open", type=Path, help="open this file alone, and ask it")
    given = parser.parse_args()
    if given.open:
        print_opening(given.open)
        return
    path = Path(tempfile.mkdtemp()) / "index.db"
    corpus = opened(path)
    pages = [page(n, given.chunks) for n in range(given.pages)]
    start = time.process_time()
    run(corpus.change(upsert=pages), answer)
    print(f"{given.pages} pages, {len(corpus.index.chunks)} chunks")
    print(f"build             {time.process_time() - start:8.3f} s")
    print(f"first answer      {cpu(lambda: ask(corpus, None), 1):8.3f} s, kernels are loaded")
    for name in ("without cache", "with cache"):
        print(f"open, {name:13s}", end="", flush=True)
        subprocess.run([sys.executable, __file__, "--open", path], check=True)
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
        print(f"{name:18s}{cpu(lambda made=made: ask(corpus, made), 45) * 1000:8.2f} ms")


if __name__ == "__main__":
    main()
