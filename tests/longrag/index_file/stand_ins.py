"""Embedders as a user's module has them, for import paths."""

import numpy as np

from tests.fakes import hash_vector

calls: list[str] = []
broken_after: list[int] = []


def words(texts, role):
    """Embed by words; end after a number of texts when asked to."""
    for text in texts:
        if broken_after and len(calls) >= broken_after[0]:
            raise ConnectionError("the embedder's service is gone")
        calls.append(text)
    return np.stack([hash_vector(text) for text in texts])
