"""Term weights of passages, computed before any query, and the scores they give in a moment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longrag.errors import IndexFormatError, InvalidDocumentError, InvalidParameterError
from longrag.indexing.storage import load_arrays, save_arrays
from longrag.models.rerankers.networks import readable
from longrag.models.rerankers.tilde_terms import TermTokenizer, TermWeigher, TermWeights

_KIND = "tilde"
_VERSION = 1


@dataclass(frozen=True, eq=False)
class TildeIndex:
    """The weights of all terms of some passages, by passage and term.

    Made by ``precompute`` or ``load`` and never changed. A score takes no model: it is the sum over
    a query's terms of their weights in the passage. Needs 12 bytes a term and 16 a passage.

    Args:
        ids: the passages' ids, in the order in which they were given.
        vocab_size: one more than the largest term.
        fingerprint: of the tokenizer that cut the passages.
        keys: ``passage * vocab_size + term``, rising; int64 of shape (terms of all passages).
        weights: those of the keys, positive; float32 of the same shape.
        digests: the first 16 bytes of SHA-256 of each text; uint8 of shape (passages, 16).
    """

    ids: tuple[str, ...]
    vocab_size: int
    fingerprint: str
    keys: NDArray[np.int64]
    weights: NDArray[np.float32]
    digests: NDArray[np.uint8]

    @classmethod
    def precompute(cls, ids: Sequence[str], texts: Sequence[str], model: TermWeigher) -> TildeIndex:
        """Weigh the terms of passages, once.

        Args:
            ids: one for each passage, distinct.
            texts: the passages.
            model: weighs the terms, such as ``TildeModel``; it may expand the passages first.

        Raises:
            InvalidDocumentError: an id that is repeated or no string, or another number of texts.
            InvalidParameterError: the model gave terms outside its vocabulary, or weights that are
                not positive and finite.
        """
        if len(ids) != len(texts):
            raise InvalidDocumentError(f"{len(ids)} ids were given for {len(texts)} texts")
        if not all(isinstance(one, str) for one in ids) or len(set(ids)) != len(ids):
            raise InvalidDocumentError("the ids of passages must be distinct strings")
        tokenizer = model.tokenizer
        found = model.weigh(list(texts)) if len(texts) else []
        if len(found) != len(texts):
            raise InvalidParameterError.because(
                f"The model must give weights for each of {len(texts)} passages, got {len(found)}."
            )
        for weighed in found:
            _check(weighed, tokenizer.vocab_size)
        keys = [
            row * tokenizer.vocab_size + np.asarray(weighed.terms, np.int64)
            for row, weighed in enumerate(found)
        ]
        weights = [np.asarray(weighed.weights, np.float32) for weighed in found]
        digests = np.frombuffer(b"".join(map(_digest, texts)), np.uint8).reshape(-1, 16)
        index = cls(
            tuple(ids),
            tokenizer.vocab_size,
            tokenizer.fingerprint,
            np.concatenate([np.zeros(0, np.int64), *keys]),
            np.concatenate([np.zeros(0, np.float32), *weights]),
            digests,
        )
        for array in (index.keys, index.weights, index.digests):
            array.setflags(write=False)
        return index

    def __len__(self) -> int:
        return len(self.ids)

    def rows_of_ids(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each id.

        Raises:
            InvalidParameterError: an id that is not in the index.
        """
        unknown = [one for one in ids if one not in self._row_of_id]
        if unknown:
            raise InvalidParameterError("an id", unknown[0], "the id of a passage in the index")
        return np.array([self._row_of_id[one] for one in ids], np.int64)

    def rows_of_texts(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the row of each text, the first where passages have the same text.

        Raises:
            InvalidParameterError: a text that is not in the index.
        """
        digests = [_digest(text) for text in texts]
        unknown = [
            text
            for text, digest in zip(texts, digests, strict=True)
            if digest not in self._row_of_text
        ]
        if unknown:
            raise InvalidParameterError.because(
                "Precompute the index again from the passages as they are searched now: it lacks"
                f" {unknown[0][:60]!r} and {len(unknown) - 1} more."
            )
        return np.array([self._row_of_text[digest] for digest in digests], np.int64)

    def scores(self, terms: Sequence[int], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Sum the weights of a query's terms in some passages.

        A term that occurs twice in the query counts twice, as in the code of TILDEv2; one that the
        passage lacks counts 0. The same whatever is asked together.

        Args:
            terms: the query's terms, in any order.
            rows: the passages' rows; int64 of shape (passages).

        Returns:
            float32 of shape (passages).
        """
        asked, counts = np.unique(np.asarray(terms, np.int64), return_counts=True)
        if not len(asked) or not len(self.keys):
            return np.zeros(len(rows), np.float32)
        wanted = rows[:, None] * self.vocab_size + asked[None, :]
        places = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        found = np.where(self.keys[places] == wanted, self.weights[places], np.float32(0))
        total: NDArray[np.float64] = (found.astype(np.float64) * counts).sum(axis=1)
        return total.astype(np.float32)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a folder; see ``save_arrays``."""
        arrays: dict[str, NDArray[Any]] = {
            "keys": self.keys,
            "weights": self.weights,
            "digests": self.digests,
        }
        meta = {
            "ids": list(self.ids),
            "vocab_size": self.vocab_size,
            "fingerprint": self.fingerprint,
        }
        save_arrays(path, _KIND, _VERSION, arrays, meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, mmap: bool = True) -> TildeIndex:
        """Read what ``save`` wrote, checksums included.

        Args:
            path: the folder.
            mmap: map the arrays instead of reading them into memory.

        Raises:
            IndexFormatError: nothing there, damaged, or of another kind or version.
        """
        arrays, meta = load_arrays(path, _KIND, _VERSION, mmap=mmap)
        try:
            ids, vocab_size = tuple(map(str, meta["ids"])), int(meta["vocab_size"])
            keys, weights, digests = (arrays[name] for name in ("keys", "weights", "digests"))
            found = [array.dtype for array in (keys, weights, digests)]
            sound = (
                found == [np.int64, np.float32, np.uint8]
                and keys.shape == weights.shape == (len(keys),)
                and digests.shape == (len(ids), 16)
                and bool((keys[1:] > keys[:-1]).all())
                and (not len(keys) or 0 <= keys[0] <= keys[-1] < len(ids) * vocab_size)
            )
            index = cls(ids, vocab_size, str(meta["fingerprint"]), keys, weights, digests)
        except (KeyError, TypeError, ValueError) as error:
            raise IndexFormatError(f"{path} holds no index of term weights: {error}") from error
        if not sound:
            raise IndexFormatError(f"{path} holds term weights that do not belong together")
        return index

    @cached_property
    def _row_of_id(self) -> dict[str, int]:
        return {one: row for row, one in enumerate(self.ids)}

    @cached_property
    def _row_of_text(self) -> dict[bytes, int]:
        rows: dict[bytes, int] = {}
        for row, digest in enumerate(self.digests):
            rows.setdefault(digest.tobytes(), row)
        return rows


class TildeScorer:
    """Scores passages whose term weights are in an index; no model runs.

    Args:
        index: the weights.
        tokenizer: cuts the queries, as the passages were cut: the ``tokenizer`` of the model that
            weighed them, or a separate ``TildeTokenizer``.

    Raises:
        InvalidParameterError: the index was made with another tokenizer.
    """

    def __init__(self, index: TildeIndex, tokenizer: TermTokenizer) -> None:
        if tokenizer.fingerprint != index.fingerprint:
            raise InvalidParameterError(
                "tokenizer", tokenizer.fingerprint, f"the one of the index, {index.fingerprint}"
            )
        self._index = index
        self._tokenizer = tokenizer

    @classmethod
    def precompute(cls, texts: Iterable[str], model: TermWeigher) -> TildeScorer:
        """Weigh the terms of texts, each once, for questions that then take no model.

        Raises:
            InvalidParameterError: weights that are not positive and finite.
        """
        known = list(dict.fromkeys(texts))
        index = TildeIndex.precompute([str(row) for row in range(len(known))], known, model)
        return cls(index, model.tokenizer)

    def __call__(self, query: str, texts: Sequence[str], /) -> NDArray[np.float32]:
        """Return the sum of the query's weights in each text; float32 of shape (texts).

        Raises:
            InvalidParameterError: no strings, or a text that is not in the index.
        """
        readable(query, texts)
        rows = self._index.rows_of_texts(texts)
        return self._index.scores(self._terms(query), rows)

    def score_ids(self, query: str, ids: Sequence[str]) -> NDArray[np.float32]:
        """Return the same for passages by their ids.

        Raises:
            InvalidParameterError: the query is not a string, or an id is not in the index.
        """
        readable(query, ids)
        return self._index.scores(self._terms(query), self._index.rows_of_ids(ids))

    def _terms(self, query: str) -> list[int]:
        return self._tokenizer.terms(readable(query, ())[0])


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]


def _check(weighed: TermWeights, vocab_size: int) -> None:
    terms, weights = np.asarray(weighed.terms), np.asarray(weighed.weights)
    if terms.shape != weights.shape or terms.ndim != 1 or (terms[1:] <= terms[:-1]).any():
        raise InvalidParameterError.because(
            f"The model must give rising terms and a weight for each, got the terms {terms}."
        )
    if len(terms) and not 0 <= terms[0] <= terms[-1] < vocab_size:
        raise InvalidParameterError.because(
            f"The model must give terms from 0 to {vocab_size - 1}, got {terms}."
        )
    if not (np.isfinite(weights) & (weights > 0)).all():
        raise InvalidParameterError.because(
            f"The model must give weights that are positive and finite, got {weights}."
        )
