"""A control that no question changes: the most frequent words of the corpus."""

from __future__ import annotations

from bisect import bisect_right

from longrag.evaluation.harness.corpora import Corpus
from longrag.evaluation.harness.modules import ModularSystem
from longrag.evaluation.harness.outcomes import RetrievedText, Vector
from longrag.evaluation.harness.settings import PipelineSettings


class WordListSystem(ModularSystem):
    """The most frequent content words of the corpus, as many as the budget holds.

    A measure that it wins says nothing about what is retrieved.
    """

    def __init__(self, settings: PipelineSettings, corpus: Corpus) -> None:
        super().__init__(settings, corpus)
        self._words = corpus.frequent_words()
        self._text = self._fill(self.budget)

    def search(self, query: str, vector: Vector, budget: int | None) -> list[RetrievedText]:
        """Return the list, which is of no document."""
        return [RetrievedText(self._text, ())] if self._text else []

    def _fill(self, budget: int | None) -> str:
        if budget is None:
            return " ".join(self._words)
        counts = range(1, len(self._words) + 1)
        held = bisect_right(counts, budget, key=self._tokens)
        # A counter may count more words for fewer tokens somewhere.
        while held and self._tokens(held) > budget:
            held -= 1
        return " ".join(self._words[:held])

    def _tokens(self, words: int) -> int:
        return self.counter(" ".join(self._words[:words]))
