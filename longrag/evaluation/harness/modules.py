"""A search of the package with the modules of a recipe around it, and a reader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from longrag.calls import Flow, run
from longrag.evaluation.datasets import Question
from longrag.evaluation.harness.corpora import Corpus
from longrag.evaluation.harness.outcomes import (
    AnswerRecord,
    RetrievedText,
    Vector,
    documents_of,
    read_outcome,
)
from longrag.evaluation.harness.settings import PipelineSettings, is_blind
from longrag.recipes import Recipe, reranking, search_each
from longrag.recipes.modules import compressing
from longrag.recipes.passages import Passage
from longrag.refinement import compress_abstractive, compress_extractive, repack
from longrag.retrieval import QueryClassifier, decompose, hyde, rewrite
from longrag.retrieval.queries import QueryTexts

DEPTH: Final = 200
"""Results that are looked at where no number of them is wanted."""


class ModularSystem:
    """The modules around a search, as a ``Recipe``, and the reader."""

    def __init__(self, settings: PipelineSettings, corpus: Corpus) -> None:
        self.settings, self.corpus = settings, corpus
        self.counter = corpus.models.counter
        self._embedder = corpus.embedder_name(settings)
        self._chunk_size = corpus.chunk_size(settings)
        self._recipe = self._make_recipe()

    def answer(self, question: Question) -> AnswerRecord:
        """Return what is read for a question, and its answer."""
        if self._recipe is None:
            found = self.within(self.search(question.text, self.vector(question), self.budget))
            outcome = AnswerRecord(tuple(found), documents_of(found))
        else:
            outcome = self._by_recipe(question, self._recipe)
        return read_outcome(outcome, question, self.settings.reader, self.corpus)

    @property
    def budget(self) -> int | None:
        """The tokens that are retrieved: more than are read where they are compressed."""
        settings = self.settings
        if settings.token_budget is None or settings.compress == "off":
            return settings.token_budget
        return round(settings.token_budget / settings.ratio)

    def search(self, query: str, vector: Vector, budget: int | None) -> list[RetrievedText]:
        """Return what is found, best first, within the budget of tokens where there is one."""
        raise NotImplementedError

    def within(self, found: Iterable[RetrievedText]) -> list[RetrievedText]:
        """Keep the best k."""
        return list(found)[: self.settings.k]

    def vector(self, question: Question) -> Vector:
        """Return a question's vector; an empty one where the search needs none."""
        ranked = self.settings.unit in ("passage", "document", "long unit")
        if is_blind(self.settings) or (ranked and self.settings.search == "keywords"):
            return np.empty(0, np.float32)
        return self.corpus.question_vector(question, self._embedder, self._chunk_size)

    def _make_recipe(self) -> Recipe | None:
        settings = self.settings
        off = (settings.gate, settings.transform, settings.rerank, settings.compress)
        if set(off) == {"off"} and settings.repack == "forward":
            return None
        transforms: dict[str, Any] = {
            "off": None,
            "hyde": partial(hyde, n=1, join_query=True),
            "rewrite": rewrite,
            "decompose": decompose,
        }
        compressors: dict[str, Any] = {
            "off": None,
            "extractive": compressing(partial(compress_extractive, ratio=settings.ratio)),
            "abstractive": compressing(partial(compress_abstractive, ratio=settings.ratio)),
        }
        scorer = None
        if settings.rerank != "off":
            scorer = self.corpus.models.scorers[settings.rerank]
        return Recipe(
            gate=QueryClassifier.load_default() if settings.gate == "default" else None,
            transform=transforms[settings.transform],
            reranker=None if scorer is None else reranking(scorer),
            repacker=self._fit_and_repack,
            compressor=compressors[settings.compress],
            candidates=DEPTH,
            top_k=DEPTH,
            count_tokens=lambda text: 0,
        )

    def _by_recipe(self, question: Question, recipe: Recipe) -> AnswerRecord:
        ranked: list[RetrievedText] = []

        def retrieve(texts: QueryTexts, top_k: int) -> Flow[Sequence[Passage]]:
            yield from ()
            deep = self.settings.rerank != "off"
            vector = self._query_vector(question, texts)
            # Keywords are searched for with the question, whatever a transform made of it.
            query = texts.texts[0] if self.settings.transform == "decompose" else question.text
            found = self.search(query, vector, None if deep else self.budget)
            limit = self.settings.candidates if deep else DEPTH
            ranked.extend(found[:limit])
            return [
                Passage(one.text, one.text, (), one.doc_ids, one.title, -float(at))
                for at, one in enumerate(found[:limit])
            ]

        each = self.settings.transform == "decompose"
        own = replace(recipe, retriever=search_each(retrieve) if each else retrieve)
        name = self._embedder
        prepared = run(
            own.prepare(question.text),
            lambda request: self.corpus.answer(request, name, self._chunk_size),
        )
        found = [RetrievedText(one.text, one.doc_ids, one.title) for one in prepared.passages]
        # Compression leaves the order of reading; the measures of rank are those of the best.
        kept = set(documents_of(found))
        order = tuple(id_ for id_ in documents_of(ranked) if id_ in kept)
        return AnswerRecord(tuple(found), order, retrieved=prepared.needs_retrieval)

    def _query_vector(self, question: Question, texts: QueryTexts) -> Vector:
        if texts.texts == (question.text,):
            return self.vector(question)
        embed = partial(self.corpus.embed_further, self._embedder, self._chunk_size)
        mean: Vector = embed(texts.texts, "query").mean(axis=0)
        return mean

    def _fit_and_repack(self, passages: Sequence[Passage]) -> Sequence[Passage]:
        kept: list[Passage] = []
        room = float("inf") if self.budget is None else self.budget
        for passage in passages:
            tokens = self.counter(passage.text)
            if tokens <= room and (self.settings.k is None or len(kept) < self.settings.k):
                kept.append(passage)
                room -= tokens
        return repack(kept, self.settings.repack)
