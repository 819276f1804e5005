"""What ``LongRAGIndex`` reads within a token budget, beside hybrid passages of the same chunks.

    python benchmarks/reading.py
    python benchmarks/reading.py --sets squad nq_pages --embedders lsa --every 1
    python benchmarks/reading.py --sets hotpotqa musique 2wiki --parts
    python benchmarks/reading.py --sets sqlalchemy pytest --checkouts FOLDER --half held

Documents are indexed as the adapters do it and read by the default order. A question is answered
where all its gold documents are read whole (HotpotQA, MuSiQue, 2Wiki, whose documents are
paragraphs), where an answer is in what is read of the gold document (SQuAD, Natural Questions over
whole pages, 1,500 articles of Wikispeedia), where something of the page is read (PowerShell's
manual), or a line of the section that a paragraph links to (SQLAlchemy, pytest; see
``documentation_links.py``). Questions about a story are asked of it alone, and the share counts of
the reference's pairs of words whose place is read (SQuALITY, QuALITY).

Rivals have the same chunks and vectors, and pass over what does not fit. "Hybrid" is BM25 and
cosines scaled to one range and added; "tuned" has the best weight of 0.3, 1 and 2 for each set and
budget, as the settings of the order were chosen on these questions. A change of the rule is chosen
on one half of them and tried on the other: ``--half``, by a checksum of the question. Behind a
mean stands its 95 % interval (Wilson's for shares), behind a difference that of a paired bootstrap
over the questions. MiniLM's vectors are those made beforehand; where there are none, its weights
make them (``make minilm``), and ``--vectors FOLDER`` keeps them. With ``--parts`` the order is
measured without one of its parts at a time.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

# The BLAS library reads these once, when numpy is imported.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402
from documentation_links import NOT_PAGES, linked_sections  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from public_data import add_data_option, rows  # noqa: E402

from longrag.calls import run  # noqa: E402
from longrag.evaluation.metrics import (  # noqa: E402
    Estimate,
    mean_interval,
    paired_difference_interval,
)
from longrag.evaluation.pairs import PairRecall  # noqa: E402
from longrag.indexing.keywords import KeywordIndex  # noqa: E402
from longrag.indices import CorpusIndex  # noqa: E402
from longrag.indices.corpus_order import (  # noqa: E402
    LINK_SOURCES,
    CorpusOrder,
)
from longrag.ingestion.builder import UnitBuilder  # noqa: E402
from longrag.ingestion.resolving import resolve_links  # noqa: E402
from longrag.ingestion.units import embedding_text, title_head  # noqa: E402
from longrag.models import LsaEmbedder, count_tokens  # noqa: E402
from longrag.retrieval.filters import DocumentFilter  # noqa: E402
from longrag.types import Document, RetrievedUnit  # noqa: E402

BUDGETS = (500, 1000, 2000, 4000)
WEIGHTS = (0.3, 1.0, 2.0)
HALVES = ("chosen", "held")
Vectors = NDArray[np.float32]
Read = Mapping[str, str]
"""What is read of each document, by its id."""


@dataclass
class Asked:
    """A question, what scores texts by document, and the one document that it is asked of."""

    question: str
    score: Callable[[Read], float]
    story: str | None = None


@dataclass
class Corpus:
    """Documents, questions, and what is there besides: links, chunks, vectors by text."""

    documents: list[Document]
    asked: list[Asked]
    links: Mapping[str, Sequence[str]] = field(default_factory=dict)
    spans: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    vectors: dict[str, Vectors] = field(default_factory=dict)


def squeezed(text: str) -> str:
    """Write a text without differences of case and white space."""
    return " ".join(text.casefold().split())


def holds(wanted: Mapping[str, Sequence[str] | None]) -> Callable[[Read], float]:
    """Tell whether of each document one of the texts is read; anything of it for None."""
    return lambda read: all(
        id_ in read and (any_of is None or any(text in read[id_] for text in any_of))
        for id_, any_of in wanted.items()
    )


def load_documents(path: Path) -> list[Document]:
    """Read the documents of a file."""
    return [
        Document(row["id"], row.get("text") or "\n\n".join(row["paragraphs"]), row["title"])
        for row in rows(path)
    ]


def multihop(data: Path, name: str) -> Corpus:
    """Read paragraphs of which a question needs several."""
    folder = data / "a_multihop"
    documents = load_documents(folder / f"{name}.corpus.jsonl.gz")
    text_of = {one.id: squeezed(one.text) for one in documents}
    corpus = Corpus(documents, [])
    for row in rows(folder / f"{name}.questions.dev.jsonl.gz"):
        wanted = {id_: [text_of[id_]] for id_ in row["gold_ids"]}
        corpus.asked.append(Asked(row["question"], holds(wanted)))
    for part, texts in (
        ("vectors", [embedding_text(one) for one in documents]),
        ("question_vectors.dev", [one.question for one in corpus.asked]),
    ):
        made = np.load(folder / f"{name}.{part}.f16.npy").astype(np.float32)
        corpus.vectors |= dict(zip(texts, made, strict=True))
    return corpus


def with_answers(data: Path, name: str) -> Corpus:
    """Read whole documents, and questions with answers."""
    path = data / f"{name}.questions.dev.jsonl.gz"
    return Corpus(
        load_documents(data / f"{name}.corpus.jsonl.gz"),
        [
            Asked(row["question"], holds({row["gold_ids"][0]: list(map(squeezed, row["answers"]))}))
            for row in rows(path)
        ],
    )


def powershell(data: Path, name: str) -> Corpus:
    """Read the manual's pages with their links, and descriptions of some."""
    path = data / "d_docs" / "powershell.corpus.jsonl.gz"
    asked = rows(data / "d_docs" / "powershell.known_item.dev.jsonl.gz")
    return Corpus(
        load_documents(path),
        [Asked(row["question"], holds({row["gold_ids"][0]: None})) for row in asked],
        {row["id"]: row["links"] for row in rows(path)},
    )


def wikispeedia(data: Path, name: str) -> Corpus:
    """Read the 1,500 articles that were cut and embedded beforehand, with their links."""
    folder = data / "e_wikispeedia"
    corpus = with_answers(folder, name)
    cut = list(rows(folder / "subset1500.chunks.jsonl.gz"))
    kept = {row["doc"] for row in cut}
    corpus.documents = [one for one in corpus.documents if one.id in kept]
    links = {row["id"]: row["links"] for row in rows(folder / f"{name}.corpus.jsonl.gz")}
    corpus.links = {id_: [to for to in links[id_] if to in kept] for id_ in kept}
    of = {one.id: one for one in corpus.documents}
    spans: dict[str, list[tuple[int, int]]] = {}
    texts = []
    for row in cut:
        whole = of[row["doc"]]
        spans.setdefault(whole.text, []).append((row["start"], row["end"]))
        text = whole.text[row["start"] : row["end"]]
        texts.append(embedding_text(Document("", text, whole.title)))
    corpus.spans = spans
    made = np.load(folder / "subset1500.chunk_vectors.f16.npy").astype(np.float32)
    asked = np.load(folder / f"{name}.question_vectors.dev.f16.npy").astype(np.float32)
    corpus.vectors = dict(zip(texts, made, strict=True))
    corpus.vectors |= {one.question: row for one, row in zip(corpus.asked, asked, strict=True)}
    return corpus


def stories(data: Path, name: str) -> Corpus:
    """Read stories, and questions about each, with what people answered."""
    documents = load_documents(data / "c_longdoc" / f"{name}.corpus.jsonl.gz")
    found = list(rows(data / "c_longdoc" / f"{name}.questions.dev.jsonl.gz"))
    pairs = PairRecall(
        [one.text for one in documents], [text for row in found for text in row["answers"]]
    )
    asked = []
    for row in found:
        if pairs.places(row["answers"]):

            def score(read: Read, answers: Sequence[str] = row["answers"]) -> float:
                return pairs.score(list(read.values()), answers) or 0.0

            asked.append(Asked(row["question"], score, row["gold_ids"][0]))
    return Corpus(documents, asked)


def documentation(checkouts: Path, name: str) -> Corpus:
    """Read the documentation of a project with its links, and paragraphs that lead to sections."""
    pages, found = linked_sections(checkouts, name)
    links: dict[str, list[str]] = {}
    for source, target in resolve_links(pages).links:
        links.setdefault(pages[source].id, []).append(pages[target].id)
    asked = [
        Asked(one.question, holds({one.page: list(map(squeezed, one.lines))})) for one in found
    ]
    return Corpus(pages, asked, links)


SETS: dict[str, Callable[[Path, str], Corpus]] = {
    "hotpotqa": multihop,
    "2wiki": multihop,
    "musique": multihop,
    "squad": lambda data, name: with_answers(data / "b_singlehop", name),
    "nq_pages": lambda data, name: with_answers(data / "b_singlehop", name),
    "powershell": powershell,
    "wikispeedia": wikispeedia,
    "squality": stories,
    "quality": stories,
    "sqlalchemy": documentation,
    "pytest": documentation,
}


def half_of(asked: Asked) -> str:
    """Tell whether a change may be chosen on a question, or only be tried on it."""
    return HALVES[hashlib.sha1(asked.question.encode()).digest()[0] % 2]


def linked(corpus: Corpus) -> Callable[[Sequence[Document]], list[tuple[int, int]]]:
    """Return a source of the links that are there beforehand."""

    def source(documents: Sequence[Document]) -> list[tuple[int, int]]:
        number = {one.id: at for at, one in enumerate(documents)}
        return [
            (number[id_], number[to])
            for id_ in number
            for to in corpus.links.get(id_, ())
            if to in number
        ]

    return source


class Pool:
    """The chunks that a question may be answered from, and every rival's ranking of them."""

    def __init__(self, corpus: CorpusIndex, story: str | None) -> None:
        wanted = DocumentFilter.of({"story": story}) if story else None
        self.view = corpus.view(wanted)
        visible = self.view.visible
        of = range(len(corpus.index.chunks)) if visible is None else visible.chunks.tolist()
        self.chunks = [corpus.index.chunks[at] for at in of]
        self._vectors = corpus.index.index.vectors[list(of)]
        self._texts = [squeezed(one.text) for one in self.chunks]
        self._sizes = [
            count_tokens(title_head(one.title, one.text) + one.text) for one in self.chunks
        ]
        width = len(str(len(self.chunks)))
        texts = list(map(embedding_text, self.chunks))
        self._keywords = KeywordIndex.build([f"{at:0{width}}" for at in range(len(texts))], texts)

    def rankings(self, question: str, vector: Vectors, number: int) -> dict[str, NDArray[np.int64]]:
        """Return the chunks best first, by rival."""
        dense, sparse = self._vectors @ vector, self._keywords.scores(question)
        dense = (dense - dense.mean()) / ((dense.max() - dense.mean()) or 1)
        sparse = sparse / (sparse.max() or 1)
        scores = {f"hybrid, {weight}": dense + weight * sparse for weight in WEIGHTS}
        scores["BM25"] = sparse
        scores["random"] = np.random.default_rng(number).random(len(dense))
        return {name: np.argsort(-one, kind="stable")[:1000] for name, one in scores.items()}

    def read(self, ranked: Sequence[int], budget: int) -> dict[str, str]:
        """Take chunks best first, passing over what does not fit; join them in reading order."""
        taken, room, smallest = [], budget, min(self._sizes)
        for at in ranked:
            if self._sizes[at] <= room:
                taken.append(at)
                room -= self._sizes[at]
            if room < smallest:
                break
        read: dict[str, str] = {}
        for at in sorted(taken, key=lambda at: self.chunks[at].doc_start):
            id_ = self.chunks[at].doc_id
            read[id_] = f"{read[id_]} {self._texts[at]}" if id_ in read else self._texts[at]
        return read


def texts_of(found: Sequence[RetrievedUnit]) -> dict[str, str]:
    """Return what is read of each document."""
    read: dict[str, str] = {}
    for one in found:
        for member in one.unit.members:
            text = squeezed(one.unit.text[member.start : member.end])
            read[member.doc_id] = f"{read.get(member.doc_id, '')} {text}"
    return read


def embed(corpus: Corpus, texts: list[str], kind: str, kept: Path | None) -> dict[str, Vectors]:
    """Return the vectors of the chunks' texts and of the questions."""
    questions = [one.question for one in corpus.asked]
    if kind == "lsa":
        lsa = LsaEmbedder(texts)
        made = [*lsa(texts, "document"), *lsa(questions, "query")]
        return dict(zip([*texts, *questions], np.asarray(made, np.float32), strict=True))
    known = dict(corpus.vectors)
    keys = {text: hashlib.sha1(text.encode()).hexdigest() for text in [*texts, *questions]}
    if kept and kept.exists():
        with np.load(kept) as saved:
            have = dict(zip(saved["keys"].tolist(), saved["vectors"], strict=True))
        known |= {text: have[key] for text, key in keys.items() if key in have}
    if missing := [text for text in keys if text not in known]:
        # The weights are a package that only this needs.
        from longrag.models.minilm.embedder import MiniLmEmbedder

        vectors = MiniLmEmbedder(weights="float32", workers=1)(missing, "document")
        known |= dict(zip(missing, np.asarray(vectors, np.float32), strict=True))
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            np.savez(kept, keys=list(keys.values()), vectors=[known[text] for text in keys])
    return known


PARTS: dict[str, dict[str, float]] = {
    "as it is": {"_TITLE": 0.5},
    "no words count less": {"_FADE": 1.0},
    "nothing is followed": {"_FOLLOWED": 0},
    "no names are followed": {"_MOST_HOLDERS": 0},
    "no links are followed": {"_FULL_LINKS": 1e-9},
    "no titles in the question": {"_TITLE": 0.0},
    "rarity to the power 1, as in BM25": {"_RARITY": 1.0},
    "rarity to the power 2": {"_RARITY": 2.0},
}


class Bench:
    """One set with one embedder's vectors."""

    def __init__(self, corpus: Corpus, kind: str, size: int, kept: Path | None) -> None:
        self._asked = corpus.asked
        chunker: Any = corpus.spans.__getitem__ if corpus.spans else None
        index = CorpusIndex(UnitBuilder(chunk_size=size, chunker=chunker))
        documents = [Document(d.id, d.text, d.title, {"story": d.id}) for d in corpus.documents]
        _, chunks = index.builder.build(documents)
        vectors = embed(corpus, list(map(embedding_text, chunks)), kind, kept)
        self._queries = [vectors[one.question] for one in corpus.asked]
        run(index.change(upsert=documents), lambda ask: np.array([vectors[t] for t in ask.texts]))
        self._index = index
        self._order = CorpusOrder(index, link_sources=(*LINK_SOURCES, linked(corpus)))

    def order(self) -> NDArray[np.float64]:
        """Score the default order; shape (questions, budgets)."""
        scores = np.zeros((len(self._asked), len(BUDGETS)))
        for number, (one, query) in enumerate(zip(self._asked, self._queries, strict=True)):
            view = self._pool(one.story).view
            for at, budget in enumerate(BUDGETS):
                flow = self._order.retrieve(
                    [one.question], form="units", token_budget=budget, vector=query, view=view
                )
                scores[number, at] = one.score(texts_of(run(flow, _unasked)))
        return scores

    def rivals(self) -> dict[str, NDArray[np.float64]]:
        """Score the rivals, by name."""
        scores: dict[str, NDArray[np.float64]] = {}
        for number, (one, query) in enumerate(zip(self._asked, self._queries, strict=True)):
            pool = self._pool(one.story)
            for name, ranked in pool.rankings(one.question, query, number).items():
                own = scores.setdefault(name, np.zeros((len(self._asked), len(BUDGETS))))
                for at, budget in enumerate(BUDGETS):
                    own[number, at] = one.score(pool.read(ranked.tolist(), budget))
        hybrids = [scores[f"hybrid, {weight}"] for weight in WEIGHTS]
        best = [max((one[:, at] for one in hybrids), key=np.mean) for at in range(len(BUDGETS))]
        return {"hybrid, tuned": np.stack(best, axis=1), **scores}

    def _pool(self, story: str | None) -> Pool:
        pool: Pool = self._index.derived.get(("pool", story), lambda: Pool(self._index, story))
        return pool


def _unasked(request: object) -> Any:
    raise AssertionError(f"every vector is given, so that nothing asks for {request}")


def line(name: str, row: str, cells: Iterator[str]) -> None:
    """Print a row of the table."""
    print(f"| {name} | {row} | " + " | ".join(cells) + " |", flush=True)


def shown(told: Estimate, sign: str = "") -> str:
    """Write a mean with its interval."""
    return f"{told.mean:{sign}.3f} [{told.low:{sign}.2f}, {told.high:{sign}.2f}]"


def main() -> None:
    """Measure the sets that are named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sets", nargs="*", choices=SETS, help="without it all that are there")
    parser.add_argument(
        "--checkouts", type=Path, help="holds the repositories of documentation_questions.json"
    )
    parser.add_argument("--half", choices=HALVES, help="of the questions; without it all")
    parser.add_argument(
        "--embedders", nargs="*", choices=("minilm", "lsa"), default=["minilm", "lsa"]
    )
    parser.add_argument("--size", type=int, default=UnitBuilder().chunk_size, help="of chunks")
    parser.add_argument("--budgets", nargs=4, type=int, default=BUDGETS)
    parser.add_argument("--every", type=int, default=10, help="which of SQuAD's 5,262 questions")
    parser.add_argument("--vectors", type=Path, help="a folder that keeps MiniLM's vectors")
    parser.add_argument("--parts", action="store_true", help="leave out one part at a time")
    add_data_option(parser)
    options = parser.parse_args()
    globals()["BUDGETS"] = tuple(options.budgets)
    print("| questions | | " + " | ".join(f"{budget:,}" for budget in BUDGETS) + " |")
    print("|---|---|" + "---|" * len(BUDGETS))
    there = [name for name in SETS if options.checkouts or name not in NOT_PAGES]
    for name in options.sets or there:
        corpus = SETS[name](options.checkouts if name in NOT_PAGES else options.data, name)
        if name == "squad":
            corpus.asked = corpus.asked[:: options.every]
        if options.half:
            corpus.asked = [one for one in corpus.asked if half_of(one) == options.half]
        for kind in options.embedders:
            kept = options.vectors / f"{name}.npz" if options.vectors else None
            bench = Bench(corpus, kind, options.size, kept)
            title = f"{name}, {kind} ({len(corpus.asked):,})"
            if options.parts:
                for part, settings in PARTS.items():
                    with patch.multiple("longrag.retrieval.order", **settings):
                        means = bench.order().mean(axis=0)
                    line(title, part, (f"{mean:.3f}" for mean in means))
                continue
            rivals = bench.rivals()
            order = bench.order()
            for row, scores in {"order": order, **rivals}.items():
                line(title, row, (shown(mean_interval(own)) for own in scores.T))
            for row in ("hybrid, tuned", "hybrid, 1.0"):
                told = (
                    paired_difference_interval(ours, theirs)
                    for ours, theirs in zip(order.T, rivals[row].T, strict=True)
                )
                line(title, f"order less {row}", (shown(one, "+") for one in told))


if __name__ == "__main__":
    main()
