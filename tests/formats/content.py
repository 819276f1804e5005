"""The few pages that every kept file is made of, and how an answer is written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from longrag.types import Document, RetrievedUnit
from tests.fakes import hash_vector

PAGES = {
    "harbour.md": (
        "The harbour",
        "The harbour was built in 1742 by Anna Reyes. It has nine piers. See [ships](ships.md).",
    ),
    "ships.md": (
        "Ships",
        "The largest ship is the Morning Star. She leaves the [harbour](harbour.md) at dawn.",
    ),
    "orchard.md": ("The orchard", "The orchard has forty apple trees. Its pears ripen in October."),
    "茶馆.md": ("茶馆", "茶馆建于1893年。老板是王利发。"),
}
QUESTIONS = ("Who built the harbour?", "How many apple trees are there?")
SIZES: dict[str, Any] = {"max_tokens": 60, "chunk_size": 16}
WIDTH = 32
DIGITS = 4


def documents() -> list[Document]:
    return [
        Document(id_, text, title, {"number": number, "title": title})
        for number, (id_, (title, text)) in enumerate(PAGES.items())
    ]


@dataclass(frozen=True)
class Embedder:
    """``hash_vector`` of a few values, so that files stay small."""

    width: int = WIDTH

    def __call__(self, texts: Sequence[str], role: str) -> np.ndarray:
        return np.stack([hash_vector(text, self.width) for text in texts])

    def answer(self, request: Any) -> np.ndarray:
        """Answer what a flow asks of an embedder."""
        return self(request.texts, request.role)


def near(score: float) -> float:
    """Round a score, which another processor may give in another last place."""
    return round(float(score), DIGITS)


def shown(found: Sequence[RetrievedUnit]) -> list[Any]:
    """Write down units that were found: id, score, member documents and text."""
    return [
        [one.unit.id, near(one.score or 0.0), [m.doc_id for m in one.unit.members], one.unit.text]
        for one in found
    ]
