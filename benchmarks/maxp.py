"""Time exact MaxP search against a flat FAISS scan, and against reading the vectors once.

    python benchmarks/maxp.py
    python benchmarks/maxp.py --chunks 100000 --repeats 15

The vectors are drawn at random around one centre per 64 chunks and normalised; units have about
8 chunks. "hog" is a corpus in which one unit holds 5,000 near-identical copies of the query's best
chunk. All runs of a table take turns in one process on one thread; each time is the median of the
processor's, so that ratios hold on a busy machine. FAISS returns the best 8 chunks, less than MaxP
does. The answers are compared with one float64 product per query before anything is timed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

# The BLAS library reads these once, when numpy is imported.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"

import faiss  # noqa: E402
import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from longrag.retrieval import MaxPIndex  # noqa: E402

WIDTH = 384
K = 8
CHUNKS_PER_UNIT = 8.3
COPIES = 5000
QUERIES = 32
FLAT = f"FAISS IndexFlatIP, {K} chunks"

Floats = NDArray[np.float32]


def clustered(chunks: int, seed: int) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Draw normalised chunk vectors, their units, and queries near some of them."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((max(1, chunks // 64), WIDTH), dtype=np.float32)
    units = random.integers(0, max(1, int(chunks / CHUNKS_PER_UNIT)), chunks)
    vectors = np.empty((chunks, WIDTH), np.float32)
    for begin in range(0, chunks, 50_000):
        block = vectors[begin : begin + 50_000]
        block[:] = centres[units[begin : begin + 50_000] % len(centres)]
        block += 0.7 * random.standard_normal(block.shape, dtype=np.float32)
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    near = vectors[random.integers(0, chunks, QUERIES)]
    return vectors, units, near + 0.02 * random.standard_normal(near.shape, dtype=np.float32)


def with_hog(vectors: Floats, units: NDArray[np.int64], query: Floats) -> None:
    """Overwrite the last chunks, in place, with one unit of copies of the query."""
    noise = np.random.default_rng(1).standard_normal((COPIES, WIDTH), dtype=np.float32)
    vectors[-COPIES:] = query + 1e-6 * noise
    units[-COPIES:] = units.max() + 1


def check(index: MaxPIndex, vectors: Floats, units: NDArray[np.int64], queries: Floats) -> None:
    """Stop if an answer differs from the maximum of all products in float64."""
    scores, found, chunks = index.search(queries, K)
    for i, query in enumerate(queries):
        exact = np.concatenate(
            [part @ query.astype(np.float64) for part in np.array_split(vectors, 200)]
        )
        best = np.full(units.max() + 1, -np.inf)
        np.maximum.at(best, units, exact)
        assert found[i].tolist() == np.argsort(-best, kind="stable")[:K].tolist()
        assert np.allclose(scores[i], best[found[i]], rtol=1e-6)
        assert np.allclose(exact[chunks[i]], best[found[i]], rtol=1e-6)


def milliseconds(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Time the runs in turns and return their medians."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for name in [*runs] * (repeats + 1):
        begin = time.process_time()
        runs[name]()
        times[name].append(1000 * (time.process_time() - begin))
    # The first turn maps memory and compiles.
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def show(title: str, times: dict[str, float]) -> None:
    """Print a table of times with their ratios to that of FAISS."""
    print(f"\n{title}")
    for name, value in times.items():
        print(f"  {name:32} {value:9.2f} ms  {value / times[FLAT]:6.2f}x")


def main() -> None:
    """Build the indexes, check them, time them and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # Set here alone: it holds for the whole process.
    faiss.omp_set_num_threads(1)

    vectors, units, queries = clustered(options.chunks, options.seed)
    time_clustered(vectors, units, queries, options.repeats)
    with_hog(vectors, units, queries[0])
    time_hog(vectors, units, queries[:1], options.repeats)


def flat_index(vectors: Floats) -> Any:
    """Build what MaxP is compared with; it keeps a copy of the vectors."""
    flat = faiss.IndexFlatIP(WIDTH)
    flat.add(vectors)
    return flat


def time_clustered(
    vectors: Floats, units: NDArray[np.int64], queries: Floats, repeats: int
) -> None:
    """Time one query, a batch, and the way to the disk and back."""
    begin = time.perf_counter()
    index = MaxPIndex(vectors, units)
    print(f"{index!r} built in {time.perf_counter() - begin:.1f} s")
    check(index, vectors, units, queries[:4])
    half, flat = MaxPIndex(vectors, units, storage="float16"), flat_index(vectors)
    folder = tempfile.TemporaryDirectory()
    index.save(folder.name)
    mapped = MaxPIndex.load(folder.name, verify=False)

    def searches(asked: Floats) -> dict[str, Callable[[], object]]:
        return {
            FLAT: lambda: flat.search(asked, K),
            "MaxPIndex": lambda: index.search(asked, K),
            "MaxPIndex, mapped": lambda: mapped.search(asked, K),
            "MaxPIndex float16": lambda: half.search(asked, K),
        }

    floor = {"read the vectors once": vectors.max}
    show("one query", milliseconds(floor | searches(queries[:1]), repeats))
    show(f"a batch of {QUERIES} queries", milliseconds(searches(queries), max(3, repeats // 3)))
    folder.cleanup()
    time_disk(index)


def time_hog(vectors: Floats, units: NDArray[np.int64], query: Floats, repeats: int) -> None:
    """Time one query whose best chunks all belong to one unit."""
    index, flat = MaxPIndex(vectors, units), flat_index(vectors)
    check(index, vectors, units, query)
    runs: dict[str, Callable[[], object]] = {
        FLAT: lambda: flat.search(query, K),
        "MaxPIndex": lambda: index.search(query, K),
    }
    show(f"one query, hog of {COPIES} chunks", milliseconds(runs, repeats))


def time_disk(index: MaxPIndex) -> None:
    """Print how long saving and loading take."""
    print("\ndisk")
    with tempfile.TemporaryDirectory() as folder:
        runs: dict[str, Callable[[], object]] = {
            "save": lambda: index.save(folder),
            "load, mapped": lambda: MaxPIndex.load(folder),
            "load, mapped, verify=False": lambda: MaxPIndex.load(folder, verify=False),
        }
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            print(f"  {name:32} {1000 * (time.perf_counter() - begin):9.0f} ms")


if __name__ == "__main__":
    main()
