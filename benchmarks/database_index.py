"""Measure an index in a database: opening it, changing it, and questions with and without filters.

    python benchmarks/database_index.py --pages 5000 --chunks 20

Chunks have random vectors; times are seconds of this process's CPU, the median of some runs, and
without the time it takes to draw vectors. At last eight processes open the index and ask it while
this one changes it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scale_memory import memory, peak

from longrag.calls import Embed, run
from longrag.indexing.database import IndexDatabase
from longrag.indices.corpus_database import KIND, DatabaseCorpus
from longrag.ingestion.builder import UnitBuilder
from longrag.retrieval.filters import DocumentFilter
from longrag.types import Document

WIDTH = 384
RANDOM = np.random.default_rng(0)


class Embedding:
    """Gives texts random vectors, and counts the seconds of CPU that this takes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, request: Embed) -> np.ndarray:
        """Answer a request."""
        start = time.process_time()
        vectors = RANDOM.random((len(request.texts), WIDTH), np.float32)
        vectors -= np.float32(0.5)
        self.seconds += time.process_time() - start
        return vectors


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


def read_beside(path: Path) -> None:
    """Open an index, then ask it until the changing process ends; print what that took."""
    start = time.process_time()
    index = opened(path)
    ask(index, None)
    opening = time.process_time() - start
    print("opened", flush=True)
    taken, seen = [], {index.database.revision().generation}
    end = path.with_name("end")
    while not end.exists():
        start = time.process_time()
        ask(index, None)
        taken.append(time.process_time() - start)
        seen.add(index.database.revision().generation)
        time.sleep(0.05)
    shared = statistics.median(taken) * 1000
    print(f"{opening:.3f} {len(taken)} {shared:.2f} {max(taken):.3f} {len(seen)} {own_memory()}")


def own_memory() -> str:
    """Return megabytes that are resident, and those that no other process shares."""
    rollup = Path("/proc/self/smaps_rollup")
    if not rollup.exists():
        return f"{memory() / 1e6:.0f} -"
    kilobytes = {
        line.split(":")[0]: line.split()[1] for line in rollup.read_text().splitlines()[1:]
    }
    private = int(kilobytes["Private_Clean"]) + int(kilobytes["Private_Dirty"])
    return f"{int(kilobytes['Rss']) / 1000:.0f} {private / 1000:.0f}"


def print_readers(path: Path, count: int, change: Callable[[], object]) -> None:
    """Let some processes ask an index while it is changed five times, and print what each took."""
    command = [sys.executable, __file__, "--read", str(path)]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    for reader in readers:
        assert reader.stdout is not None
        reader.stdout.readline()

    def change_and_wait() -> None:
        change()
        time.sleep(1)

    seconds = cpu(change_and_wait, 5)
    path.with_name("end").touch()
    print(f"change beside {count} {seconds:8.3f} s, reading processes:")
    print("  opened, s; questions; median, ms; slowest, s; generations seen; resident, own MB")
    for reader in readers:
        print(" ", reader.communicate()[0].strip())
        if reader.returncode:
            sys.exit("a reading process failed")


def print_opening(path: Path) -> None:
    """Open an index and ask it, in a process that has loaded its libraries."""
    with tempfile.TemporaryDirectory() as folder:
        opened(Path(folder) / "small.db")
    print(f"{cpu(lambda: ask(opened(path), None), 1):8.3f} s, first answer included")


def main() -> None:
    """Build, open, change and ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=5000)
    parser.add_argument("--chunks", type=int, default=20)
    parser.add_argument("--readers", type=int, default=8, help="processes that ask at last")
    parser.add_argument("--open", type=Path, help="open this file alone, and ask it")
    parser.add_argument("--read", type=Path, help="open this file, and ask it until it is ended")
    given = parser.parse_args()
    if given.read:
        read_beside(given.read)
        return
    if given.open:
        print_opening(given.open)
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder) / "index.db", given)


def measure(path: Path, given: argparse.Namespace) -> None:
    """Build, open, change and ask."""
    corpus = opened(path)
    embed = Embedding()
    pages = [page(n, given.chunks) for n in range(given.pages)]
    start = time.process_time()
    run(corpus.change(upsert=pages), embed)
    del pages
    print(f"{given.pages} pages, {len(corpus.index.chunks)} chunks")
    print(f"build             {time.process_time() - start - embed.seconds:8.3f} s")
    print(f"memory            {memory() / 1e9:8.2f} GB, at most {peak() / 1e9:.2f}")
    print(f"database          {path.stat().st_size / 1e9:8.2f} GB")
    print(f"first answer      {cpu(lambda: ask(corpus, None), 1):8.3f} s, kernels are loaded")
    for name in ("without cache", "with cache"):
        print(f"open, {name:13s}", end="", flush=True)
        subprocess.run([sys.executable, __file__, "--open", path], check=True)
    versions = iter(range(1, 100))

    def change() -> None:
        run(corpus.change(upsert=[page(3, given.chunks, next(versions))]), embed)

    print(f"change of a page  {cpu(change, 5):8.3f} s")
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
    if given.readers:
        print_readers(path, given.readers, change)


if __name__ == "__main__":
    main()
