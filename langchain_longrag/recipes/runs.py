"""How one run of a recipe is answered by LangChain's own parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import LanguageModelLike
from langchain_core.runnables import RunnableConfig

from langchain_longrag.bridge.answering import call_config, embed, generate
from langchain_longrag.bridge.observed import observe
from langchain_longrag.bridge.passages import from_passage, identity, to_passage
from langchain_longrag.bridge.traces import StepRuns
from langchain_longrag.recipes.keyword_passages import KeywordPassages
from langchain_longrag.retrieval.base_retrievers import WrappedRetriever
from langchain_longrag.retrieval.hybrid import HybridRetriever, find_result_id
from longrag.calls import Announce, Embed, Flow, Generate, Search, ask
from longrag.errors import StoreError
from longrag.integration.answering import Answerer, Calls, Handler, MethodCall
from longrag.integration.keyword_sources import Keywords
from longrag.integration.recipe_runs import GenerateBy, PendingAnswer, RefineBy, SearchBy
from longrag.recipes import (
    Hybrid,
    Passage,
    Prepared,
    Recipe,
    search_by_text,
    search_by_vector,
    search_each,
)
from longrag.recipes.trace import ModuleBegan, ModuleEnded, Observed
from longrag.retrieval.filters import DocumentFilter
from longrag.retrieval.queries import QueryTexts


@dataclass(frozen=True)
class RecipeModules:
    """The modules of a recipe, and how one run of it goes.

    Attributes:
        recipe: the settings, without what depends on the run.
        wrapped: what is searched.
        hybrid: the keywords beside it.
        llm: answers what the transform asks.
        embedding: embeds queries and sentences.
        each: whether each text of a transform is searched for by itself.
        max_concurrency: the calls in flight at a time.
    """

    recipe: Recipe
    wrapped: WrappedRetriever
    hybrid: HybridRetriever | None
    llm: LanguageModelLike
    embedding: Embeddings | None
    each: bool
    max_concurrency: int

    def narrow(self, wanted: DocumentFilter | None) -> RecipeModules:
        """Return the modules over what passes a filter as well.

        Raises:
            InvalidParameterError: what is searched takes no filter with a call.
        """
        if wanted is None:
            return self
        if self.hybrid is None:
            return replace(self, wrapped=self.wrapped.narrow(wanted))
        hybrid = self.hybrid.narrow(wanted)
        return replace(self, hybrid=hybrid, wrapped=hybrid.wrapped)

    def prepare(self, query: str, config: RunnableConfig) -> PendingAnswer:
        """Do all modules but the generation."""
        run = _Run(self, config)
        try:
            return PendingAnswer(self.recipe, run.answerer().run(run.flow(query)))
        except BaseException as error:
            run.runs.end(error)
            raise

    async def aprepare(self, query: str, config: RunnableConfig) -> PendingAnswer:
        """Do all modules but the generation, with their async calls."""
        run = _Run(self, config)
        try:
            return PendingAnswer(self.recipe, await run.answerer().arun(run.flow(query)))
        except BaseException as error:
            await run.runs.aend(error)
            raise


class _Run:
    """One run: answers the requests of its modules."""

    def __init__(self, modules: RecipeModules, config: RunnableConfig) -> None:
        self.runs = StepRuns(call_config(config))
        self._modules = modules
        self._keywords: Keywords[Document] | None = None

    def flow(self, query: str) -> Flow[Prepared]:
        modules = self._modules
        search = search_by_vector if modules.wrapped.takes_vectors else search_by_text
        recipe = replace(
            modules.recipe,
            retriever=search_each(search) if modules.each else search,
            announces=True,
        )
        if modules.hybrid is not None:
            keywords = self._keywords = modules.hybrid.read_keywords()
            recipe = replace(
                recipe,
                hybrid=Hybrid(
                    keywords=keywords.index,
                    passages=KeywordPassages(keywords),
                    alpha=modules.hybrid.alpha,
                    candidates=modules.hybrid.count_candidates(1),
                    others=[partial(_search_other, other) for other in modules.hybrid.others],
                    weights=modules.hybrid.weights,
                    fusion=modules.hybrid.fusion,
                ),
            )
        # A separate generator, since keywords may have to be read before the first request.
        return (yield from recipe.prepare(query))

    def answerer(self) -> Answerer:
        modules = self._modules
        handlers: dict[type, Handler] = {
            Announce: self._show,
            Generate: lambda request: generate(modules.llm, self.runs.config, request),
            Search: lambda request: self._search(modules.wrapped, request),
            SearchBy: lambda request: self._search(request.retriever, request),
            GenerateBy: self._generate,
            RefineBy: self._refine,
        }
        if (model := modules.embedding) is not None:
            handlers[Embed] = lambda request: embed(model, request, self.runs.config)
        return Answerer(handlers, max_in_flight=modules.max_concurrency)

    def _show(self, request: Announce) -> Calls[None]:
        """Show a module as a run, below which its calls are made."""
        match request.event:
            case ModuleBegan(name=name, input=given):
                shown = {"input": [one.text for one in given.first]}
                yield MethodCall(self.runs, "begin", (f"module {name}", shown))
            case ModuleEnded(step=step, error=error):
                output = step.output
                made: dict[str, Any] = {"output": [one.text for one in output.first]}
                if output.decision is not None:
                    made = {"decision": output.decision, "reason": output.reason}
                yield MethodCall(self.runs, "end", (error, made))

    def _generate(self, request: GenerateBy) -> Calls[Any]:
        return generate(request.llm, self.runs.config, request)

    def _search(self, wrapped: WrappedRetriever, request: Search) -> Calls[Observed]:
        return observe(self.runs.config, lambda config: self._find(wrapped, request, config))

    def _find(
        self, wrapped: WrappedRetriever, request: Search, config: RunnableConfig
    ) -> Calls[list[Passage]]:
        rows = yield from wrapped.search(
            request.query, request.top_k, vector=request.vector, config=config
        )
        if self._keywords is None:
            return [replace(to_passage(document), score=score) for document, score in rows]
        keywords = self._keywords
        return [
            replace(to_passage(document, find_result_id(keywords, document)), score=score)
            for (document, _), score in zip(rows, wrapped.to_similarities(rows), strict=True)
        ]

    def _refine(self, request: RefineBy) -> Calls[Observed]:
        return observe(self.runs.config, lambda config: self._compress(request, config))

    def _compress(self, request: RefineBy, config: RunnableConfig) -> Calls[list[Passage]]:
        documents, before = to_documents(request.passages)
        args = (documents, request.query, config.get("callbacks"))
        found = yield MethodCall(request.module, "compress_documents", args)
        return [to_refined(document, before) for document in found]


def _search_other(
    retriever: WrappedRetriever, texts: QueryTexts, top_k: int
) -> Flow[Sequence[Passage]]:
    found: Sequence[Passage] = yield from ask(SearchBy(texts.joined, top_k, retriever=retriever))
    return found


def to_documents(passages: Sequence[Passage]) -> tuple[list[Document], dict[str, Passage]]:
    """Return passages as documents with ids, and by the ids that these have."""
    documents = [from_passage(passage) for passage in passages]
    for at, (document, passage) in enumerate(zip(documents, passages, strict=True)):
        if document.id is None:
            # By its id it is known again when its text has changed.
            documents[at] = document.model_copy(update={"id": passage.id})
    return documents, dict(zip(map(identity, documents), passages, strict=True))


def to_refined(document: object, passages: Mapping[str, Passage]) -> Passage:
    """Convert what a compressor returned for one of the passages it was given.

    Raises:
        StoreError: it is not a document.
    """
    if not isinstance(document, Document):
        raise StoreError(f"a compressor must return documents, got {document!r}")
    before = passages.get(identity(document))
    if before is None:
        return to_passage(document)
    after = to_passage(document, before.id)
    if after.text == before.text:
        return replace(after, parts=before.parts)
    if after.kept:
        return after
    # Where its words come from is known to whoever wrote them.
    return replace(after, members=(), parts=(), doc_ids=before.doc_ids)
