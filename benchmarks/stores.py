"""What whole units cost over a real store, beside what else gives rows of the same store.

After ``make stores``: ``.venv-stores/bin/python benchmarks/stores.py``.
Every question is asked of four in turn: LlamaIndex's own retriever for 4 rows and for 16, the
simplest way to whole units (the own retriever for 4 rows, then one listing of their units by
``get_nodes``), and ``MaxPRetriever`` for 4 units. Printed are medians of the CPU time of this
process, in which a server's own time does not count, of wall time, the calls of the store that a
question takes, and its wall time where each call is made to take 50 ms more.
"""

from __future__ import annotations

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

from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

from llama_index_longrag import MaxPRetriever
from longrag.stores.checks import check_rows
from tests.stores.made import Servers, made_for_llama_index

STORES = ("pgvector", "Qdrant local", "Chroma embedded", "Chroma server")
ROUNDS = 40
DELAY = 0.05


def measure(call: Callable[[str], object]) -> tuple[float, float]:
    """Return the medians of CPU and wall time of a question, in milliseconds."""
    taken = []
    for number in range(ROUNDS):
        question = f"question {1 + number % 8}"
        cpu, wall = time.process_time(), time.perf_counter()
        call(question)
        taken.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpus, walls = zip(*taken, strict=True)
    return statistics.median(cpus) * 1e3, statistics.median(walls) * 1e3


def ways(checked: Any) -> dict[str, Callable[[str], object]]:
    """Return the ways of asking, by name."""
    index, store = checked._index, checked._store
    stock = index.as_retriever(similarity_top_k=4)

    def list_units(question: str) -> object:
        names = list({row.node.metadata["unit"] for row in stock.retrieve(question)})
        wanted = MetadataFilter(key="unit", operator=FilterOperator.IN, value=names)
        return store.get_nodes(None, filters=MetadataFilters(filters=[wanted]))

    return {
        "4 rows": stock.retrieve,
        "16 rows": index.as_retriever(similarity_top_k=16).retrieve,
        "4 rows and a listing": list_units,
        "4 whole units": MaxPRetriever(index=index, unit_key="unit", similarity_top_k=4).retrieve,
    }


@contextmanager
def slowed(store: Any, delay: float) -> Iterator[list[str]]:
    """Let every call of a store's client take longer; gives the names of the calls."""
    targets = {
        "PGVectorStore": [(store, "_session")],
        "QdrantVectorStore": [(type(store.client), n) for n in ("query_points", "scroll")],
        "ChromaVectorStore": [(type(store.client), n) for n in ("query", "get")],
    }[type(store).__name__]
    calls: list[str] = []
    before = [(owner, name, getattr(owner, name)) for owner, name in targets]
    for owner, name, own in before:

        def wait(*args: Any, _own: Any = own, _name: str = name, **kwargs: Any) -> Any:
            calls.append(_name)
            time.sleep(delay)
            return _own(*args, **kwargs)

        setattr(owner, name, wait)
    try:
        yield calls
    finally:
        for owner, name, own in before:
            setattr(owner, name, own)


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    servers = Servers(Path(tempfile.mkdtemp()))
    print("| store | what | CPU, ms | wall, ms | calls | wall with 50 ms a call, ms |")
    print("|---|---|---|---|---|---|")
    try:
        for kind in STORES:
            checked: Any = made_for_llama_index(servers, kind)
            checked.add([row for row in check_rows() if row.unit != "greedy"])
            for way, call in ways(checked).items():
                call("question 1")
                cpu, wall = measure(call)
                with slowed(checked._store, DELAY) as calls:
                    _, waited = measure(call)
                count = len(calls) / ROUNDS
                row = f"{cpu:.1f} | {wall:.1f} | {count:.1f} | {waited:.0f}"
                print(f"| {kind} | {way} | {row} |", flush=True)
    finally:
        servers.close()


if __name__ == "__main__":
    main()
