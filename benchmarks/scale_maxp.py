"""Exact MaxP over vectors on disk: indexing, opening, asking and sharing, in time and memory.

    python benchmarks/scale_maxp.py draw DIRECTORY --chunks 1000000 --width 384 --kind clustered
    python benchmarks/scale_maxp.py build DIRECTORY
    python benchmarks/scale_maxp.py ask DIRECTORY
    python benchmarks/scale_maxp.py share DIRECTORY

``draw`` writes normalised vectors into a file, ``build`` indexes them where they are and saves the
index, ``ask`` opens it in a process that has read nothing yet, ``share`` in eight forked and eight
spawned ones, which together have one copy of it. Each prints one row of JSON. Kinds:
"clustered" has a centre for 500 chunks, "uniform" no structure at all (the hardest for a bound),
"outliers" eight columns ten times larger than the others, "real" are vectors of MiniLM over
Wikispeedia, each repeated with noise of a tenth of its length. A unit has 8 chunks. Rivals are
timed by ``maxp.py``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

# The BLAS library reads these once, when numpy is imported.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from public_data import DATA  # noqa: E402
from scale_memory import drop_pages, memory, peak  # noqa: E402

from longrag.retrieval import MaxPIndex  # noqa: E402

K = 8
CHUNKS_PER_UNIT = 8
CHUNKS_PER_CENTRE = 500
BATCH = 32
WORKERS = 8
BLOCK = 50_000
REAL = DATA / "e_wikispeedia" / "subset1500.chunk_vectors.f16.npy"

Floats = NDArray[np.float32]


def draw(chunks: int, width: int, kind: str) -> Iterator[Floats]:
    """Draw normalised vectors, some at a time."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((max(1, chunks // CHUNKS_PER_CENTRE), width), np.float32)
    real = np.load(REAL, mmap_mode="r") if kind == "real" else None
    for begin in range(0, chunks, BLOCK):
        count = min(BLOCK, chunks - begin)
        block = random.standard_normal((count, width), np.float32)
        if kind == "clustered":
            block *= 0.7
            block += centres[(np.arange(begin, begin + count) // CHUNKS_PER_UNIT) % len(centres)]
        elif kind == "outliers":
            block[:, :8] *= 10
        elif real is not None:
            block *= 0.1 / np.sqrt(width)
            block += real[np.arange(begin, begin + count) % len(real)]
        block /= np.linalg.norm(block, axis=1, keepdims=True)
        yield block


def questions(vectors: Floats) -> Floats:
    """Return vectors near some of the chunks."""
    random = np.random.default_rng(1)
    near = vectors[np.sort(random.integers(0, len(vectors), BATCH))]
    noise = random.standard_normal(near.shape, np.float32)
    return np.asarray(near + 0.3 / np.sqrt(near.shape[1]) * noise, np.float32)


def write(folder: Path, chunks: int, width: int, kind: str) -> dict[str, Any]:
    """Write the vectors and the questions."""
    folder.mkdir(parents=True)
    vectors = np.lib.format.open_memmap(
        folder / "vectors.npy", mode="w+", dtype=np.float32, shape=(chunks, width)
    )
    at = 0
    for block in draw(chunks, width, kind):
        vectors[at : at + len(block)] = block
        at += len(block)
        drop_pages(vectors)
    np.save(folder / "questions.npy", questions(vectors))
    return {"part": "draw", "kind": kind, "chunks": chunks, "width": width}


def build(folder: Path) -> dict[str, Any]:
    """Index the vectors where they are, and save the index."""
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    chunks, width = vectors.shape
    units = np.arange(chunks) // CHUNKS_PER_UNIT
    before, begin = peak(), time.process_time()
    index = MaxPIndex.over(vectors, units)
    coded, held = time.process_time() - begin, peak()
    begin = time.process_time()
    index.save(folder / "index")
    size = sum(file.stat().st_size for file in (folder / "index").iterdir())
    return {
        "part": "build",
        "chunks": chunks,
        "width": width,
        "index_cpu_s": coded,
        "save_cpu_s": time.process_time() - begin,
        "peak_mb": (held - before) / 1e6,
        "disk_mb": size / 1e6,
    }


def cpu(work: Callable[[], object]) -> float:
    """Return the milliseconds of CPU that some work takes."""
    begin = time.process_time()
    work()
    return 1000 * (time.process_time() - begin)


def ask(folder: Path, repeats: int) -> dict[str, Any]:
    """Open the index, ask it, and time one question and a batch."""
    asked = np.load(folder / "questions.npy")
    row: dict[str, Any] = {"part": "ask", "empty_mb": memory() / 1e6}
    opened: list[MaxPIndex] = []
    row["open_cpu_ms"] = cpu(lambda: opened.append(MaxPIndex.load(folder / "index", verify=False)))
    index = opened[0]
    row["first_cpu_ms"] = cpu(lambda: index.search(asked[:1], K))
    index.search(asked, K)
    row["resident_mb"] = memory() / 1e6 - row["empty_mb"]
    row["chunks"], row["width"] = index.n_chunks, index.width
    ones = [cpu(lambda one=one: index.search(one, K)) for one in asked]
    row["one_ms"] = statistics.median(ones)
    batches = [cpu(lambda: index.search(asked, K)) for _ in range(repeats)]
    row["batch_ms"] = statistics.median(batches)
    return row


def held(folder: Path, done: Any, go: Any) -> tuple[float, float]:
    """Open the index, ask it, and wait for the others; return the resident and own share in MB."""
    asked = np.load(folder / "questions.npy")
    index = MaxPIndex.load(folder / "index", verify=False)
    for query in asked:
        index.search(query, K)
    done.release()
    go.wait()
    rollup = dict(
        line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    )
    return tuple(int(rollup[name].split()[0]) * 1024 / 1e6 for name in ("Rss", "Pss"))


def share(folder: Path) -> dict[str, Any]:
    """Open the index in eight workers at the same time, and add up what each has of memory."""
    row: dict[str, Any] = {"part": "share", "workers": WORKERS}
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        with context.Manager() as manager, ProcessPoolExecutor(WORKERS, context) as pool:
            done, go = manager.Semaphore(0), manager.Event()
            opened = [pool.submit(held, folder, done, go) for _ in range(WORKERS)]
            for _ in opened:
                done.acquire()
            go.set()
            found = [future.result() for future in opened]
        row[f"{method}_rss_each_mb"] = statistics.mean(rss for rss, _ in found)
        row[f"{method}_shared_sum_mb"] = sum(pss for _, pss in found)
    return row


def main() -> None:
    """Draw, build or ask, and print the row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["draw", "build", "ask", "share"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument(
        "--kind", choices=["clustered", "uniform", "outliers", "real"], default="clustered"
    )
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    if given.what == "draw":
        row = write(given.folder, given.chunks, given.width, given.kind)
    elif given.what == "build":
        row = build(given.folder)
    elif given.what == "share":
        row = share(given.folder)
    else:
        row = ask(given.folder, given.repeats)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
