"""A reader who follows one question passes no more than these many of our files."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode

import langchain_longrag as lc
import llama_index_longrag as li
from tests.fakes.langchain import HashEmbeddings
from tests.fakes.llama_index import HashEmbedding

ROOT = Path(__file__).parents[2]
OWN = tuple(f"{ROOT / name}/" for name in ("longrag", "llama_index_longrag", "langchain_longrag"))
QUESTION = "When was the weir built?"
TEXTS = ["The mill stands at the weir.", "The weir was built in 1312.", "Rye is ground in autumn."]


def documents() -> list[Document]:
    return [Document(t, id=str(i), metadata={"unit_id": f"u{i}"}) for i, t in enumerate(TEXTS)]


def nodes() -> list[TextNode]:
    return [
        TextNode(text=t, id_=str(i), metadata={"unit_id": f"u{i}"}) for i, t in enumerate(TEXTS)
    ]


def langchain_memory() -> Any:
    return lc.MaxPRetriever(documents=documents(), embedding=HashEmbeddings(), k=2).invoke


def langchain_store() -> Any:
    store = InMemoryVectorStore(HashEmbeddings())
    store.add_documents(documents())
    return lc.MaxPRetriever(vectorstore=store, k=2).invoke


def llama_index_memory() -> Any:
    return li.MaxPRetriever(nodes=nodes(), embed_model=HashEmbedding(), similarity_top_k=2).retrieve


def llama_index_store() -> Any:
    index = VectorStoreIndex(nodes(), embed_model=HashEmbedding())
    return li.MaxPRetriever(index=index, similarity_top_k=2).retrieve


def llama_index_recipe() -> Any:
    index = VectorStoreIndex(nodes(), embed_model=HashEmbedding())
    return li.best_performance(index, llm=MockLLM(), reranker=score_by_length).query


def score_by_length(query: str, texts: list[str]) -> list[float]:
    return [float(len(text)) for text in texts]


MOST = {
    langchain_memory: 12,
    llama_index_memory: 14,
    langchain_store: 15,
    llama_index_store: 18,
    llama_index_recipe: 40,
}


@pytest.mark.parametrize("make", MOST, ids=lambda make: make.__name__)
def test_a_question_passes_few_files(make, monkeypatch):
    ask, files = make(), set()
    ask(QUESTION)  # what is imported and read once is not part of the way
    # A recipe that was asked before, by another test, listens to every call of a model.
    monkeypatch.setattr(get_dispatcher(), "event_handlers", [])

    def note(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(OWN):
            files.add(name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        ask(QUESTION)
    finally:
        sys.setprofile(before)
    assert len(files) <= MOST[make], sorted(files)
