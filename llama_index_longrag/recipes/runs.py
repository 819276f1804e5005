"""One run of a recipe: its modules are parts of the framework, asked for by the core's workflow."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, cast

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
from llama_index_longrag.bridge.observed import ModelCalls, observe
from llama_index_longrag.bridge.passages import from_passage, to_passages
from llama_index_longrag.bridge.traces import StepSpans
from llama_index_longrag.retrieval.gates import GateByModel, add_notes
from llama_index_longrag.retrieval.hybrid import CANDIDATES, HybridRetriever, with_top_k
from llama_index_longrag.synthesis.streams import AnswerTokens, AsyncAnswerTokens
from longrag.calls import Announce, Flow, Request, Search, ask
from longrag.integration.answering import Answerer, Calls, Handler, MethodCall
from longrag.integration.recipe_runs import GenerateBy, PendingAnswer, RefineBy, refine_by
from longrag.recipes.passages import Passage
from longrag.recipes.trace import ModuleBegan, ModuleEnded, Observed
from longrag.recipes.workflow import Prepared, Recipe
from longrag.retrieval.queries import QueryTexts
from longrag.retrieval.query_classifier import Gate

T = TypeVar("T")
_END: Final = object()
_ENGINE: Final = "RecipeQueryEngine"


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
        self._spans = StepSpans()
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
            announces=True,
        )

    def prepare(self) -> PendingAnswer:
        """Do all modules but the generation."""
        try:
            return PendingAnswer(self._recipe, self._answerer().run(self._flow()))
        except BaseException as error:
            self._spans.end(error)
            raise

    async def aprepare(self) -> PendingAnswer:
        """Do all modules but the generation, with their async calls."""
        try:
            return PendingAnswer(self._recipe, await self._answerer().arun(self._flow()))
        except BaseException as error:
            self._spans.end(error)
            raise

    def _flow(self) -> Flow[Prepared]:
        return self._recipe.prepare(self._query.query_str)

    def _answerer(self) -> Answerer:
        handlers: dict[type, Handler] = {
            GenerateBy: _generate,
            Transform: self._run_transform,
            Search: self._search,
            Fuse: self._fuse,
            RefineBy: self._refine,
        }
        within = {kind: self._spans.within(handler) for kind, handler in handlers.items()}
        return Answerer({**within, Announce: self._show})

    def _show(self, request: Announce) -> Calls[None]:
        """Show a module as a span, in which its calls are made."""
        yield from ()  # nothing of the framework is called
        match request.event:
            case ModuleBegan(name=name, input=given):
                shown = [one.text for one in given.first]
                self._spans.begin(f"{_ENGINE}.{name}", input=shown)
            case ModuleEnded(error=error):
                self._spans.end(error)

    def _transform(self, query: str) -> Flow[QueryTexts]:
        self._bundle = yield from _ask(Transform(self._query))
        return QueryTexts(tuple(self._bundle.embedding_strs) or (query,))

    def _run_transform(self, request: Transform) -> Calls[Observed]:
        return observe(MethodCall(self._modules.transform, "run", (request.bundle,)))

    def _retrieve(self, texts: QueryTexts, top_k: int) -> Flow[Sequence[Passage]]:
        found: list[Passage] = yield from ask(Search(texts.joined, top_k))
        return found

    def _search(self, request: Search) -> Calls[Observed]:
        retriever = self._modules.retriever
        if isinstance(retriever, HybridRetriever):
            retriever = retriever.dense_retriever(request.top_k)
        else:
            retriever = with_top_k(retriever, request.top_k)
        # A retriever keeps the vector of its model in the bundle, which others may be given later.
        return _observe_nodes(MethodCall(retriever, "retrieve", (copy.copy(self._bundle),)))

    def _fuse(self, request: Fuse) -> Calls[Observed]:
        hybrid = cast("HybridRetriever", self._modules.retriever)
        dense = [from_passage(passage) for passage in request.dense]
        retriever = hybrid.with_dense_results(dense, request.top_k)
        return _observe_nodes(MethodCall(retriever, "retrieve", (self._bundle,)))

    def _refine(self, request: RefineBy) -> Calls[Observed]:
        nodes = [from_passage(passage) for passage in request.passages]
        args = (nodes, self._query)
        return _observe_nodes(MethodCall(request.module, "postprocess_nodes", args))

    def _repack(self, passages: Sequence[Passage]) -> Sequence[Passage]:
        part = cast("BaseNodePostprocessor", self._modules.repacker)
        nodes = [from_passage(passage) for passage in passages]
        with self._spans.inside():
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


def _observe_nodes(call: MethodCall) -> Calls[Observed]:
    """Make a call that returns nodes, and return them as passages with the calls of models."""
    seen = yield from observe(call)
    if isinstance(seen.outcome, Exception):
        return seen
    return replace(seen, outcome=to_passages(seen.outcome))


def _generate(request: GenerateBy) -> Calls[str]:
    return generate(request.llm, request)


def add_trace(response: RESPONSE_TYPE, pending: PendingAnswer, calls: ModelCalls) -> None:
    """Put the trace into a response's metadata; of a stream its end follows when it has ended."""
    needed = pending.prepared.needs_retrieval
    if not isinstance(response, StreamingResponse | AsyncStreamingResponse):
        # The framework shows an answer without words as "None".
        reply = str(response) if response.response else ""
        trace = pending.trace(reply, observed=calls.observed())
        add_notes(response, needs_retrieval=needed, trace=trace)
        return
    watch = _StreamWatch(pending, calls)
    add_notes(response, needs_retrieval=needed, trace=watch.trace)
    tokens: Any = response.response_gen
    # These also stream a first turn, so they stay what they are.
    if isinstance(tokens, AnswerTokens):
        tokens.wrap_events(watch.pass_on)
    elif isinstance(tokens, AsyncAnswerTokens):
        tokens.wrap_events(watch.apass_on)
    elif isinstance(response, StreamingResponse):
        response.response_gen = watch.pass_on(tokens)
    else:
        response.response_gen = watch.apass_on(tokens)


class _StreamWatch:
    """Completes a trace with what a stream has written when it ends, breaks off or is left."""

    def __init__(self, pending: PendingAnswer, calls: ModelCalls) -> None:
        self._pending = pending
        self._calls = calls
        self._parts: list[str] = []
        # Where nothing is to be written, nothing is unfinished.
        self.trace = pending.trace("", finished=False, observed=calls.observed())

    def pass_on(self, tokens: Generator[T, None, None]) -> Generator[T, None, None]:
        """Yield the tokens of a stream."""
        stream = iter(tokens)
        with closing(tokens) if hasattr(tokens, "close") else nullcontext(), self._ending():
            while True:
                with self._calls.counting():
                    token = next(stream, _END)
                if token is _END:
                    return
                yield self._note(cast("T", token))

    async def apass_on(self, tokens: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Yield the tokens of a stream."""
        stream = aiter(tokens)
        async with aclosing(tokens) if hasattr(tokens, "aclose") else nullcontext():
            with self._ending():
                while True:
                    with self._calls.counting():
                        token = await anext(stream, _END)
                    if token is _END:
                        return
                    yield self._note(cast("T", token))

    def _note(self, token: T) -> T:
        self._parts.append(_answer_part(token))
        return token

    @contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        except GeneratorExit:
            self._complete(finished=False)
            raise
        except BaseException as error:
            self._complete(finished=False, error=error)
            raise
        self._complete()

    def _complete(self, *, finished: bool = True, error: BaseException | None = None) -> None:
        self.trace[:] = self._pending.trace(
            "".join(self._parts), finished=finished, error=error, observed=self._calls.observed()
        )


def _answer_part(token: object) -> str:
    """Return what a token adds to the answer; in two turns it comes with the name of its turn."""
    if not isinstance(token, tuple):
        return str(token)
    return str(token[1]) if token[0] == "answer" else ""
