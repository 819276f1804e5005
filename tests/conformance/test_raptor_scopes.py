"""A document that belongs to no tree is refused by name in both frameworks, and nothing changes."""

import asyncio

import pytest
from langchain_core.documents import Document as LangChainDocument
from llama_index.core import Document as LlamaDocument

import langchain_longrag
import llama_index_longrag
from longrag.errors import InvalidDocumentError
from longrag.indexing import TreeSettings
from tests.fakes.langchain import HashEmbeddings
from tests.fakes.llama_index import HashEmbedding, tokenizer
from tests.settings import grouped

TEXT = "The otter {} swims. It sleeps on its back."


def llama_index(path):
    settings = {"embed_model": HashEmbedding(), "tokenizer": tokenizer}
    index = llama_index_longrag.RaptorIndex.open(
        path, summarizer="extractive", **grouped(tree=TreeSettings(scope="tenant"), **settings)
    )

    def change(documents, use_async):
        given = [
            LlamaDocument(id_=id_, text=TEXT.format(id_), metadata=metadata)
            for id_, metadata in documents.items()
        ]
        if use_async:
            asyncio.run(index.arefresh_ref_docs(given))
        else:
            index.refresh_ref_docs(given)

    return change, lambda: (sorted(index.ref_doc_info), list(index.tree.nodes.items()))


def langchain(path):
    index = langchain_longrag.RaptorIndex.open(
        path, HashEmbeddings(), summarizer="extractive", tree=TreeSettings(scope="tenant")
    )

    def change(documents, use_async):
        given = [
            LangChainDocument(id=id_, page_content=TEXT.format(id_), metadata=metadata)
            for id_, metadata in documents.items()
        ]
        if use_async:
            asyncio.run(index.aupsert(given))
        else:
            index.upsert(given)

    return change, lambda: (sorted(index.documents_by_id()), list(index.tree.nodes.items()))


@pytest.mark.parametrize("use_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("made", [llama_index, langchain])
def test_a_document_without_a_tenant_is_refused_and_nothing_changes(made, use_async, tmp_path):
    change, state = made(tmp_path / "index.db")
    change({"a": {"tenant": "red"}, "b": {"tenant": "red"}, "c": {"tenant": "blue"}}, use_async)
    before = state()
    assert before[0] == ["a", "b", "c"]
    for metadata, shown in (
        ({"tenant": None}, "None"),
        ({"tenant": ["red"]}, r"\['red'\]"),
        ({"town": 1}, "nothing"),
    ):
        told = f"document 'd' has {shown} under 'tenant' in its metadata"
        with pytest.raises(InvalidDocumentError, match=told):
            change({"a": {"tenant": "blue"}, "d": metadata}, use_async)
        assert state() == before
    change({"d": {"tenant": "nobody"}}, use_async)
    assert state()[0] == ["a", "b", "c", "d"]
    assert {node.doc_ids for _, node in state()[1] if node.level} == {("a", "b")}
