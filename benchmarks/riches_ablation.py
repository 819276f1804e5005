"""What each part of RICHES does for the answers: the protocol of its Tables 3 to 7.

    python benchmarks/riches_ablation.py --seeds 3 --questions 400
    python benchmarks/riches_ablation.py --model MODEL --corpus FOLDER --questions-file QUESTIONS

Without a model of one's own: a small invented world, of which a model of half a million parameters
remembers an outdated state (``examples/riches_world``); it is trained once for each seed, some two
minutes on one core, and kept in the cache. All seeds are pooled.

With one: MODEL is a folder or a name that transformers loads, FOLDER holds Markdown or text, and
QUESTIONS has one JSON object a line with "question", "answers", and, as far as they are known,
"doc_ids" of the documents (paths in FOLDER) or "keys", the texts, that answer it, and "hops".

EM and F1 compare answers. "recall" is the share of the evidence needed that was retrieved, keys or,
where these are not known, documents. "attributed" is the share of answers that are in what was
retrieved. After each mean is its 95 % interval over the questions;
differences are paired, question by question. The retriever of the baselines embeds the same keys
with latent semantic analysis, or with MiniLM if asked.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.riches_baselines import (
    RICHES_DECOMPOSE,
    RICHES_READER,
    BaselineAnswer,
    KeySearch,
    iterative,
    no_retrieval,
    search_and_generate,
)
from benchmarks.riches_losses import IndexedKeys, loss, loss_counts
from examples.riches_world.answering import MAX_NEW_TOKENS, complete
from examples.riches_world.train import load_or_train
from examples.riches_world.world import World, ask_questions, make_world, without_answers
from longrag.calls import Flow, Generate, Search
from longrag.decoding import RichesDecoder, parse_answer, riches_prompt
from longrag.evaluation.metrics import (
    Estimate,
    answer_recall,
    exact_match,
    mean_interval,
    paired_difference_interval,
    token_f1,
)
from longrag.generation import Generation
from longrag.indexing import KeyIndex
from longrag.ingestion import read_documents, sentence_keys
from longrag.ingestion.key_extraction import paragraph_keys, title_keys
from longrag.models import LsaEmbedder, MiniLmEmbedder, TransformersLanguageModel
from longrag.prompts import (
    RICHES_MULTI_HOP,
    RICHES_SINGLE_HOP,
    RICHES_STOP,
)
from longrag.types import Document, Key


@dataclass(frozen=True)
class Asked:
    """A question, what answers it, and the keys or documents that prove it."""

    text: str
    answers: Sequence[str]
    keys: Sequence[str] = ()
    doc_ids: Sequence[str] = ()
    hops: int = 1
    id: str = ""


@dataclass(frozen=True)
class Row:
    """What came of one question."""

    correct: bool
    f1: float
    recall: float | None
    attributed: bool
    id: str
    why: str | None = None
    calls: int = 0


@dataclass
class Setting:
    """One model with one corpus and its questions by hops; ``templates`` by form and hops."""

    model: Any
    tokenizer: Any
    language_model: TransformersLanguageModel
    documents: Sequence[Document]
    keys: Mapping[str, Sequence[Key]]
    main_key: str
    questions: Mapping[int, Sequence[Asked]]
    template: Callable[[str, int], str]
    max_new_tokens: int = MAX_NEW_TOKENS
    batch_size: int = 50
    variants: Mapping[str, tuple[Sequence[Key], Mapping[int, Sequence[Asked]]]] = field(
        default_factory=dict
    )

    def index(self, keys: Sequence[Key]) -> KeyIndex:
        """Index some keys with the model's tokenizer."""
        return KeyIndex.from_keys(keys, tokenizer=self.language_model.tokenizer)

    def complete(self, prompts: Sequence[str]) -> list[str]:
        """Let the model continue without a constraint."""
        return complete(
            self.model,
            self.tokenizer,
            prompts,
            max_new_tokens=self.max_new_tokens,
            batch_size=self.batch_size,
        )


# What is compared.


def riches(
    setting: Setting,
    hops: int,
    keys: Sequence[Key],
    questions: Sequence[Asked],
    *,
    form: str = "passage",
    all_hops: bool = False,
    **settings: Any,
) -> tuple[list[Row], list[Generation]]:
    """Decode answers to questions, and grade them.

    An output has one span at least, or as many as hops: a beam that is not adaptive would end most
    outputs before evidence is written, since a short text is more probable than a long one.
    """
    index = setting.index(keys)
    decoder = RichesDecoder(
        setting.language_model,
        index,
        documents=setting.documents,
        max_new_tokens=setting.max_new_tokens,
        stop=RICHES_STOP,
        min_spans=hops if all_hops else 1,
        **settings,
    )
    template = setting.template(form, hops)
    # A hypothesis is a row as well.
    step = max(1, setting.batch_size // 3)
    outputs: list[Generation] = []
    for first in range(0, len(questions), step):
        texts = [question.text for question in questions[first : first + step]]
        prompts = [riches_prompt(text, template) for text in texts]
        outputs += decoder.batch(prompts, queries=texts if form == "title" else None)
    return [
        grade_decoded(question, output, index, setting)
        for question, output in zip(questions, outputs, strict=True)
    ], outputs


def grade_decoded(question: Asked, output: Generation, index: KeyIndex, setting: Setting) -> Row:
    """Grade an output of the decoder, and tell why a question was lost where that is known."""
    quoted = [span.text for span in output.spans]
    row = grade(question, parse_answer(output), quoted, output.doc_ids)
    row = replace(row, calls=output.usage.calls)
    judged = {"correct": row.correct, "entailed": row.attributed}
    if question.keys:
        indexed = IndexedKeys(index, setting.language_model.tokenizer)
        why = loss(**judged, retrieved=quoted, indexed=indexed, gold_keys=question.keys)
    elif question.doc_ids:
        documents = frozenset(index.doc_ids)
        why = loss(
            **judged, retrieved=output.doc_ids, indexed=documents, gold_docs=question.doc_ids
        )
    else:
        return row
    return replace(row, why=why)


def baseline(
    setting: Setting,
    questions: Sequence[Asked],
    flow: Callable[[str], Flow[BaselineAnswer]],
    search: KeySearch | None = None,
) -> list[Row]:
    """Answer questions by flows, all of whose prompts are written side by side."""
    answered = side_by_side((flow(question.text) for question in questions), setting, search)
    return [
        grade(
            question,
            found.answer,
            [hit.chunk.text for hit in found.evidence],
            [hit.chunk.doc_id for hit in found.evidence],
        )
        for question, found in zip(questions, answered, strict=True)
    ]


def side_by_side(
    flows: Iterable[Flow[BaselineAnswer]], setting: Setting, search: KeySearch | None
) -> list[BaselineAnswer]:
    """Drive flows in step, so that the model is asked for many texts at once."""
    running = dict(enumerate(flows))
    done: dict[int, BaselineAnswer] = {}
    send: dict[int, list[Any] | None] = dict.fromkeys(running)
    while running:
        wanted: dict[int, Any] = {}
        for number, flow in list(running.items()):
            try:
                (wanted[number],) = flow.send(send[number])  # type: ignore[arg-type]
            except StopIteration as over:
                done[number] = over.value
                del running[number]
        prompts = {n: r.prompt for n, r in wanted.items() if isinstance(r, Generate)}
        send = dict(
            zip(prompts, ([text] for text in setting.complete(list(prompts.values()))), strict=True)
        )
        for number, request in wanted.items():
            if isinstance(request, Search) and search is not None:
                send[number] = [search(request)]
    return [done[number] for number in sorted(done)]


def grade(question: Asked, answer: str, retrieved: Sequence[str], doc_ids: Sequence[str]) -> Row:
    """Compare an answer and its evidence with what is known of the question."""
    gold, found = (question.keys, retrieved) if question.keys else (question.doc_ids, doc_ids)
    return Row(
        correct=bool(answer) and exact_match(answer, question.answers),
        f1=token_f1(answer, question.answers) if answer else 0.0,
        recall=sum(one in found for one in gold) / len(gold) if gold else None,
        attributed=bool(answer) and bool(retrieved) and bool(answer_recall(retrieved, [answer])),
        id=question.id,
    )


def hits_at_1(setting: Setting, kind: str, questions: Sequence[Asked]) -> list[bool]:
    """Tell for each question whether the first span decoded is evidence of the answer.

    It is where its first source is a document that answers the question, and an answer is in
    the key, or in the passage first in rank under a heading.
    """
    form = "passage" if kind == setting.main_key else kind.removesuffix(" with title")
    texts = {document.id: document.text for document in setting.documents}
    _, outputs = riches(setting, 1, setting.keys[kind], questions, form=form, max_spans=1)
    hits = []
    for question, output in zip(questions, outputs, strict=True):
        span = output.spans[0] if output.spans else None
        if span is None:
            hits.append(False)
            continue
        source = span.sources[0]
        shown = texts[source.doc_id][source.start : source.end] if kind == "title" else span.text
        gold = not question.doc_ids or source.doc_id in question.doc_ids
        hits.append(gold and bool(answer_recall([shown], question.answers)))
    return hits


# The two settings: the invented world, and a model and a corpus of one's own.


def world_setting(seed: int, count: int, cache: Path) -> Setting:
    """Make a world and the model that remembers its outdated state."""
    model, tokenizer = load_or_train(cache / f"seed-{seed}", seed=seed)
    world, turned = make_world(seed), make_world(seed, object_first=0.3)
    questions = _by_hops(world, count, seed)
    forms = {
        "context": "question: {question}\ncontext: {passage}\nanswer:",
        "steps": "question: {question}\nsteps:\n{steps}",
    }
    return Setting(
        model=model,
        tokenizer=tokenizer,
        language_model=TransformersLanguageModel(model, tokenizer),
        documents=world.documents,
        keys={**document_keys(world.documents), "proposition": world.keys},
        main_key="proposition",
        questions=questions,
        template=lambda form, _: forms.get(form, f"question: {{question}}\n{form}:"),
        variants={
            "object first": (turned.keys, _by_hops(turned, count, seed)),
            "absent": (
                without_answers(world, ask_questions(world, count, hops=1)),
                {1: questions[1]},
            ),
        },
    )


def _by_hops(world: World, count: int, seed: int) -> dict[int, list[Asked]]:
    return {
        hops: [
            Asked(one.text, [one.answer], one.keys, one.doc_ids, hops, f"{seed} {hops} {number}")
            for number, one in enumerate(ask_questions(world, count, hops=hops))
        ]
        for hops in (1, 2)
    }


def own_setting(options: argparse.Namespace) -> Setting:
    """Load a model, a corpus and questions."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(options.model, use_safetensors=True)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    documents = read_documents(options.corpus)
    lines = options.questions_file.read_text(encoding="utf-8").splitlines()
    found: dict[int, list[Asked]] = {}
    for row in map(json.loads, filter(str.strip, lines)):
        asked = Asked(
            row["question"],
            row["answers"],
            row.get("keys", ()),
            row.get("doc_ids", ()),
            row.get("hops", 1),
            row["question"],
        )
        found.setdefault(asked.hops, []).append(asked)
    return Setting(
        model=model,
        tokenizer=tokenizer,
        language_model=TransformersLanguageModel(model, tokenizer),
        documents=documents,
        keys=document_keys(documents),
        main_key=options.key,
        questions={hops: rows[: options.questions] for hops, rows in sorted(found.items())},
        template=_own_template,
        max_new_tokens=options.max_new_tokens,
        batch_size=options.batch_size,
    )


def _own_template(form: str, hops: int) -> str:
    """Return the prompt of a form; without thoughts, its examples have no keywords either."""
    if form in ("context", "steps"):
        return {"context": RICHES_READER, "steps": RICHES_DECOMPOSE}[form]
    template = RICHES_MULTI_HOP if hops > 1 else RICHES_SINGLE_HOP
    return re.sub(r"keyword:[^<\n]*<<", "<<", template) if form == "evidence" else template


def document_keys(documents: Sequence[Document]) -> dict[str, list[Key]]:
    """Make the keys of Table 3 that need no language model."""
    return {
        "title": title_keys(documents),
        "paragraph with title": paragraph_keys(documents, with_title=True),
        "paragraph": paragraph_keys(documents),
        "sentence with title": sentence_keys(documents, with_title=True),
        "sentence": sentence_keys(documents),
    }


# The tables.

Results = dict[str, dict[int, list[Row]]]
VERBATIM = "keys of the corpus, from documents that have them"


MAIN: Mapping[str, Mapping[str, Any]] = {
    "beam 10": {},
    "beam 1": {"beam_size": 1},
    "same, spans for all hops": {"adaptive": False, "all_hops": True},
}
OTHERS: Mapping[str, Mapping[str, Any]] = {
    "beam 5": {"beam_size": 5},
    "exact": {"search": "exact"},
    "thoughts, not adaptive": {"adaptive": False},
    "no thoughts": {"form": "evidence"},
    "no thoughts, not adaptive": {"form": "evidence", "adaptive": False},
}


def decoded(
    setting: Setting,
    settings: Mapping[str, Mapping[str, Any]],
    count: int,
    results: Results,
    spans: dict[str, int],
) -> None:
    """Decode answers in some ways; counts the spans, and those that are what they say."""
    keys = setting.keys[setting.main_key]
    known = {(key.text, key.doc_id) for key in keys}
    for name, chosen in settings.items():
        for hops, questions in setting.questions.items():
            rows, outputs = riches(setting, hops, keys, questions[:count], **chosen)
            add(results, name, hops, rows)
            for span in (span for output in outputs for span in output.spans):
                right = span.sources and all((span.text, s.doc_id) in known for s in span.sources)
                spans["decoded"] = spans.get("decoded", 0) + 1
                spans[VERBATIM] = spans.get(VERBATIM, 0) + bool(right)


def failing(setting: Setting, count: int, results: Results) -> None:
    """Decode from corpora that make it fail."""
    for name, (keys, asked) in setting.variants.items():
        for way in ("beam 1", "beam 10", "exact"):
            chosen = (MAIN | OTHERS)[way]
            for hops, questions in asked.items():
                rows, _ = riches(setting, hops, keys, questions[:count], **chosen)
                add(results, f"{name}, {way}", hops, rows)


def compared(setting: Setting, count: int, results: Results, embedder: str) -> None:
    """Run what retrieves otherwise."""
    keys = setting.keys[setting.main_key]
    texts = [key.text for key in keys]
    search = KeySearch(keys, MiniLmEmbedder() if embedder == "minilm" else LsaEmbedder(texts))
    for hops, questions in setting.questions.items():
        context, steps = setting.template("context", hops), setting.template("steps", hops)
        flows: dict[str, Callable[[str], Flow[BaselineAnswer]]] = {
            "dense, best 1": partial(search_and_generate, prompt=context),
            "dense, best 2": partial(search_and_generate, prompt=context, top_k=2),
            "iterative": partial(iterative, prompt=steps),
        }
        for name, flow in flows.items():
            add(results, name, hops, baseline(setting, questions[:count], flow, search))


def unconstrained(setting: Setting, results: Results) -> None:
    """Let the model answer from the prompt that is decoded, by itself."""
    for hops, questions in setting.questions.items():
        flow = partial(no_retrieval, prompt=setting.template("passage", hops))
        add(results, "unconstrained", hops, baseline(setting, questions, flow))


def add(results: Results, name: str, hops: int, rows: Sequence[Row]) -> None:
    """Pool the rows of one more seed."""
    results.setdefault(name, {}).setdefault(hops, []).extend(rows)
    note(f"{name}, {hops} hops: EM {sum(row.correct for row in rows) / max(1, len(rows)):.3f}")


def note(text: str) -> None:
    """Tell how far it is."""
    print(f"  {time.process_time():6.0f} s of CPU: {text}", file=sys.stderr, flush=True)


def shown(found: Estimate) -> str:
    """Write a share in percent with its interval."""
    return f"{100 * found.mean:5.1f} [{100 * found.low:5.1f}, {100 * found.high:5.1f}]"


def table(title: str, names: Mapping[str, str], results: Results) -> None:
    """Print EM, F1, recall and attribution by hops."""
    print(f"\n{title}")
    print(f"{'':<34} hops     n  {'EM':<20} {'F1':<20} {'recall':<20} attributed")
    for name, label in names.items():
        for hops, rows in results.get(name, {}).items():
            measured = [
                [float(row.correct) for row in rows],
                [row.f1 for row in rows],
                [row.recall for row in rows],
                [float(row.attributed) for row in rows],
            ]
            cells = (
                shown(mean_interval(values))
                if any(value is not None for value in values)
                else "not known"
                for values in measured
            )
            print(f"{label:<34} {hops:>4} {len(rows):>5} ", *(f"{cell:<20}" for cell in cells))


def report(results: Results, hits: Mapping[str, list[bool]], spans: Mapping[str, int]) -> None:
    """Print the tables in the order of the paper."""
    print("\nTable 3: keys, first retrieved of one hop")
    for kind, values in hits.items():
        print(f"{kind:<34} {len(values):>10}  {shown(mean_interval(values))}")
    compared_with = ("unconstrained", "dense, best 1", "dense, best 2", "iterative")
    own = {name: name for name in compared_with} | {"beam 10": "RICHES"}
    table("Table 4: what it is compared with", own, results)
    searches = ("beam 1", "beam 5", "beam 10", "exact")
    table("Table 5: beam size, and exact search", {name: name for name in searches}, results)
    thoughts = {
        "no thoughts, not adaptive": "no thoughts, not adaptive",
        "no thoughts": "no thoughts, adaptive",
        "thoughts, not adaptive": "thoughts, not adaptive",
        "same, spans for all hops": "  with a span for each hop",
        "beam 10": "thoughts, adaptive",
    }
    table("Table 6: thoughts and adaptive beam", thoughts, results)
    lost = {name: name for name in results if name.startswith(("object first", "absent"))}
    if lost:
        table("Where it fails: 3 in 10 keys object first; no key for the answer", lost, results)
    print("\nTable 7: lost questions by what was lost")
    for name in ("beam 10", "beam 1", *lost):
        for hops, rows in results[name].items():
            counts = loss_counts(row.why for row in rows)  # type: ignore[arg-type]
            said = ", ".join(f"{what} {count}" for what, count in counts.items())
            print(f"{name:<34} {hops:>4}  {sum(counts.values())} of {len(rows)}: {said}")
    print("\nCalls of the model a question, decoded in several ways")
    for name in (*searches, *lost):
        for hops, rows in results.get(name, {}).items():
            print(f"{name:<34} {hops:>4}  {sum(row.calls for row in rows) / len(rows):.1f}")
    print("\nDifferences in EM, paired")
    others = ("beam 1", "beam 5", "exact", "no thoughts", "thoughts, not adaptive")
    for other in (*compared_with, *others, "same, spans for all hops"):
        difference(results, "beam 10", other)
    difference(results, "object first, exact", "object first, beam 10")
    print("\nSpans:", ", ".join(f"{count} {what}" for what, count in spans.items()))


def difference(results: Results, one: str, other: str) -> None:
    """Print how much more often one answers right, on the questions that both were asked."""
    for hops, rows in results.get(one, {}).items():
        base = {row.id: float(row.correct) for row in results.get(other, {}).get(hops, ())}
        better = {row.id: float(row.correct) for row in rows if row.id in base}
        if better:
            found = paired_difference_interval(list(better.values()), [base[id_] for id_ in better])
            print(f"{f'{one} against {other}':<46} {hops:>4} {len(better):>5}  {shown(found)}")


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description="The ablations of RICHES.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=400, help="for each number of hops")
    parser.add_argument(
        "--others",
        type=int,
        help="this many questions for all but RICHES, beam 1, not adaptive and unconstrained",
    )
    parser.add_argument("--cache", type=Path, default=Path(".riches"))
    parser.add_argument("--embedder", choices=("lsa", "minilm"), default="lsa")
    parser.add_argument("--model", help="a folder or a name that transformers loads")
    parser.add_argument("--corpus", type=Path, help="a folder of Markdown or text")
    parser.add_argument("--questions-file", type=Path, help="JSON Lines")
    parser.add_argument("--key", default="sentence with title", help="for a corpus of one's own")
    parser.add_argument("--max-new-tokens", type=int, default=256, help="of a model of one's own")
    parser.add_argument("--batch-size", type=int, default=4, help="prompts a model has at once")
    options = parser.parse_args()
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    results: Results = {}
    hits: dict[str, list[bool]] = {}
    spans: dict[str, int] = {}
    settings = []
    for seed in range(1 if options.model else options.seeds):
        note(f"seed {seed}")
        setting = (
            own_setting(options)
            if options.model
            else world_setting(seed, options.questions, options.cache)
        )
        decoded(setting, MAIN, options.questions, results, spans)
        unconstrained(setting, results)
        settings.append(setting)
    others = options.questions if options.others is None else options.others
    for setting in settings if others else ():
        compared(setting, others, results, options.embedder)
        decoded(setting, OTHERS, others, results, spans)
        failing(setting, others, results)
        for kind, keys in setting.keys.items():
            if keys and 1 in setting.questions:
                found = hits_at_1(setting, kind, setting.questions[1][:others])
                hits.setdefault(kind, []).extend(found)
                note(kind)
    report(results, hits, spans)


if __name__ == "__main__":
    main()
