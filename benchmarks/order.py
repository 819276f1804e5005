"""Share of questions whose evidence is read within a token budget: the order beside its rivals.

    python benchmarks/order.py
    python benchmarks/order.py --sets musique squad --embedder lsa
    python benchmarks/order.py --sets hotpotqa 2wiki musique --parts

HotpotQA, MuSiQue and 2WikiMultihopQA (all gold paragraphs), SQuAD (the gold paragraph of a whole
article), Natural Questions over whole pages (an answer in what is read of the page), PowerShell's
manual (the page that a description is of) and 1,500 linked articles of Wikispeedia (an answer in
what is read of the article). MiniLM's vectors were made beforehand for four of them; for the other
three, and with ``--embedder lsa``, those of latent semantic analysis are made here.

Rivals have the same passages, vectors and words. "Hybrid" is BM25 and cosines scaled to one range
and added, by the best weight of 0.3, 1 and 2 for each set and budget; "dense" and "BM25" are its
parts. They pass over what does not fit, the order ends there. Behind a share stands its 95 %
interval (Wilson), behind a difference that of a paired bootstrap over the questions. The settings
of the order were chosen on these halves of the questions, as is the rivals' weight. With --parts
the order is measured without one of its parts at a time, in place of the rivals.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

# The BLAS library reads these once, when numpy is imported.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from public_data import add_data_option, rows  # noqa: E402

from longrag.evaluation.metrics import paired_difference_interval  # noqa: E402
from longrag.indexing.keywords import KeywordIndex  # noqa: E402
from longrag.ingestion.chunking import chunk_spans  # noqa: E402
from longrag.ingestion.relations import TitleMentions  # noqa: E402
from longrag.ingestion.units import title_head  # noqa: E402
from longrag.models import LsaEmbedder, count_tokens  # noqa: E402
from longrag.retrieval import PassageOrder, fuse_reciprocal_rank  # noqa: E402
from longrag.types import Document  # noqa: E402

BUDGETS = (500, 1000, 2000, 4000)
WEIGHTS = (0.3, 1.0, 2.0)
Vectors = NDArray[np.float32]
Read = Callable[[Mapping[int, str]], bool]
"""Whether what is read, texts by the numbers of their passages, answers a question."""


@dataclass
class Corpus:
    """Passages, the documents they are of, links between these, and questions."""

    passages: list[Document]
    document_of: list[int]
    links: Sequence[tuple[int, int]]
    questions: list[str]
    answered: list[Read]
    vectors: Vectors | None = None
    question_vectors: Vectors | None = None


def multihop(name: str) -> Callable[[Path], Corpus]:
    """Return what reads a set of paragraphs of which a question needs several."""

    def load(data: Path) -> Corpus:
        folder = data / "a_multihop"
        passages = [
            Document(row["id"], row["text"], row["title"])
            for row in rows(folder / f"{name}.corpus.jsonl.gz")
        ]
        number = {passage.id: at for at, passage in enumerate(passages)}
        asked = list(rows(folder / f"{name}.questions.dev.jsonl.gz"))
        return Corpus(
            passages,
            list(range(len(passages))),
            TitleMentions()(passages),
            [row["question"] for row in asked],
            [holds(passages, [number[id_] for id_ in row["gold_ids"]]) for row in asked],
            np.load(folder / f"{name}.vectors.f16.npy").astype(np.float32),
            np.load(folder / f"{name}.question_vectors.dev.f16.npy").astype(np.float32),
        )

    return load


def squad(data: Path) -> Corpus:
    """Read whole articles by their paragraphs, and every fifth question."""
    passages, document_of, first = [], [], {}
    for number, row in enumerate(rows(data / "b_singlehop" / "squad.corpus.jsonl.gz")):
        first[row["id"]] = len(passages)
        for text in row["paragraphs"]:
            passages.append(Document(str(len(passages)), text, row["title"]))
            document_of.append(number)
    asked = list(rows(data / "b_singlehop" / "squad.questions.dev.jsonl.gz"))[::5]
    gold = [
        holds(passages, [first[row["gold_ids"][0]] + row["gold_paragraphs"][0]]) for row in asked
    ]
    return Corpus(passages, document_of, [], [row["question"] for row in asked], gold)


def nq_pages(data: Path) -> Corpus:
    """Read whole pages in chunks of 128 tokens."""
    folder = data / "b_singlehop"
    corpus = chunks(folder / "nq_pages.corpus.jsonl.gz", 128)
    return with_answers(corpus, folder / "nq_pages.questions.dev.jsonl.gz")


def powershell(data: Path) -> Corpus:
    """Read the manual's pages in chunks of 256 tokens; any of a page answers."""
    folder = data / "d_docs"
    corpus = chunks(folder / "powershell.corpus.jsonl.gz", 256)
    number = {row["id"]: at for at, row in enumerate(rows(folder / "powershell.corpus.jsonl.gz"))}
    for row in rows(folder / "powershell.known_item.dev.jsonl.gz"):
        page = number[row["gold_ids"][0]]
        corpus.questions.append(row["question"])
        corpus.answered.append(
            lambda read, page=page: page in {corpus.document_of[at] for at in read}
        )
    return corpus


def wikispeedia(data: Path) -> Corpus:
    """Read the chunks of 1,500 articles that were made beforehand."""
    folder = data / "e_wikispeedia"
    cut = list(rows(folder / "subset1500.chunks.jsonl.gz"))
    number = {id_: at for at, id_ in enumerate(dict.fromkeys(row["doc"] for row in cut))}
    articles = {
        row["id"]: row
        for row in rows(folder / "wikispeedia.corpus.jsonl.gz")
        if row["id"] in number
    }
    texts = {id_: "\n\n".join(row["paragraphs"]) for id_, row in articles.items()}
    corpus = Corpus(
        [
            Document(
                str(at), texts[row["doc"]][row["start"] : row["end"]], articles[row["doc"]]["title"]
            )
            for at, row in enumerate(cut)
        ],
        [number[row["doc"]] for row in cut],
        [
            (number[id_], number[to])
            for id_ in number
            for to in articles[id_]["links"]
            if to in number
        ],
        [],
        [],
        np.load(folder / "subset1500.chunk_vectors.f16.npy").astype(np.float32),
    )
    with_answers(corpus, folder / "wikispeedia.questions.dev.jsonl.gz", number)
    corpus.question_vectors = np.load(folder / "wikispeedia.question_vectors.dev.f16.npy").astype(
        np.float32
    )
    return corpus


SETS: dict[str, Callable[[Path], Corpus]] = {
    "hotpotqa": multihop("hotpotqa"),
    "2wiki": multihop("2wiki"),
    "musique": multihop("musique"),
    "squad": squad,
    "nq_pages": nq_pages,
    "powershell": powershell,
    "wikispeedia": wikispeedia,
}


def chunks(path: Path, size: int) -> Corpus:
    """Cut the documents of a file."""
    corpus = Corpus([], [], [], [], [])
    documents = list(rows(path))
    number = {row["id"]: at for at, row in enumerate(documents)}
    for row in documents:
        text = row.get("text") or "\n\n".join(row["paragraphs"])
        for start, end in chunk_spans(text, chunk_size=size, count_tokens=count_tokens):
            corpus.passages.append(
                Document(str(len(corpus.passages)), text[start:end], row["title"])
            )
            corpus.document_of.append(number[row["id"]])
    links = [(number[row["id"]], number[to]) for row in documents for to in row.get("links", ())]
    corpus.links = links
    return corpus


def with_answers(corpus: Corpus, path: Path, number: dict[str, int] | None = None) -> Corpus:
    """Add questions that are answered where an answer is in what is read of the gold document."""
    for row in rows(path):
        gold = row["gold_ids"][0]
        document = number[gold] if number else int(gold.rpartition("_")[2])
        answers = [answer.casefold() for answer in row["answers"]]

        def answered(
            read: Mapping[int, str], document: int = document, answers: list[str] = answers
        ) -> bool:
            own = (read[at] for at in sorted(read) if corpus.document_of[at] == document)
            text = " ".join(own).casefold()
            return any(answer in text for answer in answers)

        corpus.questions.append(row["question"])
        corpus.answered.append(answered)
    return corpus


def holds(passages: Sequence[Document], gold: Iterable[int]) -> Read:
    """Tell whether all of some passages are read, none of them cut."""
    whole = {at: passages[at].text for at in gold}
    return lambda read: whole.items() <= read.items()


def fill(ranked: Sequence[int], sizes: Sequence[int], budget: int) -> list[int]:
    """Take passages best first, passing over what does not fit."""
    taken, room, smallest = [], budget, min(sizes)
    for at in ranked:
        if sizes[at] <= room:
            taken.append(at)
            room -= sizes[at]
        if room < smallest:
            break
    return taken


def rankings(corpus: Corpus) -> Iterator[dict[str, list[int]]]:
    """Yield each question's passages, best first, by every rival."""
    width = len(str(len(corpus.passages)))
    texts = [f"{one.title}\n{one.text}" for one in corpus.passages]
    keywords = KeywordIndex.build([f"{at:0{width}}" for at in range(len(texts))], texts)
    for question, vector in zip(corpus.questions, corpus.question_vectors, strict=True):
        dense, sparse = corpus.vectors @ vector, keywords.scores(question)
        scaled = (dense - dense.mean()) / ((dense.max() - dense.mean()) or 1)
        scores = {"dense": scaled, "BM25": sparse}
        for weight in WEIGHTS:
            scores[f"hybrid {weight}"] = scaled + weight * sparse / (sparse.max() or 1)
        ranked = {
            name: np.argsort(-values, kind="stable")[:1000].tolist()
            for name, values in scores.items()
        }
        places = [{at: -rank for rank, at in enumerate(ranked[n])} for n in ("dense", "BM25")]
        yield {**ranked, "reciprocal ranks": list(fuse_reciprocal_rank(places))}


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927)."""
    z = 1.96
    middle = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle - spread) / (1 + z * z / count), (middle + spread) / (1 + z * z / count)


PARTS: dict[str, dict[str, float]] = {
    "as it is": {"_RARITY": 1.5},
    "no words count less": {"_FADE": 1.0},
    "nothing is followed": {"_FOLLOWED": 0},
    "no names are followed": {"_MOST_HOLDERS": 0},
    "no links are followed": {"_FULL_LINKS": 1e-9},
    "no titles in the question": {"_TITLE": 0.0},
    "no words of the question": {"_WORDS": 0.0},
    "rarity to the power 1, as in BM25": {"_RARITY": 1.0},
    "rarity to the power 2": {"_RARITY": 2.0},
}


def read(corpus: Corpus, order: PassageOrder) -> list[list[dict[int, str]]]:
    """Return what is read for each question within each budget."""
    number = {passage.id: at for at, passage in enumerate(corpus.passages)}
    return [
        [
            {
                number[one.best_chunk.id]: one.best_chunk.text
                for one in order.read(question, vector, token_budget=budget)
            }
            for budget in BUDGETS
        ]
        for question, vector in zip(corpus.questions, corpus.question_vectors, strict=True)
    ]


def measure_parts(name: str, corpus: Corpus) -> None:
    """Print what one set loses without each part."""
    order = PassageOrder(
        corpus.passages, corpus.vectors, corpus.links, document_of=corpus.document_of
    )
    print(f"\n{name}\n\n| | " + " | ".join(f"{budget:,}" for budget in BUDGETS) + " |")
    print("|---|" + "---|" * len(BUDGETS))
    for part, settings in PARTS.items():
        with patch.multiple("longrag.retrieval.order", **settings):
            shares = judge(corpus, read(corpus, order)).mean(axis=0)
        print(f"| {part} | " + " | ".join(f"{share:.3f}" for share in shares) + " |", flush=True)


def measure(name: str, corpus: Corpus) -> None:
    """Print the rows of one set."""
    begun = time.process_time()
    order = PassageOrder(
        corpus.passages, corpus.vectors, corpus.links, document_of=corpus.document_of
    )
    built, begun = time.process_time() - begun, time.process_time()
    found = read(corpus, order)
    milliseconds = (time.process_time() - begun) / len(found) / len(BUDGETS) * 1000
    hits = {"order": judge(corpus, found)}
    sizes = [count_tokens(title_head(one.title, one.text) + one.text) for one in corpus.passages]
    for number, ranked in enumerate(rankings(corpus)):
        for rival, passages in ranked.items():
            filled = [
                {at: corpus.passages[at].text for at in fill(passages, sizes, budget)}
                for budget in BUDGETS
            ]
            hits.setdefault(rival, np.zeros((len(found), len(BUDGETS))))
            hits[rival][number] = [corpus.answered[number](one) for one in filled]
    hybrids = [name for name in hits if name.startswith("hybrid")]
    hybrid = np.stack(
        [max((hits[name][:, at] for name in hybrids), key=np.mean) for at in range(len(BUDGETS))],
        axis=1,
    )
    count = len(found)
    print(
        f"\n{name}: {len(corpus.passages):,} passages, {count:,} questions;"
        f" built in {built:.1f} s of CPU, {milliseconds:.1f} ms a question\n"
    )
    print("| | " + " | ".join(f"{budget:,}" for budget in BUDGETS) + " |")
    print("|---|" + "---|" * len(BUDGETS))
    for row, values in hits.items():
        cells = []
        for at in range(len(BUDGETS)):
            share = float(values[:, at].mean())
            low, high = wilson(share, count)
            cells.append(f"{share:.3f} [{low:.2f}, {high:.2f}]")
        print(f"| {row} | " + " | ".join(cells) + " |")
    cells = []
    for at in range(len(BUDGETS)):
        gain = paired_difference_interval(hits["order"][:, at].tolist(), hybrid[:, at].tolist())
        cells.append(f"{gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]")
    print("| order less the best hybrid | " + " | ".join(cells) + " |", flush=True)


def judge(corpus: Corpus, found: Sequence[Sequence[Mapping[int, str]]]) -> NDArray[np.float64]:
    """Tell for each question and budget whether what was read answers it; shape as ``found``."""
    return np.array(
        [
            [answered(read) for read in own]
            for answered, own in zip(corpus.answered, found, strict=True)
        ],
        np.float64,
    )


def main() -> None:
    """Measure the sets that are named."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--parts", action="store_true", help="leave out one part at a time")
    parser.add_argument("--embedder", choices=("minilm", "lsa"), default="minilm")
    add_data_option(parser)
    options = parser.parse_args()
    for name in options.sets:
        corpus = SETS[name](options.data)
        if corpus.vectors is None or options.embedder == "lsa":
            texts = [f"{one.title}. {one.text}" for one in corpus.passages]
            embed = LsaEmbedder(texts)
            corpus.vectors = np.asarray(embed(texts, "document"), np.float32)
            corpus.question_vectors = np.asarray(embed(corpus.questions, "query"), np.float32)
        (measure_parts if options.parts else measure)(name, corpus)


if __name__ == "__main__":
    main()
