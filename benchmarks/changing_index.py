"""Time what a change to an index costs beside building it.

    python benchmarks/changing_index.py FOLDER

The embedder gives random vectors at once, so that everything else shows.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from longrag.calls import Embed, Request, run
from longrag.indices.corpus import CorpusIndex
from longrag.ingestion import read_documents


def answer(request: Request) -> object:
    """Give random vectors."""
    assert isinstance(request, Embed)
    return np.random.default_rng(0).standard_normal((len(request.texts), 384))


def main() -> None:
    """Build an index, then change one document after another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="documents: Markdown, HTML or text")
    parser.add_argument("--changes", type=int, default=20)
    options = parser.parse_args()
    pages = read_documents(options.folder)

    corpus = CorpusIndex()
    start = time.perf_counter()
    built = run(corpus.change(upsert=pages), answer)
    print(
        f"{len(pages):,} documents, {sum(len(page.text) for page in pages) / 1e6:.1f}M characters"
    )
    print(
        f"  build         {time.perf_counter() - start:6.2f} s, {built.embedded:,} chunks embedded"
    )
    for name, change in (
        ("delete one", lambda page: {"delete": [page.id]}),
        ("put it back", lambda page: {"upsert": [page]}),
    ):
        times, embedded = [], 0
        for page in pages[:: max(len(pages) // options.changes, 1)]:
            if name == "put it back":
                run(corpus.change(delete=[page.id]), answer)
            start = time.perf_counter()
            embedded += run(corpus.change(**change(page)), answer).embedded
            times.append(time.perf_counter() - start)
            run(corpus.change(upsert=[page]), answer)
        median = statistics.median(times)
        print(f"  {name:<12}  {median:6.2f} s, {embedded / len(times):.1f} chunks embedded")


if __name__ == "__main__":
    main()
