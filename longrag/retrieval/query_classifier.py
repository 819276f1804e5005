"""Does a query need retrieval, or does the user's text suffice? (Best Practices §3.1).

The paper fine-tunes BERT on fifteen types of task. This is a logistic regression on n-grams,
shipped as coefficients: it loads in milliseconds and needs no model. The same on embeddings and
with a language model is in `longrag.retrieval.query_gates`.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from longrag.errors import IndexFormatError, InvalidParameterError
from longrag.indexing.storage import load_arrays, save_arrays
from longrag.retrieval.query_features import Block, blocks, novelty

_KIND = "query_classifier"
_VERSION = 1
_DEFAULT = Path(__file__).with_name("query_classifier_default")

Floats = NDArray[np.float64]


@runtime_checkable
class Gate(Protocol):
    """Decides whether a query goes to the retriever."""

    def needs_retrieval(self, query: str) -> bool:
        """Return True where the query asks for more than it brings along."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a gate decided about a query, and why; ``reason`` is None where it does not say."""

    needs_retrieval: bool
    reason: str | None = None


@runtime_checkable
class ExplainedGate(Gate, Protocol):
    """A gate that gives the reason of its decision, which recipes put into their traces."""

    def explain(self, query: str) -> Decision:
        """Return the same decision as ``needs_retrieval``, with its reason."""


def explain_probability(probability: float, threshold: float) -> Decision:
    """Decide by a probability and the threshold that it must reach."""
    needed = probability >= threshold
    relation = "reaches" if needed else "is below"
    return Decision(
        needed,
        f"the probability {probability:.3f} that the query needs retrieval {relation} the"
        f" threshold {threshold:.3f}",
    )


@dataclass(frozen=True, eq=False)
class QueryClassifier:
    """A logistic regression on word n-grams, character n-grams and the shape of a query.

    Made by ``load_default``, ``load`` or ``fit``. English and Chinese are what the shipped
    coefficients know. Of a query of more than 2,000 characters the first 1,500 and the last 500
    are read: what is asked comes before or after a pasted text. One query takes well under a
    millisecond, and gives the same probability in every process.

    Args:
        terms: the features that count.
        counts: in how many of the training queries each occurred.
        weights: the coefficient of each.
        intercept: the constant term.
        size: how many queries it was trained on.
        threshold: from which probability on a query needs retrieval, between 0 and 1.

    Raises:
        InvalidParameterError: the threshold, or terms, counts and weights that do not belong
            together.

    Source: Best Practices §3.1 and Appendix A.1.
    """

    terms: tuple[str, ...] = field(repr=False)
    counts: NDArray[np.uint16] = field(repr=False)
    weights: NDArray[np.float32] = field(repr=False)
    intercept: float
    size: int
    threshold: float = 0.5
    _places: dict[str, int] = field(init=False, repr=False)
    _idf: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        places = {term: place for place, term in enumerate(self.terms)}
        if not len(places) == len(self.terms) == len(self.counts) == len(self.weights):
            raise InvalidParameterError(
                "terms",
                (len(self.terms), len(self.counts), len(self.weights)),
                "distinct, with one count and one weight each",
            )
        object.__setattr__(self, "_places", places)
        object.__setattr__(self, "_idf", _inverse_frequency(self.counts, self.size))

    @classmethod
    def load_default(cls, *, threshold: float | None = None) -> QueryClassifier:
        """Return the classifier that comes with the package.

        ``threshold`` takes the place of the one chosen on the development set.

        Raises:
            IndexFormatError: the installation is damaged.
        """
        return cls.load(_DEFAULT, threshold=threshold)

    @classmethod
    def fit(
        cls,
        queries: Sequence[str],
        labels: Sequence[bool],
        *,
        threshold: float = 0.5,
        inverse_strength: float = 10.0,
        min_count: int = 2,
    ) -> QueryClassifier:
        """Train on your own queries.

        Deterministic, whatever the number of threads. The order of the queries does not matter
        beyond the last digits.

        Args:
            queries: at least one of each class; a few hundred are of use.
            labels: True where the query needs retrieval.
            threshold: from which probability on a query needs retrieval.
            inverse_strength: the inverse of the L2 penalty, above 0; larger fits closer.
            min_count: in how many queries a feature must occur to count, at least 1.

        Raises:
            InvalidParameterError: a blank query, labels of one class only or of another number, or
                a setting outside what is allowed.
        """
        answers = check_training(queries, labels, inverse_strength)
        check_threshold(threshold)
        if isinstance(min_count, bool) or not isinstance(min_count, int) or min_count < 1:
            raise InvalidParameterError("min_count", min_count, "an integer of at least 1")
        parsed = [blocks(query) for query in queries]
        known = frozenset(_vocabulary(parsed, min_count)[0])
        parsed = [(*found, novelty(found, known)) for found in parsed]
        terms, counts = _vocabulary(parsed, min_count)
        if not terms:
            raise InvalidParameterError(
                "min_count", min_count, "at most the number of queries that some feature occurs in"
            )
        matrix = _matrix(parsed, terms, _inverse_frequency(counts, len(parsed)))
        weights, intercept = logistic_regression(matrix, answers, inverse_strength)
        return cls(
            terms, counts, weights.astype(np.float32), intercept, len(parsed), float(threshold)
        )

    def probability(self, query: str) -> float:
        """Return how likely the query is to need retrieval, between 0 and 1.

        Raises:
            InvalidParameterError: the query is blank or not a string.
        """
        check_query(query)
        score = self.intercept
        found = blocks(query)
        for block in (*found, novelty(found, self._places)):
            places, values = _values(block, self._places, self._idf)
            score += float(self.weights[places].astype(np.float64) @ values)
        return sigmoid(score)

    def needs_retrieval(self, query: str) -> bool:
        """Tell whether the probability reaches the threshold.

        Raises:
            InvalidParameterError: the query is blank or not a string.
        """
        return self.probability(query) >= self.threshold

    def explain(self, query: str) -> Decision:
        """Decide as ``needs_retrieval`` does, and say by which probability.

        Raises:
            InvalidParameterError: the query is blank or not a string.
        """
        return explain_probability(self.probability(query), self.threshold)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the classifier to a new folder, whole or not at all.

        Raises:
            IndexFormatError: the path holds something else; it is left as it was.
        """
        text = "\n".join(self.terms).encode("utf-8", "surrogatepass")
        arrays: dict[str, NDArray[Any]] = {
            "terms": np.frombuffer(text, dtype=np.uint8),
            "counts": self.counts,
            "weights": self.weights,
        }
        meta = {"intercept": self.intercept, "size": self.size, "threshold": self.threshold}
        save_arrays(path, _KIND, _VERSION, arrays, meta)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, threshold: float | None = None
    ) -> QueryClassifier:
        """Read what ``save`` wrote; ``threshold`` takes the place of the saved one.

        Raises:
            IndexFormatError: nothing there, damaged, or of another kind or version.
        """
        arrays, meta = load_arrays(path, _KIND, _VERSION, mmap=False)
        try:
            text = arrays["terms"].tobytes().decode("utf-8", "surrogatepass")
            loaded = cls(
                tuple(text.split("\n")) if text else (),
                arrays["counts"].astype(np.uint16, casting="safe"),
                arrays["weights"].astype(np.float32, casting="safe"),
                float(meta["intercept"]),
                int(meta["size"]),
                float(meta["threshold"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise IndexFormatError(f"{path} holds no query classifier: {error}") from error
        return loaded if threshold is None else loaded.with_threshold(threshold)

    def with_threshold(self, threshold: float) -> QueryClassifier:
        """Return the same classifier with another threshold.

        Raises:
            InvalidParameterError: the threshold is not between 0 and 1.
        """
        check_threshold(threshold)
        return replace(self, threshold=float(threshold))


def check_query(query: object) -> None:
    """Raise unless the value is a query.

    Raises:
        InvalidParameterError: it is blank or not a string.
    """
    if not isinstance(query, str) or not query.strip():
        raise InvalidParameterError("query", query, "a string that is not blank")


def check_threshold(threshold: float) -> None:
    """Raise unless the value is a probability.

    Raises:
        InvalidParameterError: it is not a number between 0 and 1.
    """
    if not (_is_number(threshold) and 0 <= threshold <= 1):
        raise InvalidParameterError("threshold", threshold, "a number between 0 and 1")


def check_training(
    queries: Sequence[str], labels: Sequence[bool], inverse_strength: float
) -> NDArray[np.bool_]:
    """Return the labels as an array, or raise if they cannot be trained on.

    Raises:
        InvalidParameterError: see ``QueryClassifier.fit``.
    """
    if isinstance(queries, str):
        raise InvalidParameterError("queries", queries, "a sequence of strings")
    for query in queries:
        check_query(query)
    if len(queries) != len(labels):
        raise InvalidParameterError("labels", len(labels), f"{len(queries)} labels, one per query")
    for label in labels:
        if not isinstance(label, bool | np.bool_):
            raise InvalidParameterError("labels", label, "True or False")
    answers = np.fromiter(labels, dtype=np.bool_, count=len(labels))
    if answers.all() or not answers.any():
        raise InvalidParameterError("labels", answers[:1].tolist(), "of both classes")
    if not (_is_number(inverse_strength) and 0 < inverse_strength < math.inf):
        raise InvalidParameterError("inverse_strength", inverse_strength, "a number above 0")
    return answers


def logistic_regression(
    matrix: Any, answers: NDArray[np.bool_], inverse_strength: float
) -> tuple[Floats, float]:
    """Return the coefficients and the intercept of an L2-regularised logistic regression.

    ``matrix`` is dense or sparse, of shape (queries, features).
    """
    # scikit-learn takes a second to import and is not needed to classify.
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    model = LogisticRegression(
        C=float(inverse_strength), solver="newton-cg", max_iter=10_000, tol=1e-8
    )
    # The order in which threads add up would otherwise show in the last bits.
    with threadpool_limits(limits=1):
        model.fit(matrix, answers)
    return model.coef_[0], float(model.intercept_[0])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def sigmoid(score: float) -> float:
    """Return the probability that belongs to a log-odds, without overflow."""
    if score >= 0:
        return 1 / (1 + math.exp(-score))
    return math.exp(score) / (1 + math.exp(score))


def _vocabulary(
    parsed: Sequence[tuple[Block, ...]], min_count: int
) -> tuple[tuple[str, ...], NDArray[np.uint16]]:
    seen: Counter[str] = Counter()
    for found in parsed:
        for block in found:
            seen.update(block.features)
    terms = tuple(sorted(term for term, count in seen.items() if count >= min_count))
    limit = np.iinfo(np.uint16).max
    return terms, np.array([min(seen[term], limit) for term in terms], dtype=np.uint16)


def _inverse_frequency(counts: NDArray[np.uint16], size: int) -> Floats:
    frequency: Floats = np.log((1 + size) / (1 + counts.astype(np.float64))) + 1
    return frequency


def _values(block: Block, places: dict[str, int], idf: Floats) -> tuple[NDArray[np.intp], Floats]:
    known = [places[feature] for feature in block.features if feature in places]
    where = np.array(known, dtype=np.intp)
    if block.scale is not None:
        return where, np.full(len(known), block.scale)
    values = idf[where]
    # An empty block has norm 0 and nothing to scale.
    return where, values / (math.sqrt(float(values @ values)) or 1.0)


def _matrix(parsed: Sequence[tuple[Block, ...]], terms: Sequence[str], idf: Floats) -> Any:
    """Return a sparse matrix of shape (queries, terms)."""
    from sklearn.feature_extraction import DictVectorizer

    places = {term: place for place, term in enumerate(terms)}
    rows: list[dict[str, float]] = []
    for found in parsed:
        row: dict[str, float] = {}
        for block in found:
            where, values = _values(block, places, idf)
            row.update(zip((terms[place] for place in where), values.tolist(), strict=True))
        rows.append(row)
    # It sorts its columns by name, as the terms are.
    return DictVectorizer().fit_transform(rows)
