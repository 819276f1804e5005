"""Measure the extractive reader on single-hop questions whose source document is given.

    python benchmarks/extractive_reader.py
    python benchmarks/extractive_reader.py --questions 2000 --seed 1

For each set: the share of questions whose answer string occurs in the first passage and in all
three, the characters of the first, the share of questions with a fact, exact match of the facts
that are told (best of the accepted answers), and milliseconds of CPU a question.
The data folder holds ``b_singlehop/{squad,nq_open,nq_pages}`` as gzip JSON lines.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from public_data import add_data_option, rows

from longrag.evaluation.metrics import answer_recall, exact_match
from longrag.synthesis.excerpts import extract_excerpts
from longrag.synthesis.extractive import extract_fact

Case = tuple[str, list[str], list[tuple[str, str]]]


def cases(folder: Path, name: str, whole: bool) -> Iterator[Case]:
    """Yield question, accepted answers and the one document to read."""
    corpus = {row["id"]: row for row in rows(folder / f"{name}.corpus.jsonl.gz")}
    for row in rows(folder / f"{name}.questions.dev.jsonl.gz"):
        document = corpus[row["gold_ids"][0]]
        paragraphs = document.get("paragraphs") or [document["text"]]
        if not whole:
            paragraphs = [paragraphs[row["gold_paragraphs"][0]]]
        yield row["question"], row["answers"], [(document["title"], "\n\n".join(paragraphs))]


def measure(chosen: list[Case]) -> dict[str, float]:
    """Average over the questions."""
    totals: Counter[str] = Counter()
    for question, accepted, documents in chosen:
        start = time.process_time()
        quotes = [found.text for found in extract_excerpts(question, documents)]
        fact = extract_fact(question, quotes[0]) if quotes else ""
        totals["ms/question"] += 1000 * (time.process_time() - start)
        totals["in first"] += bool(answer_recall(quotes[:1], accepted))
        totals["in three"] += bool(answer_recall(quotes, accepted))
        totals["characters"] += len(quotes[0]) if quotes else 0
        totals["facts"] += bool(fact)
        totals["exact"] += exact_match(fact, accepted) if fact else 0
    exact = totals["exact"] / max(1, totals["facts"])
    return {name: total / len(chosen) for name, total in totals.items()} | {"exact": exact}


def main() -> None:
    """Print one line for each set."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_data_option(parser)
    parser.add_argument("--questions", type=int, default=500, help="at most this many of each set")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder = arguments.data / "b_singlehop"
    columns = ("in first", "in three", "characters", "facts", "exact", "ms/question")
    print(f"{'set':24}{'questions':>10}" + "".join(f"{name:>13}" for name in columns))
    for label, name, whole in (
        ("squad, gold paragraph", "squad", False),
        ("squad, whole article", "squad", True),
        ("nq_open, gold passage", "nq_open", True),
        ("nq_pages, whole page", "nq_pages", True),
    ):
        pool = list(cases(folder, name, whole))
        chosen = random.Random(arguments.seed).sample(pool, min(len(pool), arguments.questions))
        found = measure(chosen)
        line = "".join(f"{found[name]:13.3f}" for name in columns)
        print(f"{label:24}{len(chosen):10}{line}")


if __name__ == "__main__":
    main()
