"""One run of a recipe: its modules are parts of the framework, asked for by the core's workflow."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, closing, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar, cast

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    StreamingResponse,
)
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import QueryBundle

from llama_index_longrag.bridge.answering import generate
from llama_index_longrag.bridge.passages import from_passage, to_passages
from llama_index_longrag.retrieval.gates import GateByModel, add_notes
from llama_index_longrag.retrieval.hybrid import CANDIDATES, HybridRetriever, with_top_k
from llama_index_longrag.synthesis.two_turn import AnswerTokens, AsyncAnswerTokens
from longrag.calls import Flow, Request, Search, ask
from longrag.integration.answering import Answerer, Calls, MethodCall
from longrag.integration.recipe_runs import GenerateBy, PendingAnswer, RefineBy, refine_by
from longrag.recipes.passages import Passage
from longrag.recipes.workflow import Prepared, Recipe
from longrag.retrieval.queries import QueryTexts
from longrag.retrieval.query_classifier import Gate

T = TypeVar("T")
End: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Transform:
    """Have the query transform make what is searched with."""

    bundle: QueryBundle


@dataclass(frozen=True, slots=True)
class Fuse:
    """Have the hybrid retriever fuse its keywords with what was retrieved beside them."""

    dense: tuple[Passage, ...]
    top_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeModules:
    """The framework's parts that the modules of a recipe are; None where one is off."""

    retriever: BaseRetriever
    gate: Gate | GateByModel | None
    transform: BaseQueryTransform | None
    reranker: BaseNodePostprocessor | None
    repacker: BaseNodePostprocessor | None
    compressor: BaseNodePostprocessor | None


class Run:
    """One question on its way through the modules; its bundle is what the transform made of it.

    Args:
        modules: the framework's parts.
        recipe: the settings.
        bundle: the question.
    """

    def __init__(self, modules: RecipeModules, recipe: Recipe, bundle: QueryBundle) -> None:
        self._modules = modules
        self._query = self._bundle = bundle
        hybrid = modules.retriever if isinstance(modules.retriever, HybridRetriever) else None
        gate, reranker, compressor = modules.gate, modules.reranker, modules.compressor
        self._recipe = replace(
            recipe,
            retriever=self._retrieve,
            gate=gate.decide if isinstance(gate, GateByModel) else gate,
            transform=None if modules.transform is None else self._transform,
            hybrid=None if hybrid is None else _RetrieverFusion(hybrid.candidates),
            reranker=None if reranker is None else refine_by(reranker, reranks=True),
            repacker=recipe.repacker if modules.repacker is None else self._repack,
            compressor=None if compressor is None else refine_by(compressor),
        )

    def prepare(self) -> PendingAnswer:
        """Do all modules but the generation."""
        return PendingAnswer(self._recipe, self._answerer().run(self._flow()))

    async def aprepare(self) -> PendingAnswer:
        """Do all modules but the generation, with their async calls."""
        return PendingAnswer(self._recipe, await self._answerer().arun(self._flow()))

    def _flow(self) -> Flow[Prepared]:
        return self._recipe.prepare(self._query.query_str)

    def _answerer(self) -> Answerer:
        return Answerer(
            {
                GenerateBy: _generate,
                Transform: self._run_transform,
                Search: self._search,
                Fuse: self._fuse,
                RefineBy: self._refine,
            }
        )

    def _transform(self, query: str) -> Flow[QueryTexts]:
        self._bundle = yield from _ask(Transform(self._query))
        return QueryTexts(tuple(self._bundle.embedding_strs) or (query,))

    def _run_transform(self, request: Transform) -> Calls[QueryBundle]:
        made: QueryBundle = yield MethodCall(self._modules.transform, "run", (request.bundle,))
        return made

    def _retrieve(self, texts: QueryTexts, top_k: int) -> Flow[Sequence[Passage]]:
        found: list[Passage] = yield from ask(Search(texts.joined, top_k))
        return found

    def _search(self, request: Search) -> Calls[list[Passage]]:
        retriever = self._modules.retriever
        if isinstance(retriever, HybridRetriever):
            retriever = retriever.dense_retriever(request.top_k)
        else:
            retriever = with_top_k(retriever, request.top_k)
        return to_passages((yield MethodCall(retriever, "retrieve", (self._bundle,))))

    def _fuse(self, request: Fuse) -> Calls[list[Passage]]:
        hybrid = cast("HybridRetriever", self._modules.retriever)
        dense = [from_passage(passage) for passage in request.dense]
        retriever = hybrid.with_dense_results(dense, request.top_k)
        return to_passages((yield MethodCall(retriever, "retrieve", (self._bundle,))))

    def _refine(self, request: RefineBy) -> Calls[list[Passage]]:
        nodes = [from_passage(passage) for passage in request.passages]
        args = (nodes, self._query)
        return to_passages((yield MethodCall(request.module, "postprocess_nodes", args)))

    def _repack(self, passages: Sequence[Passage]) -> Sequence[Passage]:
        part = cast("BaseNodePostprocessor", self._modules.repacker)
        nodes = [from_passage(passage) for passage in passages]
        return to_passages(part.postprocess_nodes(nodes, self._query))


class _RetrieverFusion:
    """The keywords of a ``HybridRetriever``, as a separate module."""

    def __init__(self, candidates: int | None) -> None:
        self.candidates = CANDIDATES if candidates is None else candidates

    def join(self, query: str, dense: Sequence[Passage], top_k: int) -> Flow[list[Passage]]:
        """Return the best of both rankings."""
        found: list[Passage] = yield from _ask(Fuse(tuple(dense), top_k))
        return found[:top_k]


def _ask(request: Transform | Fuse) -> Flow[Any]:
    # The drivers pass on requests of other classes than theirs.
    return ask(cast("Request", request))


def _generate(request: GenerateBy) -> Calls[str]:
    return generate(request.llm, request)


def add_trace(response: RESPONSE_TYPE, pending: PendingAnswer) -> None:
    """Put the trace into a response's metadata; of a stream its end follows when it has ended."""
    needed = pending.prepared.needs_retrieval
    if not isinstance(response, StreamingResponse | AsyncStreamingResponse):
        # The framework shows an answer without words as "None".
        reply = str(response) if response.response else ""
        add_notes(response, needs_retrieval=needed, trace=pending.trace(reply))
        return
    trace = pending.prepared.trace.as_dicts()
    add_notes(response, needs_retrieval=needed, trace=trace)

    def end(reply: str) -> None:
        trace[:] = pending.trace(reply)

    tokens: Any = response.response_gen
    # These also stream a first turn, so they stay what they are.
    if isinstance(tokens, AnswerTokens):
        tokens.wrap_events(lambda events: _watch_stream(events, end))
    elif isinstance(tokens, AsyncAnswerTokens):
        tokens.wrap_events(lambda events: _awatch_stream(events, end))
    elif isinstance(response, StreamingResponse):
        response.response_gen = _watch_stream(tokens, end)
    else:
        response.response_gen = _awatch_stream(tokens, end)


def _watch_stream(tokens: Generator[T, None, None], end: End) -> Generator[T, None, None]:
    parts: list[str] = []
    with closing(tokens) if hasattr(tokens, "close") else nullcontext():
        for token in tokens:
            parts.append(_answer_part(token))
            yield token
    end("".join(parts))


async def _awatch_stream(tokens: AsyncGenerator[T, None], end: End) -> AsyncGenerator[T, None]:
    parts: list[str] = []
    async with aclosing(tokens) if hasattr(tokens, "aclose") else nullcontext():
        async for token in tokens:
            parts.append(_answer_part(token))
            yield token
    end("".join(parts))


def _answer_part(token: object) -> str:
    """Return what a token adds to the answer; in two turns it comes with the name of its turn."""
    if not isinstance(token, tuple):
        return str(token)
    return str(token[1]) if token[0] == "answer" else ""
