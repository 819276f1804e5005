"""Ask documentation questions without a model, and look for the line that answers each.

    git clone https://github.com/fastapi/fastapi checkouts/fastapi   # and the other six
    python benchmarks/answers.py checkouts
    python benchmarks/answers.py checkouts --embedder minilm --show

The repositories, the commits at which the lines stand, the questions and the lines are in
``documentation_questions.json``; they were written before anything was measured. A first passage
is useful if it holds one of the lines whole. The controls are single chunks as they stand: the
first of the same order, the best by BM25 (``KeywordIndex``), and the best of BM25 and the embedder
added up (``fuse``). "answered" counts questions that get any passage; with ``--refusals`` the
questions are also asked of each other manual, and ten that no manual speaks of.

The weights of the passages' ranking were first chosen on 54 questions with LSA, and on those to
FastAPI and Flask with MiniLM; what headings, the rank of retrieval and the share of the question
count, that a passage goes on to its code, and what is not answered, without those to HTTPX and
pytest; those to Click and Pydantic chose nothing. A page of HTTPX showed that dots announce code.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from pathlib import Path
from typing import Any, Final

import numpy as np

from longrag.calls import run
from longrag.index_file.filling import FillSettings, fill
from longrag.index_file.models import load_embedder
from longrag.index_file.places import SourceRange, locate
from longrag.index_file.progress import Progress
from longrag.index_file.searching import Answered, IndexFile
from longrag.indexing import KeywordIndex
from longrag.retrieval import fuse
from longrag.retrieval.units import embed_query

_QUESTIONS: Final = Path(__file__).parent / "documentation_questions.json"
_SHOWN: Final = 3
_CANDIDATES: Final = 100
_FOREIGN: Final = (
    "How do I bake bread?",
    "How do I change a flat tyre?",
    "What is the capital of France?",
    "How do I water tomatoes?",
    "When should I prune roses?",
    "Who painted the Mona Lisa?",
    "How do I file my taxes?",
    "How do I train for a marathon?",
    "How do I get red wine out of a carpet?",
    "What does a violin cost?",
)


def _holds(index: IndexFile, place: SourceRange | None, lines: Mapping[str, Sequence[str]]) -> bool:
    if place is None or place.path not in lines:
        return False
    stretch = index.documents[place.path].text[place.start : place.end]
    return any(line in stretch for line in lines[place.path])


def _chunks(index: IndexFile, answered: Answered) -> Iterator[SourceRange]:
    """Yield the chunks that were read, as they were ranked."""
    ranked = [(p.rank, one.unit.unit, p) for one in answered.found for p in one.unit.passages]
    for _, unit, passage in sorted(ranked, key=lambda item: item[0]):
        for member in unit.members:
            start, end = max(member.start, passage.start), min(member.end, passage.end)
            if start < end:
                at = member.doc_start - member.start
                yield locate(index.documents[member.doc_id], at + start, at + end)


class _Rivals:
    """The best chunk by keywords alone, and by keywords and vectors added up."""

    def __init__(self, index: IndexFile) -> None:
        self._index = index
        searched = index.units.view().index
        self._chunks = {chunk.id: chunk for chunk in searched.chunks}
        self._vectors = searched.index.vectors_of(np.arange(len(self._chunks)))
        self._words = KeywordIndex.build(
            list(self._chunks), [f"{one.title}\n{one.text}" for one in self._chunks.values()]
        )

    def best(self, question: str) -> dict[str, SourceRange]:
        sparse = dict(self._words.search(question, _CANDIDATES))
        vector = run(embed_query([question]), self._index.embed)
        scores = dict(zip(self._chunks, (self._vectors @ vector).tolist(), strict=True))
        dense = dict(nlargest(_CANDIDATES, scores.items(), key=lambda pair: pair[1]))
        ranked = {"bm25": sparse, "hybrid": fuse(sparse, dense)}
        return {name: self._place(next(iter(ids))) for name, ids in ranked.items() if ids}

    def _place(self, id_: str) -> SourceRange:
        chunk = self._chunks[id_]
        document = self._index.documents[chunk.doc_id]
        return locate(document, chunk.doc_start, chunk.doc_end)


def _measure(index: IndexFile, asked: Sequence[Mapping[str, Any]], *, show: bool) -> Counter[str]:
    total: Counter[str] = Counter()
    rivals = _Rivals(index)
    for one in asked:
        answered = index.ask(one["question"])
        quotes = [quote.place for quote in answered.quotes]
        chunks = list(_chunks(index, answered))[:_SHOWN]
        for name, places in (("passage", quotes), ("chunk", chunks)):
            held = [_holds(index, place, one["lines"]) for place in places]
            total[f"first {name}"] += bool(held and held[0])
            total[f"{_SHOWN} {name}s"] += any(held)
            first = next(iter(places), None)
            total[f"{name} characters"] += first.end - first.start if first else 0
        for name, best in rivals.best(one["question"]).items():
            total[f"best by {name}"] += _holds(index, best, one["lines"])
        total["questions"] += 1
        total["answered"] += bool(quotes)
        if show:
            print(f"\n=== {one['question']}\n{answered.answer}")
            print(*(f"[{quote.place}] {' > '.join(quote.headings)}" for quote in answered.quotes))
    return total


def main() -> None:
    """Print one line for each corpus."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkouts", type=Path, help="holds the repositories by their names")
    parser.add_argument("--embedder", default="lsa", choices=["lsa", "minilm", "minilm-int8"])
    parser.add_argument("--show", action="store_true", help="print every answer")
    parser.add_argument("--refusals", action="store_true", help="ask what is not to be answered")
    arguments = parser.parse_args()
    described = json.loads(_QUESTIONS.read_text("utf-8"))
    columns = ["answered", "first passage", "first chunk", "best by bm25", "best by hybrid"]
    columns += [f"{_SHOWN} passages", f"{_SHOWN} chunks", "passage characters", "chunk characters"]
    columns += ["others refused", "foreign refused"] if arguments.refusals else []
    print(f"{'corpus':14}{'questions':>10}" + "".join(f"{name:>20}" for name in columns))
    for name, corpus in described["corpora"].items():
        with tempfile.TemporaryDirectory() as folder:
            settings = FillSettings(
                embedder=arguments.embedder,
                load_embedder=lambda: load_embedder(arguments.embedder, {}),
            )
            file = str(Path(folder) / "index.db")
            fill(str(arguments.checkouts / name / corpus["folder"]), file, settings, Progress())
            asked = [one for one in described["questions"] if one["corpus"] == name]
            index = IndexFile(file)
            total = _measure(index, asked, show=arguments.show)
            if arguments.refusals:
                others = [q["question"] for q in described["questions"] if q["corpus"] != name]
                total["others refused"] = sum(not index.ask(one).quotes for one in others)
                total["foreign refused"] = sum(not index.ask(one).quotes for one in _FOREIGN)
        count = total["questions"]
        for column in columns:
            total[column] //= count if column.endswith("characters") else 1
        print(f"{name:14}{count:10}" + "".join(f"{total[column]:20}" for column in columns))


if __name__ == "__main__":
    main()
