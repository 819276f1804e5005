"""Time `group_documents` against Algorithm 1 written with networkx, dicts and sets.

    python benchmarks/grouping.py
    python benchmarks/grouping.py --documents 10000 --links 180000 --undirected
    python benchmarks/grouping.py --authors LongRAG/preprocess/group_documents.py --pack

The corpus is drawn at random: lognormal sizes (median 400 tokens, about 1 % beyond 4,096) and
power-law links. Times are processor seconds, the best of a few runs after compilation. The networkx
groups must equal ours. The authors' script (TIGER-AI-Lab/LongRAG) runs unchanged on dictionaries in
memory; it drops documents without links. The pack (llama-index-packs-longrag) compares every link
with every group, so it is run on a smaller corpus, and counts documents instead of tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import runpy
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from longrag.ingestion.adjacency import link_matrix
from longrag.ingestion.compiled import can_compile
from longrag.ingestion.grouping import as_lists, group_documents, group_labels

AUTHORS_LIMIT = 4000


def power_law_corpus(
    documents: int, links: int, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Draw sizes and links block by block, so that little more than the result is ever held.

    With 5 million documents and 91 million links the most linked document has an in-degree of about
    190,000 and the longest out-links are about 1,500.
    """
    random = np.random.default_rng(seed)
    sizes = random.lognormal(6.0, 0.95, documents).astype(np.int64)
    columns = [(1.4, random.permutation(documents)), (2.5, random.permutation(documents))]
    pairs = np.empty((links, 2), np.int32)
    for begin in range(0, links, 1_000_000):
        block = pairs[begin : begin + 1_000_000]
        for column, (exponent, names) in enumerate(columns):
            rank = (documents * random.random(len(block)) ** exponent).astype(np.int64)
            block[:, column] = names[rank]
    return sizes, pairs


def networkx_groups(graph: Any, sizes: list[int], max_size: int) -> list[list[int]]:
    """Algorithm 1 as one writes it over a networkx graph, ties settled as ours are."""
    group_of: dict[int, int] = {}
    members: dict[int, list[int]] = {}
    size: dict[int, int] = {}
    degree = {document: len(row) - (document in row) for document, row in graph.adj.items()}
    for created, document in enumerate(sorted(graph, key=lambda d: (degree[d], d))):
        related = {group_of[other] for other in graph.adj[document] if other in group_of}
        group, total = [document], sizes[document]
        for candidate in sorted(related, key=lambda g: (size[g], g)):
            if total + size[candidate] > max_size:
                break
            group += members.pop(candidate)
            total += size[candidate]
        members[created], size[created] = group, total
        group_of.update(dict.fromkeys(group, created))
    return sorted(sorted(group) for group in members.values())


def networkx_graph(count: int, pairs: NDArray[np.int32], directed: bool) -> Any:
    """Build the graph as a caller would, from a list of pairs."""
    graph = nx.DiGraph() if directed else nx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(pairs.tolist())
    return graph


def best(run: Callable[[], Any], repeats: int = 5) -> tuple[float, Any]:
    """Return the shortest processor time in seconds, and the last result; all runs are serial."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        result = run()
        times.append(time.process_time() - start)
    return min(times), result


def against_networkx(sizes: NDArray[np.int64], pairs: NDArray[np.int32], directed: bool) -> None:
    """Print the two ratios: with the link matrix, and grouping alone."""
    count = len(sizes)
    group_documents(sizes, pairs, directed=directed)
    whole, groups = best(lambda: group_documents(sizes, pairs, directed=directed), repeats=10)
    matrix = link_matrix(pairs, count, directed=directed, compiled=can_compile())
    alone, _ = best(
        lambda: as_lists(group_labels(matrix, sizes, max_size=4096, compiled=can_compile())),
        repeats=10,
    )
    build, graph = best(lambda: networkx_graph(count, pairs, directed), repeats=2)
    theirs, expected = best(lambda: networkx_groups(graph, sizes.tolist(), 4096), repeats=3)
    if groups != expected:
        raise SystemExit("the groups differ from those found with networkx")
    tokens = sizes.sum() / len(groups)
    print(f"{count:,} documents, {len(pairs):,} links, directed={directed}")
    print(f"  {len(groups):,} groups of {tokens:,.0f} tokens on average, the same by networkx")
    print(
        f"  with the link matrix: {whole:.3f} s against {build:.2f} + {theirs:.2f} s with networkx"
    )
    print(f"    {(build + theirs) / whole:.0f} times as fast (target 25)")
    print(f"  grouping alone: {alone:.3f} s against {theirs:.2f} s with networkx")
    print(f"    {theirs / alone:.0f} times as fast (target 100)")


def against_authors(script: Path, sizes: NDArray[np.int64], pairs: NDArray[np.int32]) -> None:
    """Run the authors' script on this corpus, its pickle files replaced by objects in memory."""
    count = len(sizes)
    linked: dict[int, set[int]] = {document: set() for document in range(count)}
    for source, target in pairs.tolist():
        linked[source].add(target)
    tokens = dict(enumerate(np.maximum(sizes, 1).tolist()))
    given = {
        "degree.pickle": {document: len(row) for document, row in linked.items()},
        "abs_adj.pickle": linked,
        "full_adj.pickle": linked,
        "doc_size.pickle": tokens,
        "doc_dict.pickle": dict.fromkeys(range(count), ""),
    }
    saved: dict[str, Any] = {}
    utilities = types.ModuleType("utils.load_data_util")
    vars(utilities).update(
        load_dict_pickle=lambda path: given[Path(path).name],
        save_dict_pickle=lambda value, path: saved.update({Path(path).name: value}),
        load_json_file=lambda path: [],
    )
    bar = types.ModuleType("tqdm")
    vars(bar).update(tqdm=lambda items, **_: items)
    modules = {"utils": types.ModuleType("utils"), "utils.load_data_util": utilities, "tqdm": bar}
    arguments = [str(script), "--mode", "abs", "--processed_wiki_dir", "", "--output_dir", ""]
    kept_modules = {name: sys.modules.get(name) for name in modules}
    kept_arguments, sys.argv = sys.argv, arguments
    sys.modules.update(modules)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            theirs, _ = best(lambda: runpy.run_path(str(script), run_name="__main__"), repeats=1)
    finally:
        sys.argv = kept_arguments
        for name, module in kept_modules.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    ours, groups = best(
        lambda: group_documents(sizes, pairs, max_size=AUTHORS_LIMIT, directed=True)
    )
    titles = saved["group_title.pickle"]
    kept = sum(map(len, titles.values()))
    print(
        f"the authors' script: {theirs:.2f} s, {theirs / ours:.0f} times ours, links already read"
    )
    print(f"  {len(titles):,} groups of {kept:,} documents ({count - kept:,} dropped)")
    print(f"  ours: {ours:.3f} s, {len(groups):,} groups of all {count:,} documents")


def against_pack(documents: int) -> None:
    """Time the pack's `group_docs`, at most 20 documents a group, on 5 links a document."""
    # The pack needs a module that llama-index-core no longer has; what is timed here does not.
    for name in ("llama_index.core.llama_pack", "llama_index.core.llama_pack.base"):
        sys.modules.setdefault(name, types.ModuleType(name)).__dict__["BaseLlamaPack"] = object
    from llama_index.packs.longrag.base import group_docs

    draw = np.random.default_rng(0)
    sources = np.repeat(np.arange(documents), 5)
    pairs = np.stack([sources, draw.integers(documents, size=len(sources))], axis=1).astype(
        np.int32
    )
    linked: dict[str, list[str]] = {str(document): [] for document in range(documents)}
    for source, target in np.unique(pairs, axis=0).tolist():
        linked[str(source)].append(str(target))
    theirs, groups = best(lambda: group_docs(list(linked), linked, 20), repeats=1)
    ones = np.ones(documents, np.int64)
    ours, own = best(lambda: group_documents(ones, pairs, max_size=20, directed=True))
    print(f"the pack, {documents:,} documents: {theirs:.2f} s, {theirs / ours:.0f} times ours")
    print(f"  {len(groups):,} groups; ours: {ours:.4f} s, {len(own):,} groups, kernels compiled")


def main() -> None:
    """Read the command line and run what it asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--links", type=int, default=1_800_000)
    parser.add_argument("--undirected", action="store_true")
    parser.add_argument("--authors", type=Path, help="their preprocess/group_documents.py")
    parser.add_argument("--pack", action="store_true", help="also time llama-index-packs-longrag")
    parser.add_argument("--pack-documents", type=int, default=20_000)
    arguments = parser.parse_args()
    sizes, pairs = power_law_corpus(arguments.documents, arguments.links)
    against_networkx(sizes, pairs, not arguments.undirected)
    if arguments.authors:
        against_authors(arguments.authors, sizes, pairs)
    if arguments.pack:
        against_pack(arguments.pack_documents)


if __name__ == "__main__":
    main()
