"""The embedder protocol, and local embedders that need no key and no download."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from longrag.errors import IndexFormatError, InvalidParameterError
from longrag.models.words import content_words

Role = Literal["query", "document"]
Vectors = npt.NDArray[np.float32]

_FEW_TEXTS = 32


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors."""

    def __call__(self, texts: Sequence[str], role: Role) -> Vectors:
        """Return float32 vectors of shape (texts, width), finite, one width for every call."""


class LazyEmbedder:
    """An embedder that is loaded when it is first used, once in each process.

    Other processes are sent what loads it instead of the model.

    Args:
        load: makes the embedder: a class or a function of a module, such as ``MiniLmEmbedder``.
    """

    def __init__(self, load: Callable[[], Embedder]) -> None:
        self._load = load

    def __call__(self, texts: Sequence[str], role: Role) -> Vectors:
        """Embed texts by the embedder itself."""
        return _loaded(self._load)(texts, role)


@cache
def _loaded(load: Callable[[], Embedder]) -> Embedder:
    return load()


class LsaEmbedder:
    """Latent semantic analysis fitted on a corpus: TF-IDF, then a truncated SVD.

    Words are stemmed and Chinese is read as character bigrams. Vectors have unit length, or are
    zero for texts that share no word with the corpus. Needs no torch and takes milliseconds;
    meant for tests, demos and small corpora. Deterministic for one corpus in one order and one
    ``random_state``, whatever the number of threads.

    Args:
        corpus: the texts that are later embedded or searched.
        dimensions: the largest width; fewer where the corpus has fewer texts or words.
        random_state: seeds the randomised SVD.

    Raises:
        InvalidParameterError: ``dimensions`` is below 1.

    Source: Deerwester et al. 1990.
    """

    def __init__(
        self, corpus: Sequence[str], *, dimensions: int = 256, random_state: int = 0
    ) -> None:
        # scikit-learn takes a second to import and is not needed to use the frameworks' models.
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
        from threadpoolctl import threadpool_limits

        if dimensions < 1:
            raise InvalidParameterError("dimensions", dimensions, "at least 1")
        self._vocabulary: dict[str, int] = {}
        self._weights = np.zeros(0)
        self._components: npt.NDArray[Any] = np.zeros((1, 0))
        if not any(content_words(text) for text in corpus):
            return
        vectorizer = TfidfVectorizer(analyzer=content_words, sublinear_tf=True)
        weights = vectorizer.fit_transform(corpus)
        self._vocabulary = {word: int(n) for word, n in vectorizer.vocabulary_.items()}
        self._weights = vectorizer.idf_
        if weights.shape[1] <= dimensions:
            self._components = np.eye(weights.shape[1])
            return
        svd = TruncatedSVD(min(dimensions, weights.shape[0]), random_state=random_state)
        # The order in which threads add up would otherwise show in the last bits.
        with threadpool_limits(limits=1):
            svd.fit(weights)
        self._components = svd.components_

    def __call__(self, texts: Sequence[str], role: Role) -> Vectors:
        """Embed texts; queries and documents alike."""
        vectors = np.zeros((len(texts), len(self._components)))
        axes = self._components.T
        if len(texts) > _FEW_TEXTS:
            # What belongs to a word is then read from one place of memory.
            axes = np.ascontiguousarray(axes)
        for row, text in zip(vectors, texts, strict=True):
            words, weights = self._weigh(text)
            if words:
                # Added up word by word, as a sparse product does.
                products = np.multiply(weights[:, None], axes[words], order="C")
                np.sum(products, axis=0, out=row)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        scaled: Vectors = (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)
        return scaled

    def _weigh(self, text: str) -> tuple[list[int], npt.NDArray[np.float64]]:
        """Return the words of a text that the corpus has, in order, and their unit weights."""
        counts = Counter(
            self._vocabulary[one] for one in content_words(text) if one in self._vocabulary
        )
        words = sorted(counts)
        if not words:
            return words, np.zeros(0)
        weights = np.log([float(counts[word]) for word in words]) + 1.0
        weights *= self._weights[words]
        weights /= np.sqrt(np.add.accumulate(weights * weights)[-1])
        return words, weights

    def to_bytes(self) -> dict[str, bytes]:
        """Return what was fitted as named bytes, values in float32, for ``from_bytes``."""
        width, words = self._components.shape
        names = sorted(self._vocabulary, key=self._vocabulary.__getitem__) if words else []
        return {
            "vocabulary": json.dumps(names).encode(),
            "weights": np.asarray(self._weights, "<f4").tobytes(),
            "width": json.dumps(width).encode(),
            "components": np.asarray(self._components, "<f4").tobytes(),
        }

    @classmethod
    def from_bytes(cls, fitted: Mapping[str, bytes]) -> LsaEmbedder:
        """Make the embedder that ``to_bytes`` was called on, to the precision of float32.

        Raises:
            IndexFormatError: the bytes are damaged.
        """
        try:
            words = json.loads(fitted["vocabulary"])
            weights = np.frombuffer(fitted["weights"], "<f4").astype(np.float64)
            values = np.frombuffer(fitted["components"], "<f4")
            components = values.reshape(json.loads(fitted["width"]), len(words))
            finite = np.isfinite(components).all() and np.isfinite(weights).all()
            if len(weights) != len(words) or not finite:
                raise ValueError("its parts do not fit together")
            embedder = cls.__new__(cls)
            embedder._vocabulary = {word: n for n, word in enumerate(words)}
            embedder._weights = weights
            embedder._components = components if words else np.zeros((1, 0))
        except (KeyError, TypeError, ValueError) as error:
            raise IndexFormatError(f"the saved embedder is damaged: {error}") from error
        return embedder
