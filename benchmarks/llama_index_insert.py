"""Time the insertion of one document into an index in memory, ours beside ``VectorStoreIndex``.

    python benchmarks/llama_index_insert.py --nodes 9616

Both embed by random vectors at once. Times are milliseconds of this process's CPU, the median of
some changes of one index; a round changes each index in turn. The first changes of a process are
shown as well, since some of what a change needs is compiled or imported only then.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.base import BaseIndex

from llama_index_longrag import LongRAGIndex

WIDTH = 384


class RandomEmbedding(BaseEmbedding):
    """Gives texts random vectors."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return np.random.default_rng(len(text)).standard_normal(WIDTH).tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def page(number: int, nodes: int, built: str = "1300") -> Document:
    """Make a short document, which links to three others."""
    links = " ".join(f"[on](p{(number + step) % nodes}.md)" for step in (1, 7, 31))
    return Document(
        id_=f"p{number}.md",
        text=f"# Page {number}\n\nGate {number % 97} was built in {built}. {links}",
        metadata={"number": number},
    )


def measure(change: Callable[[], object]) -> float:
    """Return the milliseconds of CPU that a change takes."""
    start = time.process_time()
    change()
    return 1e3 * (time.process_time() - start)


def main() -> None:
    """Build each index, change it, and print what a change costs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=9616)
    parser.add_argument("--changes", type=int, default=20)
    options = parser.parse_args()
    pages = [page(number, options.nodes) for number in range(options.nodes)]
    indexes: dict[str, BaseIndex] = {}
    for make in (VectorStoreIndex, LongRAGIndex):
        start = time.process_time()
        indexes[make.__name__] = make.from_documents(pages, embed_model=RandomEmbedding())
        print(f"{make.__name__:<16} build {time.process_time() - start:6.1f} s")
    changes: dict[str, Callable[[BaseIndex, int], object]] = {
        "insert": lambda index, n: index.insert(page(options.nodes + n, options.nodes)),
        "refresh": lambda index, n: index.refresh_ref_docs([page(n, options.nodes, "1500")]),
        "refresh, no news": lambda index, n: index.refresh_ref_docs(
            [page(n, options.nodes, "1500")]
        ),
        "delete": lambda index, n: index.delete_ref_doc(f"p{options.nodes + n}.md"),
    }
    print(f"{'':<16} {'stock, ms':>10} {'ours, ms':>10} {'ratio':>6} {'most, ms':>9}")
    for name, change in changes.items():
        taken: dict[str, list[float]] = {made: [] for made in indexes}
        for number in range(options.changes):
            for made, index in indexes.items():
                taken[made].append(measure(partial(change, index, number)))
        stock, ours = (statistics.median(times) for times in taken.values())
        most = max(taken[LongRAGIndex.__name__])
        print(f"{name:<16} {stock:>10.1f} {ours:>10.1f} {ours / stock:>6.2f} {most:>9.1f}")


if __name__ == "__main__":
    main()
