"""Time `MaxPRetriever` over LangChain stores beside the stores' own retrievers.

    .venv-stores/bin/python benchmarks/store_retrievers.py    (after `make stores`)

Both ask the same store in turn for the same questions, the own retriever for k chunks and MaxP for
k whole units; embedding a question costs neither anything. Printed are medians of the processor
time of this process, in which a server's own time does not count, and their ratio: for questions
that are asked for the first time, and once more, when the units that they find are still kept.
`one unit` puts the hundred chunks that are nearest to each question into one unit, so that the
store must be asked again without it, and what comes back is ten times as long.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from threadpoolctl import threadpool_limits

from langchain_longrag import MaxPRetriever


class KnownVectors(Embeddings):
    """Texts that are embedded are the numbers of vectors that are known."""

    def __init__(self, vectors: np.ndarray) -> None:
        self._vectors: list[list[float]] = vectors.tolist()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors whose numbers are the texts' first words."""
        return [self._vectors[int(text.split(maxsplit=1)[0])] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return one such vector."""
        return self._vectors[int(text)]


def make_corpus(
    chunks: int, width: int, per_unit: int, queries: int, name: str = "u"
) -> tuple[Any, Any]:
    """Return chunks of 100 words around as many topics as there are units, and their vectors.

    What is kept of a unit is found by its id, so that each corpus needs units of another ``name``.
    """
    draw = np.random.default_rng(0)
    topics = draw.standard_normal((chunks // per_unit + 1, width))
    vectors = topics[np.arange(chunks) // per_unit] + draw.standard_normal((chunks, width))
    asked = vectors[draw.integers(chunks, size=queries)]
    vectors = np.concatenate([vectors, asked + 0.05 * draw.standard_normal(asked.shape)])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    documents = [
        Document(
            f"{i} " + f"word{i} " * 100,
            id=f"c{i}",
            metadata={
                "unit_id": f"{name}{i // per_unit}",
                "doc_id": f"d{i // per_unit}",
                "start_index": 1000 * (i % per_unit),
            },
        )
        for i in range(chunks)
    ]
    return documents, vectors


def put_most_into_one_unit(documents: list[Document], vectors: Any, queries: int) -> None:
    """Let the hundred chunks nearest to each question be of one unit a question."""
    for number in range(queries):
        scores = vectors[: len(documents)] @ vectors[len(documents) + number]
        for place, at in enumerate(np.argsort(-scores)[:100].tolist()):
            own = {"unit_id": f"q{number}", "doc_id": f"q{number}", "start_index": 1000 * place}
            documents[at].metadata.update(own)


@contextmanager
def make_store(name: str, embedding: Embeddings) -> Iterator[VectorStore]:
    """Make an empty store."""
    width = len(embedding.embed_query("0"))
    if name == "FAISS":
        import faiss
        from langchain_community.docstore.in_memory import InMemoryDocstore
        from langchain_community.vectorstores import FAISS

        yield FAISS(embedding, faiss.IndexFlatIP(width), InMemoryDocstore(), {})
        return
    from tests.stores.made import Servers

    servers = Servers(Path(tempfile.mkdtemp()))
    try:
        from langchain_postgres import PGVector

        yield PGVector(
            embedding,
            connection=servers.postgres("psycopg"),
            embedding_length=width,
        )
    finally:
        servers.close()


def time_one(call: Callable[[str], object], question: str, taken: list[float]) -> None:
    """Add the processor time of a question, in milliseconds."""
    before = time.process_time()
    call(question)
    taken.append((time.process_time() - before) * 1e3)


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stores", nargs="+", default=["FAISS", "PGVector"])
    parser.add_argument("--chunks", type=int, default=9_600)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--per-unit", type=int, default=9)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--queries", type=int, default=100)
    options = parser.parse_args()

    print("| store | units | stock, ms | MaxP first, ms | ratio | MaxP again, ms | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name in options.stores:
        for layout in ("by topic", "one unit"):
            documents, vectors = make_corpus(
                options.chunks,
                options.width,
                options.per_unit,
                options.queries,
                f"{name} {layout} ",
            )
            if layout == "one unit":
                put_most_into_one_unit(documents, vectors, options.queries)
            first, *questions = [str(len(documents) + i) for i in range(options.queries)]
            times: dict[str, list[float]] = {"stock": [], "first": [], "again": []}
            with threadpool_limits(limits=1), make_store(name, KnownVectors(vectors)) as store:
                store.add_documents(documents)
                stock = store.as_retriever(search_kwargs={"k": options.k})
                maxp = MaxPRetriever(vectorstore=store, k=options.k)
                for warm_up in (stock, maxp):
                    warm_up.invoke(first)
                for round_ in ("first", *["again"] * 5):
                    for question in questions:
                        time_one(stock.invoke, question, times["stock"])
                        time_one(maxp.invoke, question, times[round_])
            own, new, known = (statistics.median(taken) for taken in times.values())
            row = f"{own:.2f} | {new:.2f} | {new / own:.2f} | {known:.2f} | {known / own:.2f}"
            print(f"| {name} | {layout} | {row} |", flush=True)


if __name__ == "__main__":
    main()
