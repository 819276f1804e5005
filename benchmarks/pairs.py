"""Which measures of a long answer a blind list wins: SQuALITY's questions, one story each.

    python benchmarks/pairs.py
    python benchmarks/pairs.py --stories 30

What is read within a budget of tokens: the chunks nearest to the question by latent semantic
analysis, and what no question changes: random chunks, the same without function words, the story's
most frequent words, and its most frequent pairs of words. How much of the four references of some
240 words it holds: by their distinct content words, by the pairs of these that follow one another
in a sentence, and by ``PairRecall``. Means over questions.
"""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np  # noqa: E402
from public_data import add_data_option  # noqa: E402

from longrag.evaluation.datasets import Dataset  # noqa: E402
from longrag.evaluation.datasets.files import read_prepared  # noqa: E402
from longrag.evaluation.metrics import PairRecall  # noqa: E402
from longrag.ingestion import chunk_spans  # noqa: E402
from longrag.models import LsaEmbedder, count_tokens  # noqa: E402
from longrag.models.words import STOPWORDS, content_words, terms  # noqa: E402

BUDGETS = (500, 1000, 2000)
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")
MEASURES = ("words", "pairs", "PairRecall")


def sentences(text: str) -> list[list[tuple[str, str]]]:
    """List the content words of each sentence as stems and as they are written."""
    return [
        [
            (term, part[start:end])
            for term, (start, end) in terms(part)
            if part[start:end].casefold() not in STOPWORDS
        ]
        for part in SENTENCE_END.split(text)
    ]


def telegram(text: str) -> str:
    """Return a text without its function words."""
    return ". ".join(" ".join(form for _, form in words) for words in sentences(text))


def frequent(text: str) -> dict[str, list[str]]:
    """Return a story's words, and its pairs of words, the most frequent first."""
    words: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    forms: dict[str, str] = {}
    for sentence in sentences(text):
        words.update(term for term, _ in sentence)
        pairs.update(pairwise(term for term, _ in sentence))
        for term, form in sentence:
            forms.setdefault(term, form)
    listed = [f"{forms[one]} {forms[other]}." for (one, other), _ in pairs.most_common()]
    return {
        "frequent words": [forms[one] for one, _ in words.most_common()],
        "frequent pairs": listed,
    }


def fill(parts: Sequence[str], budget: int) -> str:
    """Return as many parts as the budget holds."""
    low, high = 0, len(parts)
    while low < high:
        middle = (low + high + 1) // 2
        fits = count_tokens(" ".join(parts[:middle])) <= budget
        low, high = (middle, high) if fits else (low, middle - 1)
    return " ".join(parts[:low])


def take(
    order: Iterable[int], chunks: Sequence[str], tokens: Sequence[int], budget: int
) -> list[str]:
    """Return the chunks of an order that fit."""
    taken = []
    for at in order:
        if tokens[at] <= budget:
            taken.append(chunks[at])
            budget -= tokens[at]
    return taken


def adjacent(texts: Iterable[str]) -> set[tuple[str, str]]:
    """Return the pairs of content words that follow one another in a sentence."""
    return {
        pair
        for text in texts
        for sentence in sentences(text)
        for pair in pairwise(term for term, _ in sentence)
    }


def ask(story: Dataset, shares: dict[tuple[str, int], list[tuple[float, ...]]]) -> None:
    """Add the shares of one story's questions by what is read and the budget."""
    text = story.documents[0].text
    chunks = [text[start:end] for start, end in chunk_spans(text, chunk_size=100)]
    tokens = [count_tokens(chunk) for chunk in chunks]
    lsa = LsaEmbedder(chunks)
    vectors, random = lsa(chunks, "document"), np.random.default_rng(0)
    lists = frequent(text)
    measure = PairRecall([text], [answer for one in story.questions for answer in one.answers])
    for question in story.questions:
        near = np.argsort(-(vectors @ lsa([question.text], "query")[0])).tolist()
        drawn = random.permutation(len(chunks)).tolist()
        short = telegram(" ".join(chunks[at] for at in drawn)).split(" ")
        words = [set(content_words(answer)) for answer in question.answers]
        pairs = [adjacent([answer]) for answer in question.answers]
        for budget in BUDGETS:
            readings = {
                "nearest chunks": take(near, chunks, tokens, budget),
                "random chunks": take(drawn, chunks, tokens, budget),
                "random, no function words": [fill(short, budget)],
                **{name: [fill(listed, budget)] for name, listed in lists.items()},
            }
            for name, read in readings.items():
                held = {word for one in read for word in content_words(one)}
                follow = adjacent(read)
                placed = measure.score(read, question.answers)
                assert placed is not None
                shares.setdefault((name, budget), []).append(
                    (
                        fmean(len(one & held) / len(one) for one in words),
                        fmean(len(one & follow) / len(one) for one in pairs),
                        placed,
                    )
                )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_data_option(parser)
    parser.add_argument("--stories", type=int, help="the first stories alone")
    options = parser.parse_args()
    stem = options.data / "c_longdoc" / "squality"
    whole = read_prepared(f"{stem}.corpus.jsonl.gz", f"{stem}.questions.dev.jsonl.gz")
    shares: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for story in list(replace(whole, each_document=True).parts())[: options.stories]:
        ask(story, shares)
    names = dict.fromkeys(name for name, _ in shares)
    print("| what is read |", " | ".join(f"{one}, {b:,}" for one in MEASURES for b in BUDGETS), "|")
    for name in names:
        cells = [
            f"{fmean(row[at] for row in shares[name, budget]):.3f}"
            for at in range(len(MEASURES))
            for budget in BUDGETS
        ]
        print(f"| {name} |", " | ".join(cells), "|")
    print(f"{len(next(iter(shares.values())))} questions")


if __name__ == "__main__":
    main()
