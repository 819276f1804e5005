"""Deterministic stand-ins for what the outside provides, shared by every test."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Sequence
from hashlib import sha256

import numpy as np

WORD = re.compile(r"\w+|[\u4e00-\u9fff]")


def hash_vector(text: str, width: int = 64) -> np.ndarray:
    """Sum one pseudo-random vector a word, so that texts that share words are near each other."""
    vector = np.zeros(width)
    for word in WORD.findall(text.lower()):
        seed = int.from_bytes(sha256(word.encode()).digest()[:4], "big")
        vector += np.random.default_rng(seed).standard_normal(width)
    return vector.astype(np.float32)


class HashEmbedder:
    """The core's embedder protocol over ``hash_vector``; counts what it is asked."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, texts: Sequence[str], role: str) -> np.ndarray:
        self.texts.extend(texts)
        return np.stack([hash_vector(text) for text in texts])


class Door:
    """Where calls wait in their threads until an event loop that is free lets them go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def through(self) -> None:
        self.reached.set()
        if not self.opened.wait(20):
            raise TimeoutError("nobody opened the door: the event loop is not free")

    async def someone_waits(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 20), "no call came to the door"

    async def open(self) -> None:
        await self.someone_waits()
        self.opened.set()
