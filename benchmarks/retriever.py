"""Time a whole `retrieve()` of MaxPRetriever beside LlamaIndex's own retriever.

    python benchmarks/retriever.py --chunks 40000

Both hold the same vectors in memory, and both are asked by vector. SimpleVectorStore returns the
top chunks, MaxPRetriever whole units; the units are compared with those of a brute-force search.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.schema import NodeRelationship, QueryBundle, RelatedNodeInfo, TextNode
from threadpoolctl import threadpool_limits

from llama_index_longrag import MaxPRetriever


def nodes_with_vectors(chunks: int, width: int, per_unit: int) -> list[TextNode]:
    """Make chunks of 100 words around as many topics as there are units."""
    draw = np.random.default_rng(0)
    topics = draw.standard_normal((chunks // per_unit + 1, width))
    vectors = topics[np.arange(chunks) // per_unit] + draw.standard_normal((chunks, width))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return [
        TextNode(
            id_=f"c{i}",
            text=f"word{i} " * 100,
            embedding=vector.tolist(),
            relationships={
                NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"d{i // per_unit}"),
            },
        )
        for i, vector in enumerate(vectors)
    ]


def median_ms(call: Callable[[QueryBundle], object], queries: list[QueryBundle]) -> float:
    """Return the median processor time of a call in milliseconds."""
    call(queries[0])
    times = []
    for query in queries:
        start = time.process_time()
        call(query)
        times.append(time.process_time() - start)
    return statistics.median(times) * 1000


def main() -> None:
    """Print the times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=40_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--per-unit", type=int, default=9)
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--queries", type=int, default=20)
    options = parser.parse_args()

    nodes = nodes_with_vectors(options.chunks, options.width, options.per_unit)
    vectors = np.array([node.embedding for node in nodes], dtype=np.float32)
    draw = np.random.default_rng(1)
    asked = vectors[draw.integers(len(nodes), size=options.queries)]
    asked += 0.05 * draw.standard_normal(asked.shape).astype(np.float32)
    queries = [QueryBundle("question", embedding=vector.tolist()) for vector in asked]

    model = MockEmbedding(options.width)
    index = VectorStoreIndex(nodes, embed_model=model)
    stock = index.as_retriever(similarity_top_k=options.k)
    ours = MaxPRetriever(
        nodes=nodes, embed_model=model, unit_key="ref_doc_id", similarity_top_k=options.k
    )
    short = 0
    for query, vector in zip(queries, asked, strict=True):
        units = np.array([int(node.ref_doc_id[1:]) for node in nodes])
        best = np.full(units.max() + 1, -np.inf)
        np.maximum.at(best, units, vectors @ (vector / np.linalg.norm(vector)))
        expected = {f"d{unit}" for unit in np.argsort(-best)[: options.k]}
        found = {node.node.node_id for node in ours.retrieve(query)}
        if found != expected:
            raise SystemExit(f"units differ: {sorted(found ^ expected)}")
        short += len({n.node.ref_doc_id for n in stock.retrieve(query)}) < options.k

    # One thread for both: idle threads of a linear algebra library spin and count as busy.
    with threadpool_limits(limits=1):
        slow, fast = median_ms(stock.retrieve, queries), median_ms(ours.retrieve, queries)
    print(
        f"{options.chunks:,} chunks of width {options.width}, k={options.k}, median processor time"
    )
    print(f"  SimpleVectorStore retriever  {slow:8.1f} ms   top {options.k} chunks")
    print(f"  MaxPRetriever                {fast:8.1f} ms   top {options.k} units")
    print(f"  ratio                        {slow / fast:8.1f}")
    print(f"  SimpleVectorStore gave fewer than {options.k} units for {short}/{len(queries)}")


if __name__ == "__main__":
    main()
