"""Which key a question asks for, without a language model: by its words and by an embedder.

Both are compared among the candidates of one question, so that a word which all of them share
counts little. From the second quote on what counts are the question's words that the quotes before
it lack: the question as a whole would find the same fact again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from longrag.models.rerankers.scorers import Scorer, finite_scores
from longrag.models.words import content_words

T = TypeVar("T", bound=Hashable)

FIRST_WORDS: Final = 0.5
"""What the words count for a first quote, where the key scorer counts 1."""

LATER_WORDS: Final = 1.0
"""What the words that the quotes lack count for a later one."""

PASSAGES: Final = 0.5
"""What the retriever's scores count: for a first quote, and for later ones without a key scorer."""

_K1: Final = 1.5
_B: Final = 0.75


def relevance(
    keys: Mapping[T, str],
    passages: Mapping[T, float],
    question: str,
    *,
    quoted: Sequence[str] = (),
    key_scorer: Scorer | None = None,
) -> dict[T, float]:
    """Return how well each key serves as the next quote.

    That is a sum of standard scores (mean 0, standard deviation 1 over the keys). The weights were
    chosen on dev questions of NQ-open and HotpotQA and tried once on 2WikiMultihopQA
    (``benchmarks/riches_quotes.py``).

    Args:
        keys: the text of each key.
        passages: the standard score of each key's passage among the retriever's results.
        question: what the keys are compared with; without one only the passages count.
        quoted: the quotes before this one.
        key_scorer: scores the texts of keys against the question; None leaves it to the words.

    Raises:
        RerankError: the key scorer failed, or did not return one number for each key.
    """
    texts = list(keys.values())
    asked = content_words(question)
    known = {word for quote in quoted for word in content_words(quote)}
    by_words = bm25([word for word in asked if word not in known], texts)
    weight = LATER_WORDS if quoted else FIRST_WORDS
    total = weight * standard(by_words.tolist())
    if key_scorer is not None and texts and question:
        total = total + standard(finite_scores(key_scorer(question, texts), len(texts)).tolist())
    if key_scorer is None or not quoted:
        total = total + PASSAGES * np.array([passages[key] for key in keys])
    return dict(zip(keys, total.tolist(), strict=True))


def bm25(words: Sequence[str], texts: Sequence[str]) -> NDArray[np.float64]:
    """Return how well words are found in each text: BM25 in Lucene's form; shape (texts).

    k1 is 1.5 and b is 0.75. How rare a word is depends on these texts alone. A word that is asked
    twice counts once.
    """
    counts = [Counter(content_words(text)) for text in texts]
    lengths = np.array([count.total() for count in counts], np.float64)
    shares = lengths / (lengths.mean() or 1.0) if len(texts) else lengths
    found = np.zeros(len(texts))
    for word in dict.fromkeys(words):
        times = np.array([count[word] for count in counts], np.float64)
        holding = np.count_nonzero(times)
        rarity = math.log1p((len(texts) - holding + 0.5) / (holding + 0.5))
        found += rarity * times * (_K1 + 1) / (times + _K1 * (1 - _B + _B * shares))
    return found


def standard(values: Sequence[float]) -> NDArray[np.float64]:
    """Return values in standard deviations from their mean; zeros where they are all equal."""
    if len(values) < 2 or not (spread := pstdev(values)):
        return np.zeros(len(values))
    return (np.array(values, np.float64) - fmean(values)) / spread
