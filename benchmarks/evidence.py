"""Share of multi-hop questions whose gold paragraphs are all found within a token budget.

    python benchmarks/evidence.py
    python benchmarks/evidence.py --embedder lsa --rivals
    python benchmarks/evidence.py --cross-validate
    python benchmarks/evidence.py --single-hop
    python benchmarks/evidence.py --single-hop nq_open

HotpotQA, MuSiQue and 2WikiMultihopQA, paragraphs and MiniLM vectors made beforehand. No hyperlinks
are used: links are title mentions and shared names, computed here. "Plain paragraphs" are taken by
the inner product of their vectors with the question's. Grouped units are made by Algorithm 1 with
at most 1,024 tokens, ranked by MaxP and taken whole. Everything fills the same budget in the same
way: best first, passing over what does not fit. Behind each share stands its difference to plain
paragraphs with a 95 % interval from a paired bootstrap over the questions. Settings are the same
for all three sets; with --cross-validate they are chosen on two sets and checked on the third.
The rivals are the same scores fused (keywords are BM25): hybrid as in best practices, reciprocal
ranks, the title neighbours of the best five put behind each of them, and personalised PageRank from
the best ten added to the hybrid score. --rivals leaves out the rest.
With --single-hop the questions need one paragraph only (NQ-open and every fifth of SQuAD): what
evidence costs where there is nothing to follow. Vectors are then made here, by MiniLM.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# The BLAS library reads these once, when numpy is imported.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from public_data import add_data_option, rows  # noqa: E402
from scipy.sparse import csr_matrix  # noqa: E402

from longrag.indexing.keywords import KeywordIndex  # noqa: E402
from longrag.indexing.neighbours import nearest_neighbour_links  # noqa: E402
from longrag.ingestion import group_documents  # noqa: E402
from longrag.ingestion.relations import SharedEntities, TitleMentions  # noqa: E402
from longrag.ingestion.units import document_sizes  # noqa: E402
from longrag.models import LsaEmbedder  # noqa: E402
from longrag.models.words import content_terms  # noqa: E402
from longrag.retrieval import MaxPIndex  # noqa: E402
from longrag.retrieval.evidence import EvidenceIndex  # noqa: E402
from longrag.types import Document  # noqa: E402

SETS = ("hotpotqa", "musique", "2wiki")
SINGLE_HOP = {"nq_open": 1, "squad": 5}
"""Sets of questions that one paragraph answers; every n-th question is asked."""
BUDGETS = (1100, 2200, 4400)
UNIT_TOKENS = 1024

Pairs = list[tuple[int, int]]
Floats = NDArray[np.float64]
Rank = Callable[[int, int], list[int]]
"""From a question's number and a token budget to the documents taken."""


@dataclass(frozen=True)
class Corpus:
    """One question set with its paragraphs, vectors and links."""

    documents: list[Document]
    sizes: list[int]
    vectors: NDArray[np.float32]
    questions: list[str]
    question_vectors: NDArray[np.float32]
    gold: list[set[int]]
    links: dict[str, Pairs]


def load(folder: Path, name: str) -> Corpus:
    """Read one set and compute its links."""
    corpus = rows(folder / f"{name}.corpus.jsonl.gz")
    documents = [Document(row["id"], row["text"], row["title"]) for row in corpus]
    questions = list(rows(folder / f"{name}.questions.dev.jsonl.gz"))
    index = {document.id: i for i, document in enumerate(documents)}
    vectors = np.load(folder / f"{name}.vectors.f16.npy").astype(np.float32)
    titles, names = TitleMentions()(documents), SharedEntities()(documents)
    return Corpus(
        documents=documents,
        sizes=document_sizes(documents),
        vectors=vectors,
        questions=[row["question"] for row in questions],
        question_vectors=np.load(folder / f"{name}.question_vectors.dev.f16.npy").astype("f4"),
        gold=[{index[id_] for id_ in row["gold_ids"]} for row in questions],
        links={
            "no links": [],
            "titles": titles,
            "names": names,
            "titles and names": [*titles, *names],
            "vectors": nearest_neighbour_links(vectors),
        },
    )


def with_lsa(corpus: Corpus) -> Corpus:
    """Return the same corpus with vectors of latent semantic analysis, which needs no model."""
    texts = [f"{document.title}. {document.text}" for document in corpus.documents]
    embed = LsaEmbedder(texts)
    vectors = embed(texts, "document")
    links = {**corpus.links, "vectors": nearest_neighbour_links(vectors)}
    asked = embed(corpus.questions, "query")
    return replace(corpus, vectors=vectors, question_vectors=asked, links=links)


def units(corpus: Corpus, links: Pairs) -> Rank:
    """Rank grouped units by MaxP over their paragraphs, and take them whole."""
    groups = group_documents(corpus.sizes, links, max_size=UNIT_TOKENS)
    unit_of = np.empty(len(corpus.documents), np.int64)
    for number, group in enumerate(groups):
        unit_of[group] = number
    _, ranked, _ = MaxPIndex(corpus.vectors, unit_of).search(corpus.question_vectors, 200)
    sizes = [sum(corpus.sizes[i] for i in group) for group in groups]

    def rank(question: int, budget: int) -> list[int]:
        taken: list[int] = []
        for number in ranked[question].tolist():
            if sizes[number] <= budget:
                budget -= sizes[number]
                taken += groups[number]
        return taken

    return rank


def evidence(
    corpus: Corpus, kind: type[EvidenceIndex], links: str, related: str, **settings: Any
) -> Rank:
    """Rank by an evidence index of some kind, of some links and some settings."""
    given = {"related": corpus.links[related], **settings}
    index = kind(corpus.documents, corpus.vectors, corpus.links[links], **given)
    return lambda question, budget: search(index, corpus, question, budget)


def search(index: EvidenceIndex, corpus: Corpus, question: int, budget: int) -> list[int]:
    """Return the numbers of the documents found."""
    text, vector = corpus.questions[question], corpus.question_vectors[question]
    return [found.index for found in index.search(text, vector, token_budget=budget)]


def hybrid_scores(corpus: Corpus, alpha: float) -> list[Floats]:
    """Return ``alpha`` times BM25 plus the inner products, each scaled to 0 and 1, per question."""
    keywords = bm25(corpus)
    return [
        alpha * unit_range(a) + unit_range(b) for a, b in zip(keywords, dense(corpus), strict=True)
    ]


def bm25(corpus: Corpus) -> list[Floats]:
    """Return the BM25 scores of all documents for each question."""
    number = {document.id: i for i, document in enumerate(corpus.documents)}
    texts = [f"{document.title}\n{document.text}" for document in corpus.documents]
    index = KeywordIndex.build(list(number), texts)
    rows_of = [number[id_] for id_ in index.ids]
    found = np.zeros((len(corpus.questions), len(number)))
    for row, question in zip(found, corpus.questions, strict=True):
        row[rows_of] = index.scores(question)
    return list(found)


def dense(corpus: Corpus) -> list[Floats]:
    """Return the inner products of all documents with each question."""
    return list((corpus.question_vectors @ corpus.vectors.T).astype(np.float64))


def unit_range(scores: Floats) -> Floats:
    """Scale from the smallest score, 0, to the largest, 1."""
    return (scores - scores.min()) / (np.ptp(scores) or 1.0)


def fill(corpus: Corpus, orders: list[list[int]]) -> Rank:
    """Take documents in an order that is given for each question."""
    smallest = min(corpus.sizes)

    def rank(question: int, budget: int) -> list[int]:
        taken: list[int] = []
        for number in orders[question]:
            if budget < smallest:
                break
            if corpus.sizes[number] <= budget:
                budget -= corpus.sizes[number]
                taken.append(number)
        return taken

    return rank


def descending(scores: Floats) -> list[int]:
    """Return the documents, best first, equal ones by number."""
    return np.argsort(-scores, kind="stable").tolist()


def reciprocal_ranks(corpus: Corpus) -> list[list[int]]:
    """Order by the sum of 1 / (60 + rank) over the vectors' and the keywords' ranking."""
    orders = []
    for rankings in zip(dense(corpus), bm25(corpus), strict=True):
        total = np.zeros(len(corpus.documents))
        for scores in rankings:
            total[descending(scores)] += 1 / (61 + np.arange(len(total)))
        orders.append(descending(total))
    return orders


def title_neighbours(corpus: Corpus) -> list[list[int]]:
    """Put behind each of the best five up to five of those it is linked to by a title."""
    linked = neighbours_of(corpus, corpus.links["titles"])
    orders = []
    for scores in hybrid_scores(corpus, 1.0):
        order = descending(scores)
        first: list[int] = []
        for hit in order[:5]:
            near = sorted(linked[hit], key=lambda i, s=scores: -s[i])
            first += [hit, *near[:5]]
        orders.append(list(dict.fromkeys([*first, *order])))
    return orders


def pagerank(corpus: Corpus, pairs: Pairs) -> list[list[int]]:
    """Add personalised PageRank from the best ten, by their hybrid scores, to that score."""
    count = len(corpus.documents)
    both = np.array([*pairs, *[(b, a) for a, b in pairs]])
    edges = csr_matrix((np.ones(len(both)), (both[:, 0], both[:, 1])), (count, count))
    edges.data[:] = 1.0
    shares = edges.multiply(1 / np.maximum(edges.sum(axis=1), 1)).tocsr().T.tocsr()
    orders = []
    for scores in hybrid_scores(corpus, 1.0):
        start = np.zeros(count)
        best = descending(scores)[:10]
        start[best] = scores[best] / scores[best].sum()
        mass = start
        for _ in range(20):
            mass = 0.5 * start + 0.5 * (shares @ mass)
        orders.append(descending(unit_range(scores) + unit_range(mass)))
    return orders


def neighbours_of(corpus: Corpus, pairs: Pairs) -> list[set[int]]:
    """Return the documents that each one is linked to, in either direction."""
    linked: list[set[int]] = [set() for _ in corpus.documents]
    for source, target in pairs:
        linked[source].add(target)
        linked[target].add(source)
    return linked


def rivals(corpus: Corpus) -> Iterator[tuple[str, Rank]]:
    """Yield what follows nothing, or follows links without evidence's weights."""
    titles, names = corpus.links["titles"], corpus.links["names"]
    yield "BM25", fill(corpus, list(map(descending, bm25(corpus))))
    for alpha in (0.3, 1.0):
        orders = list(map(descending, hybrid_scores(corpus, alpha)))
        yield f"hybrid, alpha={alpha}", fill(corpus, orders)
    yield "reciprocal ranks", fill(corpus, reciprocal_ranks(corpus))
    yield "hybrid + title neighbours", fill(corpus, title_neighbours(corpus))
    yield "hybrid + PageRank, titles", fill(corpus, pagerank(corpus, titles))
    yield (
        "hybrid + PageRank, titles, names",
        fill(corpus, pagerank(corpus, [*titles, *names])),
    )


class WithQuestionTerms(EvidenceIndex):
    """Lets terms that are in the question count as shared with a hit."""

    def _leads(self, hit: int, asked: NDArray[np.int64]) -> tuple[Floats, Floats]:
        return super()._leads(hit, asked[:0])


class VectorNeighbours(EvidenceIndex):
    """Follows a hit to what is near its vector, instead of what shares its terms."""

    def _leads(self, hit: int, asked: NDArray[np.int64]) -> tuple[Floats, Floats]:
        link, _ = super()._leads(hit, asked)
        near = np.einsum("ij,j->i", self._vectors, self._vectors[hit]).astype(np.float64)
        near[hit] = 0
        return link, self._term_weight * near / near.max()


class HopVectors(EvidenceIndex):
    """Asks again with the sum of the question's and the hit's vectors."""

    def _direct(self, asked: NDArray[np.int64], query: NDArray[np.float32]) -> Floats:
        self._query = query
        return super()._direct(asked, query)

    def _leads(self, hit: int, asked: NDArray[np.int64]) -> tuple[Floats, Floats]:
        link, term = super()._leads(hit, asked)
        near = np.einsum("ij,j->i", self._vectors, self._query + self._vectors[hit])
        near[hit] = 0
        return link, term + 0.5 * near.astype(np.float64) / near.max()


class OpenTerms(EvidenceIndex):
    """Adds what a passage holds of the question's terms that the hit lacks."""

    def _leads(self, hit: int, asked: NDArray[np.int64]) -> tuple[Floats, Floats]:
        link, term = super()._leads(hit, asked)
        held = self._terms.known(content_terms(self._documents[hit].text))
        left = asked[~np.isin(asked, held)]
        more = self._terms.products(left, self._terms.idf[left])
        more[hit] = 0
        return link, term + 0.3 * more / max(more.max(), 1e-9)


class SecondRound(EvidenceIndex):
    """Follows the best passages after a first round instead of the question's own."""

    def _best(self, direct: Floats) -> list[int]:
        first = super()._best(direct)
        score = direct.copy()
        for hit in first:
            lead = np.add(*self._leads(hit, np.empty(0, np.int64)))
            np.maximum(score, direct + direct[hit] / direct.max() * lead, out=score)
        return super()._best(score)


class PageRank(EvidenceIndex):
    """Personalised PageRank from the hits, over links and each document's ten best term edges."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        count = len(self.passages)
        self._edges: list[tuple[NDArray[np.int64], Floats]] = []
        for document in range(count):
            lead = np.add(*self._leads(document, np.empty(0, np.int64)))
            kept = np.argsort(-lead, kind="stable")[:10]
            self._edges.append((kept, lead[kept] / max(lead[kept].sum(), 1e-9)))

    def _leads(self, hit: int, asked: NDArray[np.int64]) -> tuple[Floats, Floats]:
        if len(getattr(self, "_edges", ())) < len(self.passages):
            return super()._leads(hit, asked)
        start = np.zeros(len(self.passages))
        start[hit] = 1
        mass = start
        for _ in range(4):
            spread = np.zeros_like(mass)
            for document in np.flatnonzero(mass):
                targets, shares = self._edges[document]
                spread[targets] += mass[document] * shares
            mass = 0.5 * spread + 0.5 * start
        mass[hit] = 0
        return np.zeros_like(mass), mass / max(mass.max(), 1e-9)


def yardsticks(corpus: Corpus) -> Iterator[tuple[str, Rank]]:
    """Yield plain paragraphs, evidence, and evidence that follows nothing."""
    given = (corpus, EvidenceIndex, "titles", "names")
    plain = {"hits": 0, "lexical_weight": 0.0, "title_weight": 0.0}
    yield "plain paragraphs", evidence(*given, **plain)
    yield "evidence, titles and names", evidence(*given)
    yield "  no hits followed", evidence(*given, hits=0)


def table(corpus: Corpus) -> Iterator[tuple[str, Rank]]:
    """Yield what is compared, by name: yardsticks, rivals, units, ablations, what did not help."""
    given = (corpus, EvidenceIndex, "titles", "names")
    yield from yardsticks(corpus)
    yield from rivals(corpus)
    yield "units of 1K, links from titles", units(corpus, corpus.links["titles"])
    yield "units of 1K, links from vectors", units(corpus, corpus.links["vectors"])
    for name in ("lexical", "title", "term"):
        yield f"  {name}_weight=0", evidence(*given, **{f"{name}_weight": 0.0})
    for links, related in (
        ("no links", "no links"),
        ("titles", "no links"),
        ("no links", "names"),
        ("vectors", "no links"),
        ("titles and names", "no links"),
    ):
        yield f"  {links}, {related} related", evidence(corpus, EvidenceIndex, links, related)
    for hits in (1, 3, 5, 20):
        yield f"  hits={hits}", evidence(*given, hits=hits)
    for name, kind in (
        ("  r over all terms", WithQuestionTerms),
        ("  r over vectors", VectorNeighbours),
        ("  + hop vectors", HopVectors),
        ("  + open question terms", OpenTerms),
        ("  + second round", SecondRound),
        ("  PageRank for leads", PageRank),
    ):
        yield name, evidence(corpus, kind, "titles", "names")


def found_all(corpus: Corpus, rank: Rank, budget: int) -> Floats:
    """Return 1.0 for each question whose gold documents are all taken, else 0.0."""
    return np.array(
        [gold <= set(rank(number, budget)) for number, gold in enumerate(corpus.gold)], float
    )


def interval(found: Floats, plain: Floats) -> tuple[float, float, float]:
    """Return the mean difference and its 95 % interval over resampled questions."""
    difference = found - plain
    draws = np.random.default_rng(0).integers(0, len(difference), (10_000, len(difference)))
    low, high = np.percentile(difference[draws].mean(axis=1), [2.5, 97.5])
    return float(difference.mean()), float(low), float(high)


def show(name: str, corpus: Corpus, lines: Iterator[tuple[str, Rank]]) -> None:
    """Print the table of one set."""
    tokens = sum(corpus.sizes) / len(corpus.sizes)
    print(
        f"\n{name}: {len(corpus.questions)} questions, {len(corpus.documents):,} paragraphs of "
        f"{tokens:.0f} tokens; links: "
        + ", ".join(f"{len(pairs):,} {kind}" for kind, pairs in corpus.links.items() if pairs)
    )
    print(f"{'':33}" + "".join(f"{budget:>10,} tokens{'':11}" for budget in BUDGETS) + "ms/query")
    plain: dict[int, Floats] = {}
    for label, rank in lines:
        cells = []
        begin = time.perf_counter()
        for budget in BUDGETS:
            found = found_all(corpus, rank, budget)
            mean, low, high = interval(found, plain.setdefault(budget, found))
            cells.append(f"{found.mean():6.3f} {mean:+.2f} [{low:+.2f}, {high:+.2f}]  ")
        taken = 1000 * (time.perf_counter() - begin) / len(BUDGETS) / len(corpus.questions)
        print(f"{label:33}" + "".join(cells) + f"{taken:8.1f}", flush=True)


def cross_validate(corpora: dict[str, Corpus]) -> None:
    """Choose all settings on two sets, at 2.2K tokens, and check them on the third."""
    names = ("hits", "title_weight", "link_weight", "related_weight", "term_weight")
    grid = list(itertools.product((5, 10), (0.0, 0.5), (0.5, 1.0), (0.3, 0.5), (0.5, 0.7)))
    shares: dict[str, list[float]] = {}
    for name, corpus in corpora.items():
        for setting in grid:
            settings = dict(zip(names, setting, strict=True))
            rank = evidence(corpus, EvidenceIndex, "titles", "names", **settings)
            shares.setdefault(name, []).append(float(found_all(corpus, rank, 2200).mean()))
    print(f"\n{len(grid)} settings (hits, title, link, related, term) at 2.2K tokens")
    for held in corpora:
        means = np.mean([values for name, values in shares.items() if name != held], axis=0)
        best = int(means.argmax())
        print(
            f"  {held:9} chosen on the others: {grid[best]} {shares[held][best]:.3f}; all settings "
            f"{min(shares[held]):.3f} to {max(shares[held]):.3f}; the default "
            f"{shares[held][grid.index((10, 0.5, 1.0, 0.5, 0.7))]:.3f}"
        )


def single_hop(folder: Path, names: Sequence[str]) -> Iterator[tuple[str, Corpus]]:
    """Read and embed sets of questions that one paragraph answers."""
    # Needs the extra "local", and torch.
    from longrag.models import MiniLmEmbedder

    embed = MiniLmEmbedder()
    for name in names:
        step = SINGLE_HOP[name]
        documents: list[Document] = []
        first: dict[str, int] = {}
        for row in rows(folder / f"{name}.corpus.jsonl.gz"):
            first[row["id"]] = len(documents)
            for i, text in enumerate(row.get("paragraphs") or [row["text"]]):
                documents.append(Document(f"{row['id']}#{i}", text, row["title"]))
        questions = list(rows(folder / f"{name}.questions.dev.jsonl.gz"))[::step]
        texts = [row["question"] for row in questions]
        titles, entities = TitleMentions()(documents), SharedEntities()(documents)
        yield (
            name,
            Corpus(
                documents=documents,
                sizes=document_sizes(documents),
                vectors=embed([f"{d.title}. {d.text}" for d in documents], "document"),
                questions=texts,
                question_vectors=embed(texts, "query"),
                gold=[
                    {first[row["gold_ids"][0]] + row.get("gold_paragraphs", [0])[0]}
                    for row in questions
                ],
                links={"titles": titles, "names": entities},
            ),
        )


def main() -> None:
    """Print the tables, or the cross-validation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_data_option(parser)
    parser.add_argument("--cross-validate", action="store_true")
    parser.add_argument("--rivals", action="store_true")
    parser.add_argument("--embedder", choices=("minilm", "lsa"), default="minilm")
    parser.add_argument("--single-hop", nargs="*", choices=SINGLE_HOP, metavar="SET")
    options = parser.parse_args()
    if options.single_hop is not None:
        names = options.single_hop or list(SINGLE_HOP)
        for name, corpus in single_hop(options.data / "b_singlehop", names):
            show(name, corpus, yardsticks(corpus))
        return
    corpora = {name: load(options.data / "a_multihop", name) for name in SETS}
    if options.embedder == "lsa":
        corpora = {name: with_lsa(corpus) for name, corpus in corpora.items()}
    if options.cross_validate:
        cross_validate(corpora)
        return
    for name, corpus in corpora.items():
        lines = table(corpus)
        if options.rivals:
            lines = itertools.chain(yardsticks(corpus), rivals(corpus))
        show(name, corpus, lines)


if __name__ == "__main__":
    main()
