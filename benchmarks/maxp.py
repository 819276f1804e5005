"""Time exact MaxP search against every simple exact rival, at every size.

    python benchmarks/maxp.py
    python benchmarks/maxp.py --instructions avx2
    python benchmarks/maxp.py --largest 100000 --repeats 15

Each row is one corpus, a number of questions asked at once, and a k. "Clustered" vectors are drawn
around one centre per 64 chunks, "random" ones have no structure, both are normalised, of width 384
and in units of about 8 chunks; other widths are drawn as clustered ones are. "MiniLM" are vectors
of Wikispeedia's chunks and questions. "Copies" is a corpus in which one unit holds 5,000
near-identical copies of the question's best chunk.

The rivals, which all find the best k chunks, less than MaxP does, but for numpy: FAISS's flat index
as its wheel comes, the same where it multiplies by BLAS (threshold 20), numpy's product with the
largest of each unit and a partition, and usearch's exact search. ScaNN's brute force over bytes,
reordered, is timed beside them; its answers are not proven, so that it is no rival. All runs of a
row take turns in one process on one thread; a time is the median of the processor's. The answers
are compared with products in float64 before anything is timed.
"""

from __future__ import annotations

import os
import sys

# The BLAS library, FAISS and numpy read these once, when they are imported.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"
if "avx2" in sys.argv:
    os.environ |= {"OPENBLAS_CORETYPE": "Haswell", "FAISS_OPT_LEVEL": "avx2"}
    os.environ["NPY_DISABLE_CPU_FEATURES"] = "X86_V4 AVX512_ICL AVX512_SPR"

import argparse  # noqa: E402
import importlib.util  # noqa: E402
import platform  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from importlib.metadata import version  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import faiss  # noqa: E402
import numkong  # noqa: E402
import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from public_data import DATA  # noqa: E402

from longrag.indexing.codes import vector_instructions  # noqa: E402
from longrag.retrieval import MaxPIndex  # noqa: E402

SIZES = (1_000, 2_000, 10_000, 40_000, 100_000, 300_000, 1_000_000)
CHUNKS_PER_UNIT = 8.3
COPIES = 5000
BATCH = 32
AS_SHIPPED, BY_BLAS = 128_000, 20
"""From how many questions FAISS multiplies by BLAS."""

Floats = NDArray[np.float32]
Runs = dict[str, Callable[[], object]]


@dataclass
class Corpus:
    """Chunk vectors, the unit of each, ascending, and questions."""

    kind: str
    vectors: Floats
    units: NDArray[np.int64]
    questions: Floats


def drawn(chunks: int, width: int = 384, kind: str = "clustered") -> Corpus:
    """Draw normalised vectors, the number of each one's unit, and questions near some of them."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((max(1, chunks // 64), width), dtype=np.float32)
    units = np.sort(random.integers(0, max(1, int(chunks / CHUNKS_PER_UNIT)), chunks))
    vectors = np.empty((chunks, width), np.float32)
    for begin in range(0, chunks, 50_000):
        block = vectors[begin : begin + 50_000]
        block[:] = 0.7 * random.standard_normal(block.shape, dtype=np.float32)
        if kind == "clustered":
            block += centres[units[begin : begin + 50_000] % len(centres)]
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    near = vectors[random.integers(0, chunks, BATCH)]
    near = near + 0.02 * random.standard_normal(near.shape, dtype=np.float32)
    return Corpus(kind, vectors, units, near)


def with_copies(corpus: Corpus) -> Corpus:
    """Put one unit of copies of the first question in place of the last chunks."""
    noise = np.random.default_rng(1).standard_normal((COPIES, 384), dtype=np.float32)
    corpus.vectors[-COPIES:] = corpus.questions[0] + 1e-6 * noise
    corpus.units[-COPIES:] = corpus.units.max() + 1
    return Corpus("copies", corpus.vectors, corpus.units, corpus.questions)


def of_minilm() -> Corpus:
    """Read the vectors of Wikispeedia's chunks, every eight of which are called a unit."""
    folder = DATA / "e_wikispeedia"
    vectors, questions = (
        np.ascontiguousarray(np.load(folder / f"{name}.f16.npy"), np.float32)
        for name in ("subset1500.chunk_vectors", "wikispeedia.question_vectors.dev")
    )
    return Corpus("MiniLM", vectors, np.arange(len(vectors)) // 8, questions[:BATCH])


def cases(largest: int) -> Iterator[tuple[Corpus, list[tuple[int, int]]]]:
    """Give each corpus with the numbers of questions and the k that it is asked with."""
    for size in SIZES:
        if size <= largest:
            ks = [(1, 1), (1, 100), (BATCH, 1), (BATCH, 100)] if size == 100_000 else []
            yield drawn(size), [(1, 8), (BATCH, 8), *ks]
    sized = min(100_000, largest)
    yield drawn(sized, kind="random"), [(1, 8), (BATCH, 8)]
    yield with_copies(drawn(sized)), [(1, 8), (BATCH, 8)]
    for width in (768, 1536):
        yield drawn(sized, width), [(1, 8), (BATCH, 8)]
    if DATA.is_dir():
        yield of_minilm(), [(1, 8), (BATCH, 8)]


def check(index: MaxPIndex, corpus: Corpus, k: int) -> None:
    """Stop if an answer differs from the largest of all products in float64."""
    scores, found, chunks = index.search(corpus.questions[:3], k)
    for i, question in enumerate(corpus.questions[:3].astype(np.float64)):
        parts = [part @ question for part in np.array_split(corpus.vectors, 200)]
        exact = np.concatenate(parts)
        best = np.full(corpus.units.max() + 1, -np.inf)
        np.maximum.at(best, corpus.units, exact)
        # Where float32 rounds two scores to one, the lower number goes first.
        rounded = best.astype(np.float32)
        assert found[i].tolist() == np.argsort(-rounded, kind="stable")[:k].tolist()
        assert (scores[i] == rounded[found[i]]).all()
        assert (exact[chunks[i]].astype(np.float32) == scores[i]).all()


def by_numpy(corpus: Corpus) -> Callable[[Floats, int], object]:
    """Return a search by one product, the largest of each unit, and a partition."""
    firsts = np.flatnonzero(np.diff(corpus.units, prepend=-1))

    def search(questions: Floats, k: int) -> object:
        best = np.maximum.reduceat(questions @ corpus.vectors.T, firsts, axis=1)
        at = np.argpartition(-best, k, axis=1)[:, :k]
        return np.take_along_axis(at, np.argsort(-np.take_along_axis(best, at, 1), 1), 1)

    return search


def by_faiss(corpus: Corpus) -> Callable[[Floats, int, int], object]:
    """Return a search of FAISS's flat index, given from how many questions it uses BLAS."""
    flat = faiss.IndexFlatIP(corpus.vectors.shape[1])
    flat.add(corpus.vectors)

    def search(questions: Floats, k: int, threshold: int) -> object:
        faiss.cvar.distance_compute_blas_threshold = threshold
        return flat.search(questions, k)

    return search


def rivals(corpus: Corpus) -> dict[str, Callable[[Floats, int], object]]:
    """Return the searches that ours is compared with, by name."""
    flat = by_faiss(corpus)
    found = {
        "FAISS": lambda asked, k: flat(asked, k, AS_SHIPPED),
        "FAISS, BLAS": lambda asked, k: flat(asked, k, BY_BLAS),
        "numpy": by_numpy(corpus),
    }
    if importlib.util.find_spec("usearch"):
        from usearch.index import MetricKind, search

        found["usearch"] = lambda asked, k: search(
            corpus.vectors, asked, k, MetricKind.IP, exact=True, threads=1
        )
    return found


def by_scann(corpus: Corpus, k: int) -> Callable[[Floats], object] | None:
    """Return ScaNN's brute force over bytes, of which ten times as many are reordered."""
    if not importlib.util.find_spec("scann"):
        return None
    import scann

    builder = scann.scann_ops_pybind.builder(corpus.vectors, k, "dot_product")
    searcher = builder.score_brute_force(quantize=True).reorder(10 * k).build()

    def search(questions: Floats) -> object:
        if len(questions) == 1:
            return searcher.search(questions[0])
        return searcher.search_batched(questions)

    return search


def milliseconds(runs: Runs, repeats: int) -> dict[str, float]:
    """Time the runs in turns and return their medians."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for name in [*runs] * (repeats + 1):
        begin = time.process_time()
        runs[name]()
        times[name].append(1000 * (time.process_time() - begin))
    # The first turn maps memory.
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def bold(ratio: float) -> str:
    """Write a ratio, in bold where the rival is faster."""
    return f"**{ratio:.2f}**" if ratio > 1 else f"{ratio:.2f}"


def show(corpus: Corpus, asked: int, k: int, searches: dict[str, Any], repeats: int) -> None:
    """Time one row of the table and print it."""
    questions = corpus.questions[:asked]
    runs: Runs = {name: (lambda it=it: it(questions, k)) for name, it in searches.items()}
    scann = by_scann(corpus, k) if k == 8 else None
    if scann is not None:
        runs["ScaNN"] = lambda: scann(questions)
    turns = max(repeats, min(400, repeats * 200_000 // len(corpus.vectors) // asked))
    times = milliseconds(runs, turns)
    ours, unproven = times.pop("ours"), times.pop("ScaNN", None)
    fastest = min(times, key=times.__getitem__)
    cells = [
        f"{len(corpus.vectors):,} x {corpus.vectors.shape[1]}, {corpus.kind}",
        f"{asked}",
        f"{k}",
        f"{ours:.2f}",
        *(f"{times[name]:.2f}" if name in times else "-" for name in searches if name != "ours"),
        "-" if unproven is None else f"{unproven:.2f}",
        f"{bold(ours / times[fastest])} {fastest}",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the table, with the versions and the processor that it was made with."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="chunks")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--instructions", choices=["all", "avx2"], default="all")
    options = parser.parse_args()
    # Set here alone: it holds for the whole process.
    faiss.omp_set_num_threads(1)
    if options.instructions == "avx2":
        for name in vector_instructions():
            if name not in ("serial", "haswell"):
                numkong.disable_capability(name)
    names = ("faiss-cpu", "numpy", "numkong", "usearch", "scann")
    found = [f"{it} {version(it)}" for it in names if importlib.util.find_spec(it.split("-")[0])]
    print(f"{processor()}; products of codes by {vector_instructions()[-1]}; {', '.join(found)}\n")
    heads: list[str] = []
    for corpus, asked in cases(options.largest):
        index = MaxPIndex(corpus.vectors, corpus.units)
        searches = {"ours": index.search, **rivals(corpus)}
        if not heads:
            heads = ["chunks", "questions", "k", *searches, "ScaNN", "ours / fastest"]
            print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
        check(index, corpus, 8)
        for count, k in asked:
            show(corpus, count, k, searches, options.repeats)


def processor() -> str:
    """Return the name of the processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    main()
