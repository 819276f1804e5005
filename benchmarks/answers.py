"""Ask documentation questions without a model, and look for the line that answers each.

    git clone https://github.com/fastapi/fastapi checkouts/fastapi   # and the other four
    python benchmarks/answers.py checkouts
    python benchmarks/answers.py checkouts --embedder minilm --show

The repositories, the commits at which the lines stand, the questions and the lines are in
``documentation_questions.json``; they were written before anything was measured. A first passage
is useful if it holds one of the lines whole. The control is the first chunk of the same order, as
it stands. The weights of the passages' ranking were first chosen on all 54 questions with LSA, and
on those to FastAPI and Flask with MiniLM; what headings, the rank of retrieval and the share of the
question count, and that a passage goes on to its code, without those to HTTPX and pytest.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from longrag.index_file.filling import FillSettings, fill
from longrag.index_file.models import load_embedder
from longrag.index_file.places import SourceRange, locate
from longrag.index_file.progress import Progress
from longrag.index_file.searching import Answered, IndexFile

_QUESTIONS: Final = Path(__file__).parent / "documentation_questions.json"
_SHOWN: Final = 3


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


def _measure(index: IndexFile, asked: Sequence[Mapping[str, Any]], *, show: bool) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in asked:
        answered = index.ask(one["question"])
        quotes = [quote.place for quote in answered.quotes]
        chunks = list(_chunks(index, answered))[:_SHOWN]
        for name, places in (("passage", quotes), ("chunk", chunks)):
            held = [_holds(index, place, one["lines"]) for place in places]
            total[f"first {name}"] += bool(held and held[0])
            total[f"{_SHOWN} {name}s"] += any(held)
            total[f"{name} characters"] += places[0].end - places[0].start if places else 0
        total["questions"] += 1
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
    arguments = parser.parse_args()
    described = json.loads(_QUESTIONS.read_text("utf-8"))
    columns = [f"{n} {name}" for name in ("passage", "chunk") for n in ("first",)]
    columns += [f"{_SHOWN} passages", f"{_SHOWN} chunks", "passage characters", "chunk characters"]
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
            total = _measure(IndexFile(file), asked, show=arguments.show)
        count = total["questions"]
        for column in columns:
            total[column] //= count if column.endswith("characters") else 1
        print(f"{name:14}{count:10}" + "".join(f"{total[column]:20}" for column in columns))


if __name__ == "__main__":
    main()
