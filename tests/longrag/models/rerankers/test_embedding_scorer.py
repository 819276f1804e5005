"""An embedder as a scorer: cosines, each text embedded once."""

import numpy as np
import pytest

from longrag.errors import InvalidParameterError, RerankError
from longrag.models import EmbeddingScorer
from longrag.models.rerankers.scorers import Scorer

VECTORS = {"east": (3, 0), "north": (0, 0.5), "between": (1, 1), "nowhere": (0, 0)}


class Compass:
    def __init__(self):
        self.asked = []

    def __call__(self, texts, role):
        self.asked.append((role, *texts))
        return np.array([VECTORS[text] for text in texts], np.float32)


def test_scores_are_cosines_and_each_text_is_embedded_once():
    embedder = Compass()
    scorer = EmbeddingScorer(embedder)
    assert isinstance(scorer, Scorer)
    found = scorer("between", ["east", "north", "east", "nowhere", "between"])
    assert found.dtype == np.float32
    assert found == pytest.approx([0.5**0.5, 0.5**0.5, 0.5**0.5, 0, 1])
    assert scorer("north", ["between", "north"]) == pytest.approx([0.5**0.5, 1])
    assert embedder.asked == [
        ("document", "east", "north", "nowhere", "between"),
        ("query", "between"),
        ("query", "north"),
    ]
    assert scorer("east", []).shape == (0,)
    assert scorer.name == "Compass"


def test_only_the_last_texts_are_remembered():
    embedder = Compass()
    scorer = EmbeddingScorer(embedder, remember=2, name="compass")
    scorer("east", ["east", "north"])
    scorer("east", ["east", "between"])
    scorer("east", ["north"])
    assert [asked[1:] for asked in embedder.asked if asked[0] == "document"] == [
        ("east", "north"), ("between",), ("north",)
    ]  # fmt: skip
    assert scorer.name == "compass"


def test_what_is_no_embedder_is_refused():
    for wrong in ({"embedder": "MiniLM"}, {"embedder": Compass(), "remember": -1}):
        with pytest.raises(InvalidParameterError, match=r"embedder|remember"):
            EmbeddingScorer(**wrong)
    with pytest.raises(InvalidParameterError, match="must give one vector for each of 2 texts"):
        EmbeddingScorer(lambda texts, role: np.zeros(3))("a", ["b", "c"])
    with pytest.raises(RerankError, match="for text 0 of 1"):
        EmbeddingScorer(lambda texts, role: np.full((len(texts), 2), np.nan))("a", ["b"])
