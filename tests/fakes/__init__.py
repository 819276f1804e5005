"""Deterministic stand-ins for what the outside provides, shared by every test.

The core's stand here; ``fakes.llama_index`` and ``fakes.langchain`` wrap them in the frameworks'
base classes.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256

import numpy as np

WORD = re.compile(r"\w+|[\u4e00-\u9fff]")


def hash_vector(text: str, width: int = 64) -> np.ndarray:
    """Sum one pseudo-random vector a word, so that texts that share words are near each other."""
    vector = np.zeros(width)
    for word in WORD.findall(text.lower()):
        vector += _word_vector(word, width)
    return vector.astype(np.float32)


@lru_cache(maxsize=1 << 14)
def _word_vector(word: str, width: int) -> np.ndarray:
    digest = sha256(word.encode("utf-8", "surrogatepass")).digest()
    vector = np.random.default_rng(int.from_bytes(digest[:4], "big")).standard_normal(width)
    vector.flags.writeable = False
    return vector


class HashEmbedder:
    """The core's embedder protocol over ``hash_vector``; counts what it is asked."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, texts: Sequence[str], role: str) -> np.ndarray:
        self.texts.extend(texts)
        return np.stack([hash_vector(text) for text in texts])


def check_new_row(id_: str, metadata: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse a row that many vector stores cannot take: a known id, or metadata that is nested."""
    assert id_ not in known, "the store does not overwrite"
    for key, value in metadata.items():
        assert isinstance(key, str)
        assert type(value) in (str, int, float, bool), (key, value)


def check_known_ids(ids: Collection[str], known: Collection[str]) -> None:
    """Refuse to delete nothing, or what is not there."""
    assert ids
    assert set(known).issuperset(ids)


PATIENCE = 120.0
"""Seconds after which a test that waits for another thread gives up: it decides nothing else."""


class Door:
    """Where calls wait in their threads until an event loop that is free lets them go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def through(self) -> None:
        self.reached.set()
        if not self.opened.wait(PATIENCE):
            raise TimeoutError("nobody opened the door: the event loop is not free")

    async def someone_waits(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, PATIENCE), "no call came to the door"

    async def open(self) -> None:
        await self.someone_waits()
        self.opened.set()


def values_within(value: object, seen: dict[int, object] | None = None) -> Iterator[object]:
    """Yield every string, number and bytes that an object of the package holds."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return
    seen[id(value)] = value  # kept, so that its address names no other
    if isinstance(value, (str, bytes)):
        yield value
    elif isinstance(value, Mapping):
        for item in value.items():
            yield from values_within(item, seen)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from values_within(item, seen)
    elif type(value).__module__.startswith("longrag"):
        names = [n for c in type(value).__mro__ for n in getattr(c, "__slots__", ())]
        own = [getattr(value, name, None) for name in names]
        yield from values_within([*own, *getattr(value, "__dict__", {}).values()], seen)
