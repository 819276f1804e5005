"""Evidence and trees, searched by their own indexes."""

from __future__ import annotations

from longrag.evaluation.harness.corpora import Corpus
from longrag.evaluation.harness.modules import DEPTH, ModularSystem
from longrag.evaluation.harness.outcomes import RetrievedText, Vector
from longrag.evaluation.harness.settings import PipelineSettings
from longrag.retrieval import TreeScorer, collapsed, traverse


class EvidenceSystem(ModularSystem):
    """Evidence within a budget."""

    def __init__(self, settings: PipelineSettings, corpus: Corpus) -> None:
        super().__init__(settings, corpus)
        self._index = corpus.order(settings)

    def search(self, query: str, vector: Vector, budget: int | None) -> list[RetrievedText]:
        """Return the evidence for a question."""
        most = DEPTH if budget is None else None
        found = self._index.read(query, vector, token_budget=budget, k=most)
        return [RetrievedText(one.unit.text, one.unit.doc_ids) for one in found]


class TreeSystem(ModularSystem):
    """A tree of summaries, all levels at once or walked down from the roots."""

    def __init__(self, settings: PipelineSettings, corpus: Corpus) -> None:
        super().__init__(settings, corpus)
        self._tree = corpus.tree(settings)
        self._scorer = TreeScorer(self._tree)

    def search(self, query: str, vector: Vector, budget: int | None) -> list[RetrievedText]:
        """Return the nodes that are read."""
        scores = self._scorer.asked(vector)
        if self.settings.unit == "traversal":
            nodes = traverse(self._tree, scores, token_budget=budget)
        else:
            nodes = collapsed(self._tree, scores, token_budget=budget, top_k=DEPTH)
        # A summary is made from documents and holds none of them: the root is made from all.
        return [
            RetrievedText(
                one.node.text,
                () if one.node.level else one.node.doc_ids,
                one.node.title,
                one.node.tokens,
            )
            for one in nodes
        ]
