"""The query gate on embeddings, and with a language model (Best Practices §3.1).

Both answer the question of `longrag.retrieval.query_classifier`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from longrag.calls import Flow, Generate, ask
from longrag.errors import EmbeddingError, GenerationError, IndexFormatError
from longrag.indexing.storage import load_arrays, save_arrays
from longrag.models.embedder import Embedder
from longrag.models.logistic import logistic_regression
from longrag.models.replies import without_thoughts
from longrag.prompts import CLASSIFY_QUERY, check_slots, fill, quote
from longrag.retrieval.query_classifier import (
    Decision,
    check_query,
    check_threshold,
    check_training,
    explain_probability,
    sigmoid,
)

_KIND = "embedding_query_classifier"
_VERSION = 1

# A bare yes or no in Chinese begins many words that are neither, such as those for "whether".
_ALONE = r"(?![\u3400-\u9fff])"
_YES = rf"yes|y|true|需要|(?:是的?|对){_ALONE}"
_NO = rf"no|n|false|不需要|不用|(?:否|不是?){_ALONE}"
_LABEL = r"(?:(?:final\s+)?(?:answer|verdict|retrieval)|答案|回答)\s*(?:is\b|[:：是为])"
_END = r"(?![^\W\d_\u3400-\u9fff])"
_FIRST = re.compile(rf"[\W_]*(?:(?P<no>{_NO})|(?P<yes>{_YES})){_END}", re.IGNORECASE)
_LABELLED = re.compile(
    rf"(?:^|\b|(?<=[\u3400-\u9fff])){_LABEL}[\W_]*(?:(?P<no>{_NO})|(?P<yes>{_YES})){_END}",
    re.IGNORECASE,
)


@dataclass(frozen=True, eq=False)
class EmbeddingQueryClassifier:
    """A logistic regression on the embeddings of queries.

    Made by ``fit`` or ``load``. As long as the embedder is deterministic, so is it. Which part of a
    long query counts is up to the embedder.

    Args:
        embedder: embeds queries, in the role ``"query"``.
        weights: a coefficient for each dimension.
        intercept: the constant term.
        threshold: from which probability on a query needs retrieval, between 0 and 1.

    Raises:
        InvalidParameterError: the threshold is not between 0 and 1.
    """

    embedder: Embedder
    weights: NDArray[np.float64] = field(repr=False)
    intercept: float
    threshold: float = 0.5

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    @classmethod
    def fit(
        cls,
        embedder: Embedder,
        queries: Sequence[str],
        labels: Sequence[bool],
        *,
        threshold: float = 0.5,
        inverse_strength: float = 10.0,
    ) -> EmbeddingQueryClassifier:
        """Embed queries in one call and train on them; see ``QueryClassifier.fit``.

        Raises:
            InvalidParameterError: as ``QueryClassifier.fit``.
            EmbeddingError: the vectors are not finite, or not one per query.
        """
        answers = check_training(queries, labels, inverse_strength)
        check_threshold(threshold)
        vectors = _embed(embedder, queries)
        weights, intercept = logistic_regression(vectors, answers, inverse_strength)
        return cls(embedder, weights, intercept, threshold)

    def probability(self, query: str) -> float:
        """Return how likely the query is to need retrieval, between 0 and 1.

        Raises:
            InvalidParameterError: the query is blank or not a string.
            EmbeddingError: the vector is not finite or not of the width trained on.
        """
        check_query(query)
        (vector,) = _embed(self.embedder, [query])
        if vector.shape != self.weights.shape:
            raise EmbeddingError(
                f"the embedder gives vectors of width {vector.size}, and the classifier was"
                f" trained on width {self.weights.size}: give the embedder it was trained with"
            )
        return sigmoid(self.intercept + float(vector @ self.weights))

    def needs_retrieval(self, query: str) -> bool:
        """Tell whether the probability reaches the threshold; raises as ``probability``."""
        return self.probability(query) >= self.threshold

    def explain(self, query: str) -> Decision:
        """Decide as ``needs_retrieval`` does, and say by which probability."""
        return explain_probability(self.probability(query), self.threshold)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the coefficients, not the embedder, to a new folder.

        Raises:
            IndexFormatError: the path holds something else; it is left as it was.
        """
        meta = {"intercept": self.intercept, "threshold": self.threshold}
        save_arrays(path, _KIND, _VERSION, {"weights": self.weights}, meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, embedder: Embedder) -> EmbeddingQueryClassifier:
        """Read what ``save`` wrote, for the embedder it was trained with.

        Raises:
            IndexFormatError: nothing there, damaged, or of another kind or version.
        """
        arrays, meta = load_arrays(path, _KIND, _VERSION, mmap=False)
        try:
            weights = arrays["weights"].astype(np.float64, casting="safe")
            return cls(embedder, weights, float(meta["intercept"]), float(meta["threshold"]))
        except (KeyError, TypeError, ValueError) as error:
            raise IndexFormatError(f"{path} holds no query classifier: {error}") from error


def classify_query(
    query: str,
    *,
    prompt: str = CLASSIFY_QUERY,
    fallback: bool | None = True,
    request: Callable[[str], Generate] = Generate,
) -> Flow[bool]:
    """Ask a language model whether a query needs retrieval, in one call.

    The whole query is put into one field: nothing in it ends the field.

    Args:
        query: what the user wrote.
        prompt: a template with the slot ``{query}``; other braces are kept.
        fallback: the decision when the answer is neither yes nor no. True, the default, retrieves:
            a needless search costs time, a missing one the answer. None raises instead.
        request: makes the request for an answer to a prompt, such as one of a subclass that says
            which model is asked.

    Returns:
        A flow: drive it with ``longrag.calls.run`` or ``arun``.

    Raises:
        InvalidParameterError: the query is blank or not a string, or the prompt lacks its slot.
        GenerationError: the answer is neither yes nor no, and ``fallback`` is None.
    """
    decision = yield from judge_query(query, prompt=prompt, fallback=fallback, request=request)
    return decision.needs_retrieval


def judge_query(
    query: str,
    *,
    prompt: str = CLASSIFY_QUERY,
    fallback: bool | None = True,
    request: Callable[[str], Generate] = Generate,
) -> Flow[Decision]:
    """Ask as ``classify_query`` does, and return the decision with what the model answered."""
    check_query(query)
    check_slots(prompt, "query")
    answer = yield from ask(request(fill(prompt, query=quote(query))))
    verdict = parse_verdict(answer)
    if verdict is None and fallback is None:
        raise GenerationError(
            f"the language model was asked whether a query needs retrieval and answered"
            f" {str(answer)[:80]!r}, which is neither yes nor no. Set fallback to go on."
        )
    said = f"the language model answered {str(answer).strip()[:80]!r}"
    if verdict is None:
        return Decision(bool(fallback), f"{said}, which is neither yes nor no")
    return Decision(verdict, said)


def parse_verdict(answer: object) -> bool | None:
    """Read a yes or a no, in English or Chinese, or None where there is neither.

    Thoughts before it are left out. The answer is the first word, or the word after the
    last label such as "Answer:"; a yes or no elsewhere in a sentence does not count.
    """
    if not isinstance(answer, str):
        return None
    text = without_thoughts(answer)
    labelled = list(_LABELLED.finditer(text))
    found = labelled[-1] if labelled else _FIRST.match(text)
    return None if found is None else found["yes"] is not None


def _embed(embedder: Embedder, queries: Sequence[str]) -> NDArray[np.float64]:
    vectors = np.asarray(embedder(list(queries), "query"), dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) != len(queries):
        raise EmbeddingError(
            f"an embedder must return one vector per query: {len(queries)} queries, an array of"
            f" shape {vectors.shape}"
        )
    if not np.isfinite(vectors).all():
        raise EmbeddingError("an embedder must return finite vectors")
    return vectors
