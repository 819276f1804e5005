"""Images and an embedder of colours, for the tests of multimodal retrieval."""

from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from longrag.indexing import MediaItem
from tests.images import flag


def items():
    return [
        MediaItem("r", flag("red"), "A red square.", metadata={"source": "page 4"}),
        MediaItem("g", flag("green"), "A green square."),
        MediaItem("rb", flag("red", "blue"), "Half red, half blue."),
        MediaItem("b", flag("blue")),
    ]


def nan(vectors):
    vectors[-1, 3] = np.nan
    return vectors


QUERIES = [
    ("a red square", "image", 0.9),
    ("green and blue", "image", 0.95),
    (flag("red", "red", "red", "blue"), "caption", 0.9),
    (flag("blue"), "caption", 0.9),
]


images = st.one_of(st.binary(max_size=9), st.text(max_size=5), st.just(Path("a") / "b.png"))
