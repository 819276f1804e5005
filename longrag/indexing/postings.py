"""An inverted index: which texts hold which terms, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


class Postings:
    """The terms of texts, by text and by term, in compressed sparse rows.

    Args:
        bags: the terms of each text, each as often as the text holds it.

    Attributes:
        idf: the inverse document frequency of each term, in the form of BM25 that is never
            negative; shape (terms,).
        lengths: the terms of each text with their repetitions; shape (texts,).
    """

    def __init__(self, bags: Iterable[Iterable[str]]) -> None:
        number: dict[str, int] = {}
        terms: list[int] = []
        counts: list[int] = []
        ends: list[int] = []
        for bag in bags:
            held = Counter(bag)
            terms += [number.setdefault(term, len(number)) for term in held]
            counts += held.values()
            ends.append(len(terms))
        self._number = number
        self._starts = np.array([0, *ends], np.int64)
        self._terms = np.array(terms, np.int64)
        self._counts = np.array(counts, np.float64)
        n_texts = len(ends)
        texts = np.repeat(np.arange(n_texts), np.diff(self._starts))
        held_by = np.bincount(self._terms, minlength=len(number))
        self.idf: Floats = np.log(1 + (n_texts - held_by + 0.5) / (held_by + 0.5))
        self.lengths: Floats = np.bincount(texts, self._counts, n_texts).astype(np.float64)
        by_term = np.argsort(self._terms, kind="stable")
        self._texts = texts[by_term]
        self._posted = self._counts[by_term]
        self._term_starts = np.append(0, np.cumsum(held_by))

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._starts) - 1

    def numbers(self, terms: Iterable[str]) -> list[int]:
        """Return the numbers of the terms that some text holds, each once, in their order."""
        return [self._number[t] for t in dict.fromkeys(terms) if t in self._number]

    def names(self, numbers: Iterable[int]) -> list[str]:
        """Return the terms of these numbers."""
        terms = list(self._number)
        return [terms[number] for number in numbers]

    def of_text(self, text: int) -> tuple[Numbers, Floats]:
        """Return the terms of a text, and how often it holds each."""
        row = slice(self._starts[text], self._starts[text + 1])
        return self._terms[row], self._counts[row]

    def of_term(self, term: int) -> tuple[Numbers, Floats]:
        """Return the texts that hold a term, ascending, and how often each holds it."""
        row = slice(self._term_starts[term], self._term_starts[term + 1])
        return self._texts[row], self._posted[row]

    def norms(self) -> Floats:
        """Return the Euclidean norms of the texts' TF-IDF vectors, shape (texts,); 1 for none."""
        texts = np.repeat(np.arange(len(self)), np.diff(self._starts))
        weights = (1 + np.log(self._counts)) * self.idf[self._terms]
        norms: Floats = np.sqrt(np.bincount(texts, weights**2, len(self)))
        return np.where(norms > 0, norms, 1.0)
