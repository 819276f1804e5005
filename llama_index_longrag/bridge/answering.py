"""What LlamaIndex's models and a scorer answer to the core's requests, for all small components."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms.llm import LLM
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.schema import QueryBundle
from llama_index.core.settings import Settings

from llama_index_longrag.bridge.stores import embed
from llama_index_longrag.bridge.summaries import blocks
from longrag.calls import Embed, Flow, Generate, Method, Request, Score, Steps, aperform, arun
from longrag.calls import perform as perform_steps
from longrag.calls import run as run_flow
from longrag.errors import InvalidParameterError
from longrag.journal import Journal
from longrag.models.rerankers.scorers import Scorer

T = TypeVar("T")

_VERBATIM = PromptTemplate("{text}")
_MARK = "\0"


@dataclass(frozen=True, slots=True)
class Call:
    """A request of an adapter's own: one call of an object of the framework."""

    method: Method


class Models:
    """Answers requests by what it is given; a model that is None is looked up in ``Settings``.

    Models are called by their public methods, so that callbacks, events, retries and rate limiters
    see each call. A model whose async call would hold up the event loop is called in a thread, and
    so is a scorer.

    Args:
        llm: answers ``Generate``.
        embed_model: answers ``Embed``.
        scorer: answers ``Score``.
        num_workers: the most calls in flight at a time.
    """

    def __init__(
        self,
        *,
        llm: LLM | None = None,
        embed_model: BaseEmbedding | None = None,
        scorer: Scorer | None = None,
        num_workers: int = 1,
    ) -> None:
        self._llm = llm
        self._embed_model = embed_model
        self._scorer = scorer
        self._num_workers = num_workers

    def run(self, flow: Flow[T]) -> T:
        """Drive a flow to its result."""
        return run_flow(
            flow,
            lambda request: perform_steps(self.steps(request)),
            max_in_flight=self._num_workers,
        )

    async def arun(self, flow: Flow[T], *, journal: Journal | None = None) -> T:
        """Drive a flow to its result with the models' async calls."""
        return await arun(
            flow,
            lambda request: aperform(self.steps(request)),
            max_in_flight=self._num_workers,
            journal=journal,
        )

    def steps(self, request: Request) -> Steps[Any]:
        """Answer one request by the framework's own calls.

        Raises:
            NotImplementedError: a request that none of the models answers.
        """
        outside: object = request
        if isinstance(outside, Call):
            return (yield outside.method)
        match request:
            case Embed():
                return (yield from embed(self._embed_model or Settings.embed_model, request))
            case Generate():
                llm = self._llm or Settings.llm
                target = Threaded(predict=llm.predict) if blocks(llm) else llm
                return (yield Method(target, "predict", (_VERBATIM,), {"text": request.prompt}))
            case Score() if self._scorer is not None:
                target = Threaded(score=self._scorer)
                return (yield Method(target, "score", (request.query, request.texts)))
            case _:
                raise NotImplementedError(type(request).__name__)


class Threaded:
    """Calls without async ones of their own: they are made in a thread where a loop runs."""

    def __init__(self, **calls: Callable[..., Any]) -> None:
        vars(self).update(calls)


async def in_thread(call: Callable[..., T], *args: Any) -> T:
    """Call something that works for a while off the event loop."""
    return await asyncio.to_thread(call, *args)


def asked(query_bundle: QueryBundle | None) -> str:
    """Return the question of a bundle.

    Raises:
        InvalidParameterError: there is none.
    """
    if query_bundle is None:
        raise InvalidParameterError(
            "query_bundle", None, "given", "What is done to the nodes depends on the question."
        )
    return query_bundle.query_str


def to_template(prompt: str, **slots: str) -> PromptTemplate:
    """Make a template of one of the core's prompts, with the framework's names for its slots."""
    for own, name in slots.items():
        prompt = prompt.replace(f"{{{own}}}", f"{{{name}}}")
    return PromptTemplate(prompt)


def to_prompt(template: BasePromptTemplate, llm: LLM | None, **slots: str) -> str:
    """Return a template as the core's prompts are written.

    A slot keeps its braces, as ``{question}``; the core puts the text there. Several slots may
    stand for one of the core's.

    Raises:
        InvalidParameterError: no slot stands for the first of the core's.
    """
    marks = {name: f"{_MARK}{number}{_MARK}" for number, name in enumerate(slots)}
    prompt = template.format(llm=llm, **marks)
    first, needed = next(iter(slots.items()))
    if not any(marks[name] in prompt for name, own in slots.items() if own == needed):
        raise InvalidParameterError("template", prompt, f"one with the slot {{{first}}}")
    for name, own in slots.items():
        prompt = prompt.replace(marks[name], f"{{{own}}}")
    return prompt
