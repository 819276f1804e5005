"""A corpus of linked documents, and no global models."""

from __future__ import annotations

from collections.abc import Sequence

import llama_index.core
import pytest
from llama_index.core import Document, Settings
from llama_index.core.schema import BaseNode, NodeRelationship, TextNode

from tests.fakes.llama_index import HashEmbedding, tokenizer


def units_of(nodes: Sequence[BaseNode]) -> list[TextNode]:
    return [
        n for n in nodes if isinstance(n, TextNode) and NodeRelationship.CHILD in n.relationships
    ]


def chunks_of(nodes: Sequence[BaseNode]) -> list[TextNode]:
    return [
        n for n in nodes if isinstance(n, TextNode) and NodeRelationship.PARENT in n.relationships
    ]


TOWNS = ["Utrecht", "Leiden", "Delft", "Gouda", "Zwolle", "Breda"]


def town(number: int, links: Sequence[int] = ()) -> Document:
    name = TOWNS[number]
    facts = " ".join(f"{name} has gate number {n}, built in {1500 + 10 * n}." for n in range(8))
    seen = " ".join(f"See [{TOWNS[i]}]({TOWNS[i].lower()}.md)." for i in links)
    return Document(
        id_=f"{name.lower()}.md",
        text=f"# {name}\n\n{facts}\n\n{seen}\n",
        metadata={"title": name, "country": "NL", "number": number},
        excluded_embed_metadata_keys=["number"],
        excluded_llm_metadata_keys=["country"],
    )


@pytest.fixture
def documents() -> list[Document]:
    """Six towns: the first three linked in a row, the fourth to the fifth, the last alone."""
    return [town(0, [1]), town(1, [2]), town(2), town(3, [4]), town(4), town(5)]


@pytest.fixture
def embed_model() -> HashEmbedding:
    return HashEmbedding()


@pytest.fixture(autouse=True)
def no_global_models(monkeypatch):
    """Nothing may fall back on a global model that a test did not set."""
    monkeypatch.setattr(Settings, "_llm", None)
    monkeypatch.setattr(Settings, "_embed_model", None)
    monkeypatch.setattr(Settings, "_callback_manager", None)
    monkeypatch.setattr(llama_index.core, "global_tokenizer", tokenizer)
