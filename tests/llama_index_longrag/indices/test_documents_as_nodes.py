"""Documents that an index was given as its nodes are replaced by their next versions."""

from __future__ import annotations

import pytest
from llama_index.core import StorageContext, load_index_from_storage
from llama_index.core.schema import Document
from llama_index.core.storage.docstore import SimpleDocumentStore

from llama_index_longrag import LongRAGIndex, RaptorIndex
from tests.fakes.llama_index import HashEmbedding

KINDS = [(LongRAGIndex, {}), (RaptorIndex, {"summarizer": "extractive"})]


def make(kind, settings, **given):
    documents = [Document(id_="a", text="The old weir."), Document(id_="b", text="A mill.")]
    return kind(documents, embed_model=HashEmbedding(), **settings, **given)


def texts(index):
    return sorted(node.text for node in index.docstore.docs.values())


@pytest.mark.parametrize(("kind", "settings"), KINDS)
@pytest.mark.parametrize("how", ["insert", "update", "refresh", "ainsert"])
async def test_a_document_given_as_a_node_is_replaced(kind, settings, how, tmp_path):
    index = make(kind, settings)
    new = Document(id_="a", text="The new weir.")
    match how:
        case "insert":
            index.insert(new)
        case "ainsert":
            await index.ainsert(new)
        case "update":
            index.update_ref_doc(new)
        case "refresh":
            known = Document(id_="b", text="A mill.")
            assert index.refresh_ref_docs([new, known]) == [True, False]
    assert texts(index) == ["A mill.", "The new weir."]
    assert index.refresh_ref_docs([new]) == [False]
    results = index.as_retriever(similarity_top_k=9).retrieve("old weir")
    assert not any("old" in result.node.get_content() for result in results)
    index.storage_context.persist(tmp_path)
    stored = StorageContext.from_defaults(persist_dir=str(tmp_path))
    again = load_index_from_storage(stored, embed_model=HashEmbedding(), **settings)
    again.update_ref_doc(Document(id_="a", text="The newest weir."))
    assert texts(again) == ["A mill.", "The newest weir."]
    again.delete_ref_doc("a")
    assert texts(again) == ["A mill."]


@pytest.mark.parametrize(("kind", "settings"), KINDS)
def test_a_replacement_that_is_cut_short_leaves_one_version(kind, settings, monkeypatch):
    storage = StorageContext.from_defaults()
    index = make(kind, settings, storage_context=storage)

    def fail(*args, **kwargs):
        raise OSError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(SimpleDocumentStore, "delete_document", fail)
        with pytest.raises(OSError, match="the disk is full"):
            index.insert(Document(id_="a", text="The new weir."))
    loaded = load_index_from_storage(storage, embed_model=HashEmbedding(), **settings)
    found = [r.node.get_content() for r in loaded.as_retriever(similarity_top_k=9).retrieve("weir")]
    assert any("new weir" in text for text in found)
    assert not any("old weir" in text for text in found)
