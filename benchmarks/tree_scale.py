"""One tree over up to 100,000 leaves of real text, from documents to the last vector.

    python benchmarks/tree_scale.py
    python benchmarks/tree_scale.py --sizes 12500 25000 --clusterers stable

The documents are whole Wikispeedia articles, as many as have the wanted number of leaves. Vectors
are by latent semantic analysis, fitted to a fixed sample of the articles, and summaries are
abstracts of key words: no model is asked, so what is measured is what the package itself does.
Every tree is built in a process of its own. CPU seconds are those of that process on one thread,
without reading the file and fitting; peak memory is that of the whole process, in which all
articles were read.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The BLAS library reads these once, when numpy is imported.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from public_data import add_data_option, rows  # noqa: E402

from longrag.calls import Embed, Request, run  # noqa: E402
from longrag.indexing.tree.builder import build_tree  # noqa: E402
from longrag.indexing.tree.keyword_abstracts import KeywordSummarizer  # noqa: E402
from longrag.indexing.tree.settings import TreeBuilder  # noqa: E402
from longrag.models import LsaEmbedder  # noqa: E402
from longrag.types import Document  # noqa: E402

SIZES = (12_500, 25_000, 50_000, 100_000)
SAMPLE = 300


@dataclass
class Timed:
    """An embedder, and the CPU seconds that it took."""

    embedder: LsaEmbedder
    seconds: float = 0.0

    def __call__(self, request: Request) -> NDArray[np.float32]:
        """Answer as the embedder does."""
        assert isinstance(request, Embed)
        begun = time.process_time()
        vectors = self.embedder(request.texts, request.role)
        self.seconds += time.process_time() - begun
        return vectors


def articles(data: Path) -> list[Document]:
    """Read all articles."""
    return [
        Document(row["id"], "\n\n".join(row["paragraphs"]), row["title"])
        for row in rows(data / "e_wikispeedia" / "wikispeedia.corpus.jsonl.gz")
    ]


def with_leaves(documents: list[Document], settings: TreeBuilder, size: int) -> list[Document]:
    """Return the first documents that have so many leaves together."""
    leaves, taken = 0, 0
    for own in settings.leaves_of_each(documents):
        taken += 1
        leaves += len(own)
        if leaves >= size:
            break
    return documents[:taken]


def measure(data: Path, clusterer: str, size: int) -> dict[str, Any]:
    """Build one tree in this process."""
    settings = TreeBuilder(clusterer=clusterer, summarizer=KeywordSummarizer())
    corpus = articles(data)
    embedder = Timed(LsaEmbedder([document.text for document in corpus[:: len(corpus) // SAMPLE]]))
    documents = with_leaves(corpus, settings, size)
    # What is compiled or imported on first use counts for nobody.
    run(build_tree(documents[:3], settings), embedder)
    embedder.seconds = 0
    wall, cpu = time.perf_counter(), time.process_time()
    tree = run(build_tree(documents, settings), embedder)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    shape = tree.statistics()
    return {
        "documents": len(documents),
        "leaves": shape.nodes[0],
        "summaries": sum(shape.nodes[1:]),
        "depth": tree.depth,
        "wall": wall,
        "cpu": cpu - embedder.seconds,
        "embedding": embedder.seconds,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Print a row of a table for each tree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_data_option(parser)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="leaves")
    parser.add_argument("--clusterers", nargs="+", default=["stable", "fast"])
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.data, options.one, options.sizes[0])))
        return
    print(
        "| `clusterer` | leaves | summaries | depth | CPU s | of the embedder | µs a leaf | wall s"
        " | peak MiB |\n|" + "---|" * 9
    )
    for name in options.clusterers:
        for size in options.sizes:
            command = [sys.executable, __file__, "--one", name, "--sizes", str(size)]
            command += ["--data", str(options.data)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            row = json.loads(done.stdout.splitlines()[-1])
            print(
                f"| `{name}` | {row['leaves']:,} | {row['summaries']:,} | {row['depth']}"
                f" | {row['cpu']:.1f} | {row['embedding']:.1f}"
                f" | {1e6 * row['cpu'] / row['leaves']:.0f} | {row['wall']:.0f}"
                f" | {row['peak']:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
