"""Answers about the world: by the model alone, and by decoding that quotes the corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from examples.riches_world.lessons import prompt_for
from examples.riches_world.world import Question
from longrag.decoding import RichesDecoder, parse_answer
from longrag.evaluation.metrics import exact_match
from longrag.generation import Generation, RetrievedSpan

MAX_NEW_TOKENS = 96


@dataclass(frozen=True)
class Graded:
    """An answer compared with the question's.

    ``retrieved`` tells that all keys were quoted that the question needs, and ``attributed`` that
    the last of them names the document that the answer is from.
    """

    question: Question
    answer: str
    text: str
    spans: tuple[RetrievedSpan, ...]
    correct: bool
    stale: bool
    retrieved: bool
    attributed: bool


def unconstrained(
    model: Any, tokenizer: Any, questions: Sequence[Question], *, form: str = "passage"
) -> list[Graded]:
    """Let the model answer by itself: transformers' greedy ``generate``, nothing else."""
    prompts = [prompt_for(question.text, form) for question in questions]
    return [
        grade(question, text)
        for question, text in zip(questions, complete(model, tokenizer, prompts), strict=True)
    ]


def complete(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    *,
    max_new_tokens: int = MAX_NEW_TOKENS,
    batch_size: int = 50,
) -> list[str]:
    """Return what the model writes behind each prompt, greedily."""
    import torch

    texts = []
    for first in range(0, len(prompts), batch_size):
        some = list(prompts[first : first + batch_size])
        batch = tokenizer(some, padding=True, padding_side="left", return_tensors="pt")
        with torch.no_grad():
            ids = model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                do_sample=False,
                max_new_tokens=max_new_tokens,
            )
        written = ids[:, batch["input_ids"].shape[1] :]
        texts += tokenizer.batch_decode(written, skip_special_tokens=True)
    return texts


def constrained(
    decoder: RichesDecoder, questions: Sequence[Question], *, form: str = "passage"
) -> list[Graded]:
    """Answer with evidence decoded from the corpus."""
    prompts = [prompt_for(question.text, form) for question in questions]
    outputs = [
        output
        for first in range(0, len(prompts), 16)
        for output in decoder.batch(prompts[first : first + 16])
    ]
    return [grade(question, output) for question, output in zip(questions, outputs, strict=True)]


def grade(question: Question, output: Generation | str) -> Graded:
    """Compare an output with what it should have been; a bare text has retrieved nothing."""
    answer = parse_answer(output)
    spans = () if isinstance(output, str) else output.spans
    last = [span for span in spans if span.text == question.keys[-1]]
    return Graded(
        question=question,
        answer=answer,
        text=output if isinstance(output, str) else output.text,
        spans=spans,
        correct=exact_match(answer, [question.answer]),
        stale=answer == question.stale,
        retrieved=set(question.keys) <= {span.text for span in spans},
        attributed=any(
            source.doc_id == question.doc_ids[-1] for span in last for source in span.sources
        ),
    )


def share(values: Sequence[bool]) -> float:
    """Return how many in one are true; none of nothing."""
    return sum(values) / len(values) if values else 0.0
