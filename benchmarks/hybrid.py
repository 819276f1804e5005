"""Time hybrid search against its two parts: bm25s and one MaxP query.

    python benchmarks/hybrid.py
    python benchmarks/hybrid.py --chunks 10000 --repeats 3 --candidates 50

The texts are the articles of Wikispeedia cut into chunks, about 35 thousand of them, and the
queries its questions. Vectors are drawn at random and normalised, since a search takes the same
time whatever they mean. "bm25s" is its ``get_scores`` and a partition of the scores for as many
chunks as hybrid takes, over the same words; "MaxP" is the whole ``retrieve`` flow given the query's
vector. All take turns in one process on one thread and are timed by the processor's clock, so that
their ratios hold on a busy machine; each time is a median over queries of the best of the repeats.
What hybrid finds is compared with the formula over both lists before anything is timed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The BLAS library reads these once, when numpy is imported.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from public_data import add_data_option, rows  # noqa: E402

from longrag.calls import run  # noqa: E402
from longrag.indexing import KeywordIndex  # noqa: E402
from longrag.indexing.keywords import words  # noqa: E402
from longrag.ingestion import build_units, chunk_unit  # noqa: E402
from longrag.refinement import repack  # noqa: E402
from longrag.retrieval import HybridHit, UnitIndex, fuse, hybrid, retrieve  # noqa: E402
from longrag.types import Chunk, Document, LongUnit  # noqa: E402

WIDTH = 384
TOP_K = 8


def read(folder: Path, limit: int) -> tuple[list[LongUnit], list[Chunk], list[str]]:
    """Cut the articles into chunks until there are enough; one article is one unit."""
    units: list[LongUnit] = []
    chunks: list[Chunk] = []
    for row in rows(folder / "wikispeedia.corpus.jsonl.gz"):
        document = Document(row["id"], "\n\n".join(row["paragraphs"]), row["title"])
        (unit,) = build_units([document], [[0]])
        units.append(unit)
        chunks.extend(chunk_unit(unit, chunk_size=220))
        if len(chunks) >= limit:
            break
    questions = [row["question"] for row in rows(folder / "wikispeedia.questions.dev.jsonl.gz")]
    return units, chunks[:limit], questions


def bm25s_index(texts: list[str]) -> Any:
    """Index with bm25s alone."""
    from bm25s import BM25

    index = BM25(method="lucene")
    index.index([list(words(text)) for text in texts], show_progress=False)
    return index


def bm25s_search(index: Any, query: str, k: int) -> list[int]:
    """Return the k best rows, best first."""
    scores = index.get_scores(list(words(query)))
    best = np.argpartition(scores, len(scores) - k)[-k:]
    return best[np.argsort(-scores[best])].tolist()


def check(
    found: list[HybridHit],
    *,
    query: str,
    index: UnitIndex,
    keywords: KeywordIndex,
    vector: NDArray[np.float32],
    candidates: int,
) -> None:
    """Stop if hybrid's scores are not those of the formula over both lists of candidates."""
    unit_of = {chunk.id: chunk.unit_id for chunk in index.chunks}
    sparse: dict[str, float] = {}
    for id_, score in keywords.search(query, len(keywords)):
        sparse.setdefault(unit_of[id_], score)
    # Units of equal scores go by id, where chunks do by theirs.
    ordered = sorted(sparse.items(), key=lambda pair: (-pair[1], pair[0]))
    dense = {unit.unit.id: float(unit.score or 0) for unit in index.search(vector, candidates)}
    expected = fuse(dict(ordered[:candidates]), dense)
    assert [(hit.id, hit.score) for hit in found] == list(expected.items())[:TOP_K]


def timed(run_once: Callable[[], object]) -> float:
    """Return milliseconds of the processor.

    By the clock, what takes longer than a busy machine's time slice would look slower than its
    parts, which fit into one.
    """
    start = time.thread_time()
    run_once()
    return 1000 * (time.thread_time() - start)


def small(repeats: int) -> dict[str, float]:
    """Time fusion and repacking of 1,000 results, half of them in both lists."""
    random = np.random.default_rng(0)
    sparse = {f"chunk-{n:05}": float(s) for n, s in enumerate(random.random(1000))}
    dense = {f"chunk-{n + 500:05}": float(s) for n, s in enumerate(random.random(1000))}
    ranked = list(sparse)
    return {
        "fuse, 1,000 + 1,000": min(timed(lambda: fuse(sparse, dense)) for _ in range(20 * repeats)),
        "repack sides, 1,000": min(
            timed(lambda: repack(ranked, "sides")) for _ in range(20 * repeats)
        ),
    }


def main() -> None:
    """Print one line a run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=35_000)
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=10)
    add_data_option(parser)
    options = parser.parse_args()

    units, chunks, questions = read(options.data / "e_wikispeedia", options.chunks)
    random = np.random.default_rng(0)
    vectors = random.standard_normal((len(chunks), WIDTH), dtype=np.float32)
    index = UnitIndex(units, chunks, vectors)
    texts = [chunk.text for chunk in chunks]
    start = time.perf_counter()
    plain = bm25s_index(texts)
    middle = time.perf_counter()
    keywords = KeywordIndex.build([chunk.id for chunk in chunks], texts)
    end = time.perf_counter()
    by_unit = keywords.by_unit({chunk.id: chunk.unit_id for chunk in chunks})
    queries = questions[: options.queries]
    print(f"{len(chunks):,} chunks of {len(units):,} units, {len(queries)} queries")
    print(f"build: bm25s {middle - start:.1f} s, KeywordIndex {end - middle:.1f} s")

    times: dict[str, list[float]] = {}
    for query in queries:
        vector = random.standard_normal(WIDTH, dtype=np.float32)

        def maxp(k: int, vector: Any = vector) -> Any:
            return run(retrieve([], index, k=k, vector=vector), lambda _: None)

        def both(query: str = query, vector: Any = vector) -> Any:
            flow = hybrid(
                query,
                keywords=by_unit,
                top_k=TOP_K,
                candidates=options.candidates,
                dense=index,
                vector=vector,
            )
            return run(flow, lambda _: None)

        check(
            both(),
            query=query,
            index=index,
            keywords=keywords,
            vector=vector,
            candidates=options.candidates,
        )
        runs: dict[str, Callable[[], object]] = {
            "bm25s": lambda query=query: bm25s_search(plain, query, options.candidates),
            "KeywordIndex": lambda query=query: keywords.search(query, options.candidates),
            f"MaxP, k={TOP_K}": lambda maxp=maxp: maxp(TOP_K),
            f"MaxP, k={options.candidates}": lambda maxp=maxp: maxp(options.candidates),
            "hybrid": both,
        }
        best = dict.fromkeys(runs, float("inf"))
        for _ in range(options.repeats):
            for name, once in runs.items():
                best[name] = min(best[name], timed(once))
        for name, milliseconds in best.items():
            times.setdefault(name, []).append(milliseconds)
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, milliseconds in (medians | small(options.repeats)).items():
        print(f"{name:22} {milliseconds:8.2f} ms")
    for k in (TOP_K, options.candidates):
        ratio = medians["hybrid"] / (medians["bm25s"] + medians[f"MaxP, k={k}"])
        print(f"hybrid / (bm25s + MaxP, k={k}) = {ratio:.2f}")


if __name__ == "__main__":
    main()
