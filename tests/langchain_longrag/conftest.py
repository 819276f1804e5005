"""The embedding that most tests of the LangChain adapter use."""

from __future__ import annotations

import pytest

from tests.fakes.langchain import HashEmbeddings


@pytest.fixture
def embedding() -> HashEmbeddings:
    return HashEmbeddings()
