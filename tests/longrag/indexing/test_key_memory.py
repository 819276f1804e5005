"""Sorting keys takes little memory beside the keys, and keys without sources hardly any more."""

import tracemalloc

import numpy as np

from longrag.indexing import KeyIndex, TokenIds
from longrag.types import Key

COUNT = 1_000_000


def drawn():
    random = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(random.integers(6, 19, COUNT))])
    flat = (random.zipf(1.3, int(offsets[-1])) % 32_000).astype(np.uint16)
    return TokenIds(flat, offsets)


def test_the_peak_of_a_build_is_a_hundred_bytes_a_key():
    ids = drawn()
    tracemalloc.start()
    try:
        index = KeyIndex.from_token_ids(ids, vocab_size=32_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # What stays are 12 tokens of two bytes, four of an offset, and the numbers of the documents.
    assert peak / COUNT < 100
    assert len(index) == COUNT


def test_what_numbered_keys_share_is_never_written_to():
    index = KeyIndex.from_token_ids([[2], [1], [3]], vocab_size=4)
    first = index.without_documents(["1"])
    second = index.with_token_ids([[1, 2]], sources=[Key("b", "new", 3, 5, "p")])
    both = second.without_documents(["0", "2"])

    def keys(one):
        return [
            (found.key.doc_id, found.key.start, found.key.end, found.key.passage_id)
            for prefix in ([1], [2], [3], [1, 2])
            if (state := one.find(prefix)) is not None
            for found in one.sources(state)
        ]

    numbered = [("1", 0, 0, ""), ("0", 0, 0, ""), ("2", 0, 0, "")]
    assert keys(index) == numbered
    assert keys(first) == numbered[1:]
    assert keys(second) == [*numbered, ("new", 3, 5, "p")]
    assert keys(both) == [("1", 0, 0, ""), ("new", 3, 5, "p")]
