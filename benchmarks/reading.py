"""What ``LongRAGIndex`` reads within a token budget, by chunk size, beside hybrid passages.

    python benchmarks/reading.py
    python benchmarks/reading.py --sets squad nq_pages --sizes 128 512

Whole documents are indexed as the adapters do it, with vectors of latent semantic analysis. A
question is asked by the default order and by the paper's MaxP, both read by the plan, and beside
them by hybrid passages: the same chunks, BM25 and cosines scaled to one range and added, filled up
to the budget, with the best weight of 0.3, 1 and 2 for each budget. It is answered where all its
gold documents are read whole (HotpotQA, MuSiQue, whose documents are paragraphs), where an answer
is in what is read of the gold document (SQuAD, Natural Questions over whole pages), or where
something of the page is read (PowerShell's manual). Behind a share stands its 95 % interval
(Wilson), behind a difference to the hybrid that of a paired bootstrap over the questions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from order import BUDGETS, WEIGHTS, fill, wilson

# The order fixes the number of threads before numpy is imported.
import numpy as np  # isort: skip
from public_data import add_data_option, rows

from longrag.calls import run
from longrag.evaluation.metrics import paired_difference_interval
from longrag.indexing.keywords import KeywordIndex
from longrag.indices import CorpusIndex, CorpusOrder
from longrag.ingestion.builder import UnitBuilder
from longrag.ingestion.units import embedding_text, title_head
from longrag.models import LsaEmbedder, count_tokens
from longrag.retrieval import read_units
from longrag.types import Chunk, Document, RetrievedUnit

MAXP_UNITS = 20


@dataclass
class Asked:
    """A question, and the text that must be read of each gold document; None for any of it."""

    question: str
    wanted: Mapping[str, Sequence[str] | None]

    def answered(self, read: Mapping[str, str]) -> bool:
        """Tell whether texts, by document, answer the question."""
        return all(
            id_ in read and (any_of is None or any(text in read[id_] for text in any_of))
            for id_, any_of in self.wanted.items()
        )


Loaded = tuple[list[Document], list[Asked]]


def multihop(name: str) -> Callable[[Path], Loaded]:
    """Return what reads a set of paragraphs of which a question needs several."""

    def load(data: Path) -> Loaded:
        folder = data / "a_multihop"
        found = list(rows(folder / f"{name}.corpus.jsonl.gz"))
        documents = [Document(row["id"], row["text"], row["title"]) for row in found]
        text_of = {document.id: squeezed(document.text) for document in documents}
        asked = rows(folder / f"{name}.questions.dev.jsonl.gz")
        return documents, [
            Asked(row["question"], {id_: [text_of[id_]] for id_ in row["gold_ids"]})
            for row in asked
        ]

    return load


def articles(name: str, every: int) -> Callable[[Path], Loaded]:
    """Return what reads whole articles, and some of the questions about them."""

    def load(data: Path) -> Loaded:
        folder = data / "b_singlehop"
        documents = [
            Document(row["id"], row.get("text") or "\n\n".join(row["paragraphs"]), row["title"])
            for row in rows(folder / f"{name}.corpus.jsonl.gz")
        ]
        asked = list(rows(folder / f"{name}.questions.dev.jsonl.gz"))[::every]
        return documents, [
            Asked(row["question"], {row["gold_ids"][0]: list(map(squeezed, row["answers"]))})
            for row in asked
        ]

    return load


def powershell(data: Path) -> Loaded:
    """Read the manual's pages, and descriptions of some."""
    folder = data / "d_docs"
    documents = [
        Document(row["id"], row["text"], row["title"])
        for row in rows(folder / "powershell.corpus.jsonl.gz")
    ]
    asked = rows(folder / "powershell.known_item.dev.jsonl.gz")
    return documents, [Asked(row["question"], {row["gold_ids"][0]: None}) for row in asked]


SETS: dict[str, Callable[[Path], Loaded]] = {
    "hotpotqa": multihop("hotpotqa"),
    "musique": multihop("musique"),
    "squad": articles("squad", 10),
    "nq_pages": articles("nq_pages", 1),
    "powershell": powershell,
}


def squeezed(text: str) -> str:
    """Write a text without differences of case and white space."""
    return " ".join(text.casefold().split())


def texts_of(found: Sequence[RetrievedUnit]) -> dict[str, str]:
    """Return what is read of each document."""
    read: dict[str, str] = {}
    for one in found:
        for member in one.unit.members:
            text = one.unit.text[member.start : member.end]
            read[member.doc_id] = f"{read.get(member.doc_id, '')} {squeezed(text)}"
    return read


def passages_of(chunks: Sequence[Chunk], taken: Sequence[int]) -> dict[str, str]:
    """Return what chunks hold of each document, in reading order."""
    read: dict[str, str] = {}
    for chunk in sorted((chunks[at] for at in taken), key=lambda one: one.doc_start):
        read[chunk.doc_id] = f"{read.get(chunk.doc_id, '')} {squeezed(chunk.text)}"
    return read


def measure(name: str, documents: Sequence[Document], asked: Sequence[Asked], size: int) -> None:
    """Print the rows of one set and chunk size."""
    corpus = CorpusIndex(UnitBuilder(chunk_size=size))
    embed = LsaEmbedder([f"{one.title}. {one.text}" for one in documents])

    def answer(request: Any) -> Any:
        return embed(request.texts, request.role)

    run(corpus.change(upsert=documents), answer)
    order, index = CorpusOrder(corpus), corpus.view().index
    chunks = list(index.chunks)
    sizes = [count_tokens(title_head(one.title, one.text) + one.text) for one in chunks]
    width = len(str(len(chunks)))
    texts = [embedding_text(chunk) for chunk in chunks]
    keywords = KeywordIndex.build([f"{at:0{width}}" for at in range(len(chunks))], texts)
    vectors = index.index.vectors
    hits = {
        row: np.zeros((len(asked), len(BUDGETS)))
        for row in ("order", "MaxP", *(f"hybrid {weight}" for weight in WEIGHTS))
    }
    queries = np.asarray(embed([one.question for one in asked], "query"), np.float32)
    for number, (one, query) in enumerate(zip(asked, queries, strict=True)):
        dense, sparse = vectors @ query, keywords.scores(one.question)
        scaled = (dense - dense.mean()) / ((dense.max() - dense.mean()) or 1)
        whole = index.search(query, MAXP_UNITS)
        for at, budget in enumerate(BUDGETS):
            flow = order.retrieve([one.question], form="units", token_budget=budget, vector=query)
            hits["order"][number, at] = one.answered(texts_of(run(flow, answer)))
            hits["MaxP"][number, at] = one.answered(texts_of(read_units(whole, budget)))
            for weight in WEIGHTS:
                scores = scaled + weight * sparse / (sparse.max() or 1)
                ranked = np.argsort(-scores, kind="stable")[:1000].tolist()
                read = passages_of(chunks, fill(ranked, sizes, budget))
                hits[f"hybrid {weight}"][number, at] = one.answered(read)
    hybrids = [hits[f"hybrid {weight}"] for weight in WEIGHTS]
    best = np.stack(
        [max((one[:, at] for one in hybrids), key=np.mean) for at in range(len(BUDGETS))], axis=1
    )
    print(f"\n{name}, chunks of {size} tokens: {len(chunks):,}, {len(asked):,} questions\n")
    print("| | " + " | ".join(f"{budget:,}" for budget in BUDGETS) + " |")
    print("|---|" + "---|" * len(BUDGETS))
    for row, values in {**hits, "best hybrid": best}.items():
        cells = []
        for at in range(len(BUDGETS)):
            low, high = wilson(float(values[:, at].mean()), len(asked))
            cells.append(f"{values[:, at].mean():.3f} [{low:.2f}, {high:.2f}]")
        print(f"| {row} | " + " | ".join(cells) + " |")
    for row in ("order", "MaxP"):
        cells = []
        for at in range(len(BUDGETS)):
            told = paired_difference_interval(hits[row][:, at].tolist(), best[:, at].tolist())
            cells.append(f"{told.mean:+.3f} [{told.low:+.3f}, {told.high:+.3f}]")
        print(f"| {row} less the best hybrid | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Measure the sets that are named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--sizes", nargs="*", type=int, default=[128, 256, 512])
    add_data_option(parser)
    options = parser.parse_args()
    for name in options.sets:
        documents, asked = SETS[name](options.data)
        for size in options.sizes:
            measure(name, documents, asked, size)


if __name__ == "__main__":
    main()
