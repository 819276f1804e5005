"""What whole units cost over a real store, beside the framework's own retriever over the same rows.

After ``make stores``: ``.venv-stores/bin/python benchmarks/stores.py``.
Every question is asked of both in turn; the medians of wall time are printed, and the calls of the
store where each call is made to take 50 ms more.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from llama_index_longrag import MaxPRetriever
from longrag.integration.store_checks import check_rows
from tests.stores.made import Servers, made_for_llama_index

STORES = ("pgvector", "Qdrant local", "Chroma embedded", "Chroma server")
ROUNDS = 60
DELAY = 0.05


def seconds(call: Callable[[str], object]) -> list[float]:
    """Return the wall time of each question."""
    taken = []
    for number in range(ROUNDS):
        question = f"question {1 + number % 8}"
        start = time.perf_counter()
        call(question)
        taken.append(time.perf_counter() - start)
    return taken


def measure(servers: Servers, kind: str) -> tuple[float, float, float]:
    """Return the medians of the stock top 4, of 4 whole units, and of these with slow calls."""
    checked: Any = made_for_llama_index(servers, kind)
    checked.add([row for row in check_rows() if row.unit != "greedy"])
    index = checked._index
    stock = index.as_retriever(similarity_top_k=4)
    ours = MaxPRetriever(index=index, unit_key="unit", similarity_top_k=4)
    for retriever in (stock, ours):
        retriever.retrieve("question 1")
    plain, whole = seconds(stock.retrieve), seconds(ours.retrieve)
    slow = slowed(checked._store)
    try:
        waited = seconds(ours.retrieve)
    finally:
        slow()
    return statistics.median(plain), statistics.median(whole), statistics.median(waited)


def slowed(store: Any) -> Callable[[], None]:
    """Let every call of a store's client take longer; return what undoes it."""
    undone: list[Callable[[], None]] = []
    targets = {
        "PGVectorStore": [(store, "_session")],
        "QdrantVectorStore": [(type(store.client), n) for n in ("query_points", "scroll")],
        "ChromaVectorStore": [(type(store.client), n) for n in ("query", "get")],
    }[type(store).__name__]
    for owner, name in targets:
        own = getattr(owner, name)

        def wait(*args: Any, _own: Any = own, **kwargs: Any) -> Any:
            time.sleep(DELAY)
            return _own(*args, **kwargs)

        setattr(owner, name, wait)
        undone.append(lambda owner=owner, name=name, own=own: setattr(owner, name, own))

    def undo_all() -> None:
        for undo in undone:
            undo()

    return undo_all


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    servers = Servers(Path(tempfile.mkdtemp()))
    print("| store | stock top 4, ms | 4 whole units, ms | ratio | with 50 ms a call, ms |")
    print("|---|---|---|---|---|")
    try:
        for kind in STORES:
            plain, whole, slow = measure(servers, kind)
            print(
                f"| {kind} | {plain * 1e3:.1f} | {whole * 1e3:.1f} | {whole / plain:.2f}"
                f" | {slow * 1e3:.0f} |",
                flush=True,
            )
    finally:
        servers.close()


if __name__ == "__main__":
    main()
