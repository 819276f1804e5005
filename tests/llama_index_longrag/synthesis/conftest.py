"""The units that the two-turn reader is given."""

from __future__ import annotations

import pytest

from tests.llama_index_longrag.synthesis.reading import retrieve


@pytest.fixture
def found(documents):
    return retrieve(documents)
