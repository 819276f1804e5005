"""How often the answer survives compression, against sentences taken at random or from the start.

    python benchmarks/compression_quality.py
    python benchmarks/compression_quality.py --questions 300 --ratios 0.2 0.4

HotpotQA: the ten paragraphs that come with a question (``context_ids``). SQuAD: the gold paragraph
and the four on either side of it. The sentences of all of them are compressed as one context with
the LSA embedder, fitted on all contexts of the set. "answer" is the share of questions whose answer
string is still in the context, of those where it was before; "tokens" what was kept. The
baselines choose under the same limit: in the order of the texts, or in a random order.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from public_data import add_data_option, rows

from longrag.calls import run
from longrag.evaluation import metrics
from longrag.models import LsaEmbedder
from longrag.refinement import compress_extractive
from longrag.refinement.pieces import Compressed

AROUND = 4

Question = tuple[str, list[str], list[str]]
"""The question, its answers and the texts that are compressed."""

Ranking = Callable[[Any], Any]
"""What answers a request for vectors."""


def hotpotqa(data: Path) -> Iterator[Question]:
    """Yield the questions with their ten paragraphs."""
    folder = data / "a_multihop"
    texts = {row["id"]: row["text"] for row in rows(folder / "hotpotqa.corpus.jsonl.gz")}
    for row in rows(folder / "hotpotqa.questions.dev.jsonl.gz"):
        yield row["question"], row["answers"], [texts[id_] for id_ in row["context_ids"]]


def squad(data: Path) -> Iterator[Question]:
    """Yield the questions with the paragraphs around the gold one."""
    folder = data / "b_singlehop"
    texts = {row["id"]: row["paragraphs"] for row in rows(folder / "squad.corpus.jsonl.gz")}
    for row in rows(folder / "squad.questions.dev.jsonl.gz"):
        at = row["gold_paragraphs"][0]
        around = texts[row["gold_ids"][0]][max(0, at - AROUND) : at + AROUND + 1]
        yield row["question"], row["answers"], around


def by_order(draw: random.Random | None) -> Ranking:
    """Rank sentences by their order, or by a random one."""

    def answer(request: Any) -> Any:
        if request.role == "query":
            return np.ones((1, 1), np.float32)
        order = list(range(len(request.texts)))
        if draw is not None:
            draw.shuffle(order)
        return -np.array(order, np.float32)[:, np.newaxis]

    return answer


def by_nearness(embedder: LsaEmbedder) -> Ranking:
    """Rank sentences as they are ranked in earnest."""
    return lambda request: embedder(request.texts, request.role)


def report(name: str, questions: Sequence[Question], ranking: Ranking, ratio: float) -> None:
    """Print what is left of the answers."""
    found: list[bool] = []
    tokens: list[float] = []
    for question, answers, texts in questions:
        kept: Compressed = run(compress_extractive(question, texts, ratio=ratio), ranking)
        tokens.append(kept.tokens / kept.original_tokens)
        found.append(bool(metrics.answer_recall([kept.text], answers)))
    print(f"{name:36} {np.mean(tokens):7.3f} {np.mean(found):7.3f}")


def main() -> None:
    """Print a table for each set."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_data_option(parser)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.2, 0.4])
    asked = parser.parse_args()
    for name, load in (("HotpotQA", hotpotqa), ("SQuAD", squad)):
        every = list(load(asked.data))
        random.Random(0).shuffle(every)
        questions = [it for it in every if metrics.answer_recall(it[2], it[1])][: asked.questions]
        corpus = list(dict.fromkeys(text for it in questions for text in it[2]))
        embedder = LsaEmbedder(corpus)
        print(f"\n{name}, {len(questions)} questions{'':17} tokens  answer")
        for ratio in asked.ratios:
            report(f"{ratio}: nearest to the question", questions, by_nearness(embedder), ratio)
            report(f"{ratio}: in the order of the texts", questions, by_order(None), ratio)
            report(f"{ratio}: at random", questions, by_order(random.Random(0)), ratio)


if __name__ == "__main__":
    main()
