"""How one run of a recipe is answered by LangChain's own parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from time import perf_counter
from typing import Any

from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import LanguageModelLike
from langchain_core.runnables import RunnableConfig

from langchain_longrag.bridge.answering import call_config, model_handlers
from langchain_longrag.bridge.models import reply_text
from langchain_longrag.bridge.passages import from_passage, identity, to_passage
from langchain_longrag.recipes.keyword_passages import KeywordPassages
from langchain_longrag.retrieval.base_retrievers import Beneath
from langchain_longrag.retrieval.hybrid import HybridRetriever, result_id
from longrag import calls
from longrag import recipes as core
from longrag.calls import Flow, Search
from longrag.errors import StoreError
from longrag.integration.answering import Answerer, Calls, MethodCall
from longrag.integration.keyword_sources import Keywords
from longrag.prompts import CLASSIFY_QUERY
from longrag.recipes import (
    Hybrid,
    Passage,
    Prepared,
    QueryGate,
    Recipe,
    Refiner,
    refined_outside,
    search_by_text,
    search_by_vector,
    search_each,
)
from longrag.retrieval.query_gates import classify_query


@dataclass(frozen=True, slots=True)
class Generate(calls.Generate):
    """A request for another language model than the recipe's; traces show its name."""

    llm: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Refine(core.Refine):
    """A request for a compressor."""

    compressor: Any = field(default=None, compare=False)


def asking(llm: LanguageModelLike, prompt: str = CLASSIFY_QUERY) -> QueryGate:
    """Make a gate that asks a language model of its own."""

    def decide(query: str) -> Flow[bool]:
        return _tagged(classify_query(query, prompt=prompt), calls.Generate, Generate, llm=llm)

    return decide


def refining(compressor: BaseDocumentCompressor) -> Refiner:
    """Make a module of a compressor of LangChain's."""

    def refine(query: str, passages: Sequence[Passage]) -> Flow[Sequence[Passage]]:
        flow = refined_outside(query, passages)
        return _tagged(flow, core.Refine, Refine, compressor=compressor)

    return refine


def _tagged(flow: Flow[Any], kind: type[Any], other: type[Any], **tag: Any) -> Flow[Any]:
    """Turn the requests of a flow into others that say what answers them."""
    try:
        requests = next(flow)
        while True:
            own = tuple(
                other(**{one.name: getattr(request, one.name) for one in fields(kind)}, **tag)
                for request in requests
            )
            requests = flow.send((yield own))
    except StopIteration as stop:
        return stop.value
    finally:
        flow.close()


@dataclass(frozen=True)
class Modules:
    """What a recipe is made of, and how one run of it goes.

    Attributes:
        recipe: the settings, without what depends on the run.
        beneath: what is searched.
        hybrid: the keywords beside it.
        llm: answers what the transform asks.
        embedding: embeds queries and sentences.
        each: whether each text of a transform is searched for by itself.
        max_concurrency: the calls in flight at a time.
    """

    recipe: Recipe
    beneath: Beneath
    hybrid: HybridRetriever | None
    llm: LanguageModelLike
    embedding: Embeddings | None
    each: bool
    max_concurrency: int

    def prepare(self, query: str, config: RunnableConfig) -> Held:
        """Do all modules but the generation."""
        run = _Run(self, config)
        return Held(self.recipe, run.answerer().run(run.flow(query)))

    async def aprepare(self, query: str, config: RunnableConfig) -> Held:
        """Do all modules but the generation, with their async calls."""
        run = _Run(self, config)
        return Held(self.recipe, await run.answerer().arun(run.flow(query)))


@dataclass
class Held:
    """What was prepared, and when its answer was asked for."""

    recipe: Recipe
    prepared: Prepared
    began: float = 0.0

    def begin(self) -> Prepared:
        """Note that the answer is asked for."""
        self.began = perf_counter()
        return self.prepared

    def asked(self, prompt: str) -> None:
        """Note what the model is asked, where that is not what was prepared."""
        self.prepared = replace(self.prepared, prompt=prompt)

    @property
    def context(self) -> list[Document]:
        """What is read."""
        return [from_passage(passage) for passage in self.prepared.passages]

    def trace(self, reply: str) -> list[dict[str, Any]]:
        """Return what each module did, as plain data."""
        answer = self.recipe.finish(self.prepared, reply, perf_counter() - self.began)
        return answer.trace.as_dicts()


class _Run:
    """One run: answers the requests of its modules."""

    def __init__(self, modules: Modules, config: RunnableConfig) -> None:
        self.config = call_config(config)
        self._modules = modules
        self._keywords: Keywords[Document] | None = None

    def flow(self, query: str) -> Flow[Prepared]:
        modules = self._modules
        search = search_by_vector if modules.beneath.takes_vectors else search_by_text
        recipe = replace(modules.recipe, retriever=search_each(search) if modules.each else search)
        if modules.hybrid is not None:
            keywords = self._keywords = modules.hybrid._known()
            recipe = replace(
                recipe,
                hybrid=Hybrid(
                    keywords=keywords.index,
                    passages=KeywordPassages(keywords),
                    alpha=modules.hybrid.alpha,
                    candidates=modules.hybrid._wanted(1),
                ),
            )
        # A generator of its own, since keywords may have to be read before the first request.
        return (yield from recipe.prepare(query))

    def answerer(self) -> Answerer:
        modules = self._modules
        handlers = model_handlers(llm=modules.llm, embedding=modules.embedding, config=self.config)
        handlers |= {Search: self._search, Generate: self._generate, Refine: self._refine}
        return Answerer(handlers, max_in_flight=modules.max_concurrency)

    def _generate(self, request: Generate) -> Calls[Any]:
        call = MethodCall(request.llm, "invoke", (request.prompt, self.config))
        return reply_text((yield call))

    def _search(self, request: Search) -> Calls[list[Passage]]:
        beneath = self._modules.beneath
        rows = yield from beneath.search(
            request.query, request.top_k, vector=request.vector, config=self.config
        )
        if self._keywords is None:
            return [replace(to_passage(document), score=score) for document, score in rows]
        keywords = self._keywords
        return [
            replace(to_passage(document, result_id(keywords, document)), score=score)
            for (document, _), score in zip(rows, beneath.comparable(rows), strict=True)
        ]

    def _refine(self, request: Refine) -> Calls[list[Passage]]:
        documents, before = handed(request.passages)
        args = (documents, request.query, self.config.get("callbacks"))
        found = yield MethodCall(request.compressor, "compress_documents", args)
        return [refined(document, before) for document in found]


def handed(passages: Sequence[Passage]) -> tuple[list[Document], dict[str, Passage]]:
    """Return passages as documents with ids, and by the ids that these have."""
    documents = [from_passage(passage) for passage in passages]
    for at, (document, passage) in enumerate(zip(documents, passages, strict=True)):
        if document.id is None:
            # By its id it is known again when its text has changed.
            documents[at] = document.model_copy(update={"id": passage.id})
    return documents, dict(zip(map(identity, documents), passages, strict=True))


def refined(document: object, handed_over: Mapping[str, Passage]) -> Passage:
    """Convert what a compressor returned for one of the passages it was handed.

    Raises:
        StoreError: it is no document.
    """
    if not isinstance(document, Document):
        raise StoreError(f"a compressor must return documents, got {document!r}")
    before = handed_over.get(identity(document))
    if before is None:
        return to_passage(document)
    after = to_passage(document, before.id)
    if after.text == before.text:
        return replace(after, parts=before.parts)
    if after.kept:
        return after
    # Where its words come from is known to whoever wrote them.
    return replace(after, members=(), parts=(), doc_ids=before.doc_ids)
