"""The words of a question in passages: what they weigh together in all, and each in some."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from longrag.indexing.postings import Floats, Numbers, Postings

_K1: Final = 1.5
_B: Final = 0.75


class PassageWords:
    """The words of passages.

    Args:
        postings: the words of each passage.
    """

    def __init__(self, postings: Postings) -> None:
        self.postings = postings
        lengths = postings.lengths
        mean = float(lengths.sum()) / max(len(lengths), 1) or 1.0
        self._damping = _K1 * (1 - _B + _B * lengths / mean)

    def asked(self, terms: Iterable[str], rarity: float) -> WordScores:
        """Return the weights of the distinct terms of a question.

        Args:
            terms: the terms.
            rarity: the power of the inverse document frequency.
        """
        return WordScores(self.postings, self._damping, terms, rarity)


class WordScores:
    """The BM25 weights of a question's terms, divided by the largest sum of any passage.

    Args:
        postings: the words of each passage.
        damping: what is added to a count, for each passage.
        terms: the distinct terms of the question.
        rarity: the power of the inverse document frequency.

    Attributes:
        rarest: the inverse document frequency of the rarest term; 0 where no passage holds one.
        sums: the sum of the weights in each passage, but for rounding; shape (passages,).
    """

    def __init__(
        self, postings: Postings, damping: Floats, terms: Iterable[str], rarity: float
    ) -> None:
        self._postings, self._damping = postings, damping
        self._terms: list[str] = []
        self._factors: list[float] = []
        self._matches: list[tuple[Numbers, Floats]] = []
        self.rarest = 0.0
        self.sums = np.zeros(len(postings))
        for term in terms:
            _, holders, counts = postings.of_terms([term])
            if not len(holders):
                continue
            idf = float(postings.idf_of(len(holders)))
            self.rarest = max(self.rarest, idf)
            self._terms.append(term)
            self._factors.append(idf**rarity)
            weights = self._factors[-1] * counts / (counts + damping.take(holders))
            self._matches.append((holders, weights))
            np.add.at(self.sums, holders, weights)
        self._largest = self.sums.max(initial=0.0) or 1.0
        self.sums /= self._largest

    def __len__(self) -> int:
        """Return the number of terms that some passage holds."""
        return len(self._terms)

    def of(self, passages: Numbers) -> Floats:
        """Return the weight of each term in each of some passages, shape (terms, passages)."""
        counts = self._postings.counts_in(passages, self._terms)
        factors = np.array(self._factors)[:, np.newaxis]
        weights: Floats = factors * counts / (counts + self._damping[passages])
        return weights / self._largest

    def add_to(self, scores: Floats, factors: Iterable[float]) -> None:
        """Add the weights of each term in all passages to scores, times a factor of the term."""
        for (holders, weights), factor in zip(self._matches, factors, strict=True):
            if factor:
                np.add.at(scores, holders, factor / self._largest * weights)
