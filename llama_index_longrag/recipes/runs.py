"""One run of a recipe: its modules are parts of the framework, asked for by the core's workflow."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias, TypeVar, cast

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    StreamingResponse,
)
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from llama_index_longrag.retrieval.gates import GateByModel, noted
from llama_index_longrag.retrieval.hybrid import HybridRetriever, asking_for
from llama_index_longrag.synthesis.two_turn import AnswerTokens, AsyncAnswerTokens
from longrag.calls import Flow, Request
from longrag.errors import RerankError
from longrag.integration.answering import Calls, MethodCall
from longrag.recipes.passages import Passage
from longrag.recipes.trace import Tracer
from longrag.recipes.workflow import Prepared, Recipe
from longrag.retrieval.queries import QueryTexts
from longrag.retrieval.query_classifier import Gate

T = TypeVar("T")
End: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Call:
    """A request of this adapter's own: one call of an object of the framework."""

    method: MethodCall


def make_call(request: Call) -> Calls[Any]:
    """Answer a request by its call."""
    return (yield request.method)


class Classify(Call):
    """A query gate is asked."""


class Transform(Call):
    """A query transform is asked."""


class Retrieve(Call):
    """A retriever is asked."""


class Refine(Call):
    """A node postprocessor is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """The framework's parts that the modules of a recipe are; None where one is off."""

    retriever: BaseRetriever
    gate: Gate | GateByModel | None
    transform: BaseQueryTransform | None
    reranker: BaseNodePostprocessor | None
    repacker: BaseNodePostprocessor | None
    compressor: BaseNodePostprocessor | None


class Run:
    """One question on its way; its query bundle is what the transform made of it.

    Args:
        modules: what the workflow asks.
        recipe: the settings.
        bundle: the question.
    """

    def __init__(self, modules: Modules, recipe: Recipe, bundle: QueryBundle) -> None:
        self._modules = modules
        self._asked = self._bundle = bundle
        refiners: dict[str, Any] = {
            name: partial(self._refine, part)
            for name, part in (("reranker", modules.reranker), ("compressor", modules.compressor))
            if part is not None
        }
        self._recipe = replace(
            recipe,
            retriever=self._retrieve,
            gate=None if modules.gate is None else self._classify,
            transform=None if modules.transform is None else self._transform,
            repacker=recipe.repacker if modules.repacker is None else self._repack,
            **refiners,
        )

    def prepare(self) -> Flow[Prepared]:
        """Do all modules but the generation."""
        prepared = yield from self._recipe.prepare(self._asked.query_str)
        if isinstance(self._modules.retriever, HybridRetriever):
            steps = tuple(
                replace(step, skipped="the retriever is a HybridRetriever")
                if step.name == "hybrid" and prepared.needs_retrieval
                else step
                for step in prepared.trace.steps
            )
            prepared = replace(prepared, trace=replace(prepared.trace, steps=steps))
        return prepared

    def nodes(self, prepared: Prepared) -> list[NodeWithScore]:
        """Return the nodes to read."""
        return [_node(passage) for passage in prepared.passages]

    def _classify(self, query: str) -> Flow[bool]:
        gate = cast("Gate", self._modules.gate)
        return cast(
            "bool", (yield from _call(Classify(MethodCall(gate, "needs_retrieval", (query,)))))
        )

    def _transform(self, query: str) -> Flow[QueryTexts]:
        self._bundle = yield from _call(
            Transform(MethodCall(self._modules.transform, "run", (self._asked,)))
        )
        return QueryTexts(tuple(self._bundle.embedding_strs) or (query,))

    def _retrieve(self, texts: QueryTexts, top_k: int) -> Flow[Sequence[Passage]]:
        retriever = asking_for(self._modules.retriever, top_k)
        found = yield from _call(Retrieve(MethodCall(retriever, "retrieve", (self._bundle,))))
        return [_passage(result) for result in found]

    def _refine(
        self, part: BaseNodePostprocessor, query: str, passages: Sequence[Passage]
    ) -> Flow[Sequence[Passage]]:
        nodes = [_node(passage) for passage in passages]
        method = MethodCall(part, "postprocess_nodes", (nodes, self._asked))
        reranks = part is self._modules.reranker
        try:
            found = yield from _call(Refine(method))
        except RerankError:
            raise
        except Exception as error:
            if not reranks:
                raise
            raise RerankError(f"the reranker failed: {error}") from error
        return [_passage(result) for result in found]

    def _repack(self, passages: Sequence[Passage]) -> Sequence[Passage]:
        part = cast("BaseNodePostprocessor", self._modules.repacker)
        nodes = [_node(passage) for passage in passages]
        return [_passage(result) for result in part.postprocess_nodes(nodes, self._asked)]


def _call(call: Call) -> Flow[Any]:
    # The drivers pass on what they do not know; ``Models`` knows it.
    (outcome,) = yield (cast("Request", call),)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _passage(result: NodeWithScore) -> Passage:
    node = result.node
    ids = node.metadata.get("doc_ids")
    doc_ids = tuple(map(str, ids)) if isinstance(ids, list) else (node.ref_doc_id or node.node_id,)
    return Passage(
        id=node.node_id,
        text=node.get_content(metadata_mode=MetadataMode.NONE),
        doc_ids=doc_ids,
        score=result.score,
        source=result,
    )


def _node(passage: Passage) -> NodeWithScore:
    return cast("NodeWithScore", passage.source)


@dataclass(slots=True)
class Timed:
    """What is known of a run whose answer is being written.

    ``prompt`` is what the model was asked. It is not known of a synthesizer that is not a
    ``RecipeSynthesizer``; the trace then tells what that was given.
    """

    recipe: Recipe
    prepared: Prepared
    began: float
    prompt: str | None = None

    def asked(self, prompt: str) -> None:
        """Remember what the model is asked."""
        self.prompt = prompt

    def trace(self, reply: str) -> list[dict[str, Any]]:
        """Return the trace with the reply."""
        prepared, seconds = self.prepared, perf_counter() - self.began
        if prepared.prompt is not None and self.prompt is not None:
            prepared = replace(prepared, prompt=self.prompt)
        trace = self.recipe.finish(prepared, reply, seconds).trace
        if prepared.prompt is not None and self.prompt is None:
            given = Tracer(self.recipe.count_tokens).flowing([prepared.query, *prepared.passages])
            step = replace(
                trace.steps[-1],
                calls={"Synthesize": 1},
                sent_tokens=0,
                received_tokens=0,
                went_in=given,
            )
            trace = replace(trace, steps=(*trace.steps[:-1], step))
        return trace.as_dicts()


def traced(response: RESPONSE_TYPE, timed: Timed) -> None:
    """Put the trace into a response's metadata; of a stream its end follows when it has ended."""
    needed = timed.prepared.needs_retrieval
    if not isinstance(response, StreamingResponse | AsyncStreamingResponse):
        # The framework shows an answer without words as "None".
        reply = str(response) if response.response else ""
        noted(response, needs_retrieval=needed, trace=timed.trace(reply))
        return
    trace = timed.prepared.trace.as_dicts()
    noted(response, needs_retrieval=needed, trace=trace)

    def end(reply: str) -> None:
        trace[:] = timed.trace(reply)

    tokens: Any = response.response_gen
    # These also stream a first turn, so they stay what they are.
    if isinstance(tokens, AnswerTokens):
        tokens._events = _watched(tokens._events, end)
    elif isinstance(tokens, AsyncAnswerTokens):
        tokens._events = _awatched(tokens._events, end)
    elif isinstance(response, StreamingResponse):
        response.response_gen = _watched(tokens, end)
    else:
        response.response_gen = _awatched(tokens, end)


def _watched(tokens: Generator[T, None, None], end: End) -> Generator[T, None, None]:
    parts: list[str] = []
    with closing(tokens) if hasattr(tokens, "close") else nullcontext():
        for token in tokens:
            parts.append(_said(token))
            yield token
    end("".join(parts))


async def _awatched(tokens: AsyncGenerator[T, None], end: End) -> AsyncGenerator[T, None]:
    parts: list[str] = []
    async with aclosing(tokens) if hasattr(tokens, "aclose") else nullcontext():
        async for token in tokens:
            parts.append(_said(token))
            yield token
    end("".join(parts))


def _said(token: object) -> str:
    """Return what a token adds to the answer; in two turns it comes with the name of its turn."""
    if not isinstance(token, tuple):
        return str(token)
    return str(token[1]) if token[0] == "answer" else ""
