"""Which relation groups documents better for retrieval: out-links alone, or links both ways?

    python benchmarks/grouping_direction.py

On four linked corpora with questions, units are grouped both ways, ranked by their best chunk
(MaxP, exact, vectors made beforehand), and read best first. A question counts when all its gold
documents are read: within k units, or within a budget of tokens. Within a budget a unit that no
longer fits is passed over. The data is read from `shared/data` beside the checkout, or from the
folder named by LONGRAG_DATA.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from public_data import DATA, rows

from longrag.ingestion.grouping import group_documents
from longrag.models.tokens import count_tokens

TOP = (1, 2, 4, 8)
BUDGETS = (2048, 4096, 8192, 16384)


class Corpus(NamedTuple):
    """A linked corpus with embedded chunks and questions; documents are known by index."""

    name: str
    sizes: NDArray[np.int64]
    links: list[tuple[int, int]]
    chunk_vectors: NDArray[np.float32]
    document_of_chunk: NDArray[np.int64]
    question_vectors: NDArray[np.float32]
    gold: list[list[int]]


def corpus(name: str, documents: list[dict[str, Any]], chunks: Path, folder: Path) -> Corpus:
    """Put a corpus together; without a file of chunks, each document is one chunk."""
    index = {document["id"]: at for at, document in enumerate(documents)}
    texts = [row.get("text") or "\n\n".join(row["paragraphs"]) for row in documents]
    stem = "subset1500.chunk_vectors" if chunks.name else f"{name}.vectors"
    owners = [index[row["doc"]] for row in rows(chunks)] if chunks.name else list(index.values())
    return Corpus(
        name,
        np.array([count_tokens(text) for text in texts]),
        [(index[d["id"]], index[to]) for d in documents for to in d["links"] if to in index],
        np.load(folder / f"{stem}.f16.npy", allow_pickle=False).astype(np.float32),
        np.array(owners),
        np.load(folder / f"{name}.question_vectors.dev.f16.npy", allow_pickle=False).astype(
            np.float32
        ),
        [
            [index[gold] for gold in question["gold_ids"]]
            for question in rows(folder / f"{name}.questions.dev.jsonl.gz")
        ],
    )


def corpora() -> Iterator[Corpus]:
    """Load the four corpora one after the other."""
    folder = DATA / "a_multihop"
    for name in ("hotpotqa", "2wiki", "musique"):
        yield corpus(name, list(rows(folder / f"{name}.corpus.jsonl.gz")), Path(), folder)
    folder = DATA / "e_wikispeedia"
    chunks = folder / "subset1500.chunks.jsonl.gz"
    chunked = {row["doc"] for row in rows(chunks)}
    whole = rows(folder / "wikispeedia.corpus.jsonl.gz")
    yield corpus("wikispeedia", [row for row in whole if row["id"] in chunked], chunks, folder)


def document_scores(data: Corpus) -> NDArray[np.float32]:
    """Return each document's best chunk for each question, shape (questions, documents)."""
    order = np.argsort(data.document_of_chunk, kind="stable")
    starts = np.searchsorted(data.document_of_chunk[order], np.arange(len(data.sizes)))
    scores = data.question_vectors @ data.chunk_vectors[order].T
    return np.maximum.reduceat(scores, starts, axis=1)


def found(data: Corpus, scores: NDArray[np.float32], groups: list[list[int]]) -> NDArray[np.bool_]:
    """Tell which questions have all gold documents read, shape (questions, cut-offs)."""
    unit_of = np.empty(len(data.sizes), np.int64)
    for unit, group in enumerate(groups):
        unit_of[group] = unit
    tokens = np.array([data.sizes[group].sum() for group in groups])
    unit_scores = np.stack([scores[:, group].max(axis=1) for group in groups], axis=1)
    ranking = np.argsort(-unit_scores, axis=1, kind="stable")
    result = np.zeros((len(ranking), len(TOP) + len(BUDGETS)), bool)
    for question, ranked in enumerate(ranking):
        wanted = {int(unit_of[document]) for document in data.gold[question]}
        for column, k in enumerate(TOP):
            result[question, column] = wanted <= set(ranked[:k].tolist())
        for column, budget in enumerate(BUDGETS, len(TOP)):
            result[question, column] = wanted <= set(within(ranked, tokens, budget))
    return result


def within(ranked: NDArray[np.int64], tokens: NDArray[np.int64], budget: int) -> Iterator[int]:
    """Yield the best units that fit a budget together."""
    smallest = tokens.min()
    for unit in ranked.tolist():
        if tokens[unit] <= budget:
            budget -= tokens[unit]
            yield unit
        if budget < smallest:
            return


def main() -> None:
    """Print a table per corpus and limit, and how many questions each direction wins."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    heads = [f"k={k}" for k in TOP] + [f"{budget // 1024}K" for budget in BUDGETS]
    for data in corpora():
        scores = document_scores(data)
        degree = len(set(data.links)) / len(data.sizes)
        print(
            f"\n{data.name}: {len(data.sizes):,} documents of {data.sizes.mean():,.0f} tokens, "
            f"{degree:.1f} links each, {len(data.gold)} questions"
        )
        print(f"{'':<22}{'units':>7}{'tokens':>8}" + "".join(f"{head:>7}" for head in heads))
        for max_size in (1024, 4096):
            outcome = {}
            for directed in (True, False):
                groups = group_documents(
                    data.sizes, data.links, max_size=max_size, directed=directed
                )
                outcome[directed] = hits = found(data, scores, groups)
                label = f"{max_size} {'directed' if directed else 'undirected'}"
                mean = data.sizes.sum() / len(groups)
                recall = "".join(f"{share:7.1%}" for share in hits.mean(axis=0))
                print(f"{label:<22}{len(groups):>7,}{mean:>8,.0f}{recall}")
            wins = [(outcome[d] & ~outcome[not d]).sum(axis=0) for d in (True, False)]
            pairs = "".join(f"{f'{a}:{b}':>7}" for a, b in zip(*wins, strict=True))
            print(f"{'  questions won':<37}{pairs}")
        alone = found(data, scores, [[document] for document in range(len(data.sizes))])
        recall = "".join(f"{share:7.1%}" for share in alone.mean(axis=0))
        print(f"{'documents alone':<22}{len(data.sizes):>7,}{data.sizes.mean():>8,.0f}{recall}")


if __name__ == "__main__":
    main()
