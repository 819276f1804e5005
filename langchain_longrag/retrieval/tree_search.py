"""The settings of a search in a tree, and the search, which the index and the retriever share."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from inspect import signature
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, SkipValidation

from langchain_longrag.bridge.answering import ModelAnswers, retriever_config
from langchain_longrag.bridge.settings import CheckedModel
from langchain_longrag.bridge.tree_nodes import Snapshot, from_node
from longrag.calls import Flow, arun, run
from longrag.errors import InvalidParameterError
from longrag.indexing.tree.tree import Tree
from longrag.indices.keyword_sources import KeywordSource, TreeSource, refuse_texts
from longrag.models.tokens import count_tokens
from longrag.retrieval.filters import DocumentFilter, MetadataFilter, both
from longrag.retrieval.tree_search import Compare, Scores, TreeScorer, collapsed, traverse
from longrag.retrieval.units import embed_query
from longrag.types import RetrievedNode, TokenCounter

Mode: TypeAlias = Literal["collapsed", "traversal"]
Scoring: TypeAlias = Literal["cosine", "bm25"]

_LAYER_NODES: Final = 5
_OF_MODE: Final = {
    "collapsed": ("levels", "redundancy", "compare"),
    "traversal": ("depth", "start_level"),
}
_REDUNDANCY: Final[float | None] = signature(collapsed).parameters["redundancy"].default
_EMPTY: Final = Tree([], np.empty((0, 1), np.float32))


class TreeSearch(CheckedModel, BaseRetriever):
    """A retriever over the nodes of a tree."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    mode: SkipValidation[Mode] = "collapsed"
    token_budget: SkipValidation[int | None] = 2000
    k: SkipValidation[int | None] = None
    depth: SkipValidation[int | None] = None
    start_level: SkipValidation[int | None] = None
    levels: SkipValidation[Collection[int] | None] = None
    redundancy: SkipValidation[float | None] = _REDUNDANCY
    compare: SkipValidation[Compare] = "related"
    scoring: SkipValidation[Scoring] = "cosine"
    filter: SkipValidation[MetadataFilter | None] = None

    def _prepare(self) -> None:
        super()._prepare()
        for name, kinds in (("mode", Mode), ("scoring", Scoring)):
            if getattr(self, name) not in get_args(kinds):
                allowed = " or ".join(f'"{kind}"' for kind in get_args(kinds))
                raise InvalidParameterError(name, getattr(self, name), allowed)
        for mode, names in _OF_MODE.items():
            for name in names:
                if mode != self.mode:
                    self._check_left_out(name, f"unless mode is {mode!r}")
        DocumentFilter.of(self.filter)
        self._search_collapsed(_EMPTY, np.zeros(0), self.k)
        self._traverse(_EMPTY, np.zeros(0), self.k)

    def _check_left_out(self, name: str, when: str, remedy: str = "") -> None:
        # Not by what was set: a runnable with other settings is made by setting all of them.
        value, default = getattr(self, name), type(self).model_fields[name].default
        if value is not None and (type(value) is not type(default) or value != default):
            raise InvalidParameterError(name, value, f"left out {when}", remedy)

    @property
    def token_counter(self) -> TokenCounter:
        """Counts the tokens of a text."""
        return count_tokens

    @abstractmethod
    def read_tree(self) -> tuple[Snapshot, TreeScorer, Embeddings]:
        """Return the tree as it is now, its scorer, and the model that embeds queries."""

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: MetadataFilter | None = None,
    ) -> list[Document]:
        snapshot, scorer, embedding = self._read_visible(filter)
        flow = self._flow(query, k, snapshot, scorer)
        config = retriever_config(run_manager)
        return run(flow, ModelAnswers(embedding=embedding, config=config).answer)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        filter: MetadataFilter | None = None,
    ) -> list[Document]:
        # Another process may have changed the index: to catch up may take time.
        snapshot, scorer, embedding = await asyncio.to_thread(self._read_visible, filter)
        flow = self._flow(query, k, snapshot, scorer)
        config = retriever_config(run_manager)
        return await arun(flow, ModelAnswers(embedding=embedding, config=config).aanswer)

    @property
    def counts_by_layer(self) -> bool:
        """Whether ``k`` is the number of nodes of each layer, which come layer by layer."""
        return self.mode == "traversal"

    @property
    def has_similarities(self) -> bool:
        """Whether scores are known to be such that the higher is better, in whatever order."""
        return True

    def keyword_source(
        self, documents: Sequence[Document] | None = None
    ) -> KeywordSource[Document] | None:
        """Return what a hybrid retriever indexes beside this one: the nodes of the tree.

        Raises:
            InvalidParameterError: ``documents`` are given; the tree has them.
        """
        refuse_texts("documents", documents)
        return TreeSource(self._read_visible_tree, self.levels)

    def _read_visible_tree(self) -> tuple[Tree, Callable[[RetrievedNode], Document]]:
        (documents, tree), _, _ = self._read_visible()
        return tree, lambda found: from_node(found, documents)

    def _read_visible(
        self, filter: MetadataFilter | None = None
    ) -> tuple[Snapshot, TreeScorer, Embeddings]:
        """Return what of the tree passes the filter of the retriever and the one of a call."""
        (documents, _), scorer, embedding = self.read_tree()
        wanted = both(self.document_filter(), DocumentFilter.of(filter))
        scorer = scorer.seen(documents, wanted)
        return (documents, scorer.tree), scorer, embedding

    def document_filter(self) -> DocumentFilter | None:
        """Return the filter of every search, None where everything may be seen."""
        return DocumentFilter.of(self.filter)

    def _flow(
        self, query: str, k: int | None, snapshot: Snapshot, scorer: TreeScorer
    ) -> Flow[list[Document]]:
        documents, tree = snapshot
        k = self.k if k is None else k
        if not len(tree):
            scores: Scores = np.zeros(0)
        elif self.scoring == "bm25":
            scores = scorer.keyword_scores(query)
        else:
            scores = scorer.asked((yield from embed_query([query])))
        take = self._search_collapsed if self.mode == "collapsed" else self._traverse
        return [from_node(found, documents) for found in take(tree, scores, k)]

    def _search_collapsed(
        self, tree: Tree, scores: Scores, k: int | None
    ) -> Sequence[RetrievedNode]:
        found = collapsed(
            tree,
            scores,
            token_budget=self.token_budget,
            top_k=k,
            levels=self.levels,
            redundancy=self.redundancy,
            compare=self.compare,
            count_tokens=self.token_counter,
        )
        # A node that shares no word with the question would only fill the budget.
        return [node for node in found if node.score > 0 or self.scoring == "cosine"]

    def _traverse(self, tree: Tree, scores: Scores, k: int | None) -> Sequence[RetrievedNode]:
        return traverse(
            tree,
            scores,
            top_k=_LAYER_NODES if k is None else k,
            depth=self.depth,
            start_level=self.start_level,
            token_budget=self.token_budget,
            count_tokens=self.token_counter,
        )
