"""The nodes that the tests of MaxP in LlamaIndex search."""

from __future__ import annotations

import pytest

from tests.llama_index_longrag.retrieval.maxp_stores import parsed


@pytest.fixture
def nodes(documents):
    return parsed(documents)
