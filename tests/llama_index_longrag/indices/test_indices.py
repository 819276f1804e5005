"""A LlamaIndex index that changes is at every moment the one built from what there is."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core import (
    Document,
    Settings,
    StorageContext,
    SummaryIndex,
    VectorStoreIndex,
    load_index_from_storage,
)
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.chat_engine.types import ChatMode
from llama_index.core.data_structs.registry import INDEX_STRUCT_TYPE_TO_INDEX_STRUCT_CLASS
from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.registry import INDEX_STRUCT_TYPE_TO_INDEX_CLASS
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.prompts import PromptTemplate
from llama_index.core.response_synthesizers import CompactAndRefine
from llama_index.core.schema import MetadataMode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilter,
    MetadataFilters,
)

from llama_index_longrag import LongRAGIndex, MaxPRetriever, TwoTurnSynthesizer
from llama_index_longrag.bridge.documents import WholeDocuments
from llama_index_longrag.indices.long_units import LongRAGStruct, register
from longrag.errors import (
    EmbeddingError,
    IndexFormatError,
    InvalidDocumentError,
    InvalidParameterError,
)
from tests.llama_index_longrag.conftest import HashEmbedding, ScriptedLLM, tokenizer

SETTINGS: dict[str, Any] = {"max_tokens": 150, "chunk_size": 24}
QUESTION = "a market in town 3"


def page(number: int, version: int = 0, **metadata: Any) -> Document:
    """A page that links to two others by their path, one of them by its version."""
    targets = [(number * 7 + 1) % 40, (number + version + 3) % 40]
    links = " ".join(f"[see](page-{target}.md)" for target in targets)
    return Document(
        id_=f"page-{number}.md",
        text=f"Page {number} tells of town {number % 5}. It has {number * 3} gates and a market."
        f"\n\nVersion {version} of page {number} adds this sentence to it. {links}",
        metadata={"title": f"Page {number}", "version": version, **metadata},
        excluded_embed_metadata_keys=["version"],
    )


def build(documents: list[Document], model: HashEmbedding | None = None, **kw: Any) -> LongRAGIndex:
    settings = {**SETTINGS, **kw}
    return LongRAGIndex.from_documents(documents, embed_model=model or HashEmbedding(), **settings)


def stored(index: LongRAGIndex) -> tuple[Any, ...]:
    """What the three stores hold; hashes apart, which bare nodes do not have."""
    docstore = index.docstore.to_dict()
    return (
        docstore.get("docstore/data", {}),
        docstore.get("docstore/ref_doc_info", {}),
        index.storage_context.vector_store.to_dict(),
        index.index_struct.documents,
        index.index_struct.units,
    )


def state(index: LongRAGIndex) -> tuple[Any, ...]:
    units = index.corpus.index
    return units.units, units.chunks, stored(index), found(index)


def found(index: LongRAGIndex) -> list[tuple[str, float, str]]:
    nodes = index.as_retriever(similarity_top_k=99).retrieve(QUESTION)
    return [(node.node_id, node.score, node.text) for node in nodes]


def paid(model: HashEmbedding) -> list[str]:
    return [text for how, text in model.asked if "query" not in how]


def reload(index: LongRAGIndex, folder: Path, model: HashEmbedding | None = None, **kw: Any) -> Any:
    index.storage_context.persist(folder)
    context = StorageContext.from_defaults(persist_dir=str(folder))
    return load_index_from_storage(context, embed_model=model or HashEmbedding(), **kw)


# histories


CALLS = ["insert", "ainsert", "insert_nodes", "ainsert_nodes", "update", "aupdate", "refresh"]
CALLS += ["arefresh", "delete", "adelete", "delete_nodes", "adelete_nodes"]


class History:
    """Changes an index at random through every call that can."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.model = HashEmbedding()
        self.there = {document.id_: document for document in self.new(self.draw.randrange(12))}
        self.index = build(list(self.there.values()), self.model)

    def new(self, count: int) -> list[Document]:
        return [page(n, self.draw.randrange(3)) for n in self.draw.sample(range(40), count)]

    async def step(self) -> None:
        index, (document, *others) = self.index, self.new(6)
        call = self.draw.choice(CALLS)
        if "delete" in call:
            await self.delete(call)
            return
        batch = [document, *others] if "refresh" in call or "nodes" in call else [document]
        expected = [self.there.get(d.id_) != d for d in batch]
        match call:
            case "insert":
                index.insert(document)
            case "ainsert":
                await index.ainsert(document)
            case "insert_nodes":
                index.insert_nodes(WholeDocuments()(batch))
                self.set_hashes(batch)
            case "ainsert_nodes":
                await index.ainsert_nodes(WholeDocuments()(batch))
                self.set_hashes(batch)
            case "update":
                index.update_ref_doc(document)
            case "aupdate":
                await index.aupdate_ref_doc(document)
            case "refresh":
                assert index.refresh_ref_docs(batch) == expected
            case "arefresh":
                assert await index.arefresh_ref_docs(batch) == expected
        self.there.update({d.id_: d for d in batch})

    def set_hashes(self, batch: list[Document]) -> None:
        self.index.docstore.set_document_hashes({d.id_: d.hash for d in batch})

    async def delete(self, call: str) -> None:
        if not self.there:
            return
        doc_id = self.draw.choice(sorted(self.there))
        node_ids = self.index.ref_doc_info[doc_id].node_ids
        match call:
            case "delete":
                self.index.delete_ref_doc(doc_id)
            case "adelete":
                await self.index.adelete_ref_doc(doc_id, delete_from_docstore=True)
            case "delete_nodes":
                self.index.delete_nodes(node_ids)
            case "adelete_nodes":
                await self.index.adelete_nodes(node_ids, delete_from_docstore=True)
        del self.there[doc_id]


@pytest.mark.parametrize("seed", range(20))
async def test_any_history_ends_in_the_units_vectors_and_stores_of_one_build(seed):
    history = History(seed)
    for _ in range(25):
        await history.step()
    documents = history.draw.sample(list(history.there.values()), len(history.there))
    expected = build(documents)
    assert state(history.index) == state(expected)
    assert history.index.docstore.to_dict() == expected.docstore.to_dict()
    assert history.index.ref_doc_info == expected.ref_doc_info


def test_each_distinct_chunk_is_embedded_once_and_an_update_embeds_only_new_ones():
    model = HashEmbedding()
    index = build([page(n) for n in range(10)], model)
    index.insert(page(10))
    index.refresh_ref_docs([page(n) for n in range(14)])
    assert len(paid(model)) == len(set(paid(model))) == len(index.corpus.index.chunks)

    before = len(model.asked)
    index.update_ref_doc(page(4, 1))
    assert {text.partition("\n\n")[0] for _, text in model.asked[before:]} == {"title: Page 4"}
    assert all("gates" not in text for _, text in model.asked[before:])
    before = len(model.asked)
    index.update_ref_doc(page(4, 1))
    index.delete_ref_doc("page-2.md")
    index.insert(page(3))
    assert len(model.asked) == before


async def test_refresh_tells_what_it_changed_and_brings_a_deleted_document_back():
    index = build([page(n) for n in range(4)])
    assert index.refresh_ref_docs([page(0), page(1, 1), page(9)]) == [False, True, True]
    index.delete_ref_doc("page-1.md")
    assert await index.arefresh_ref_docs([page(0), page(1, 1)]) == [False, True]
    await index.adelete_ref_doc("page-0.md")
    assert index.refresh_ref_docs([page(0), page(1, 1)]) == [True, False]
    assert index.refresh_ref_docs([]) == []
    assert state(index) == state(build([page(0), page(1, 1), page(2), page(3), page(9)]))


def test_of_documents_with_one_id_in_a_refresh_the_last_is_kept():
    index = build([page(0)])
    assert index.refresh_ref_docs([page(1), page(1), page(1, 1), page(0)]) == [
        True,
        False,
        True,
        False,
    ]
    assert state(index) == state(build([page(0), page(1, 1)]))


def test_a_change_of_metadata_alone_is_a_change(tmp_path):
    index = build([page(0, town="Delft")])
    before = found(index)
    assert index.refresh_ref_docs([page(0, town="Gouda")]) == [True]
    assert found(index) != before
    assert state(index) == state(build([page(0, town="Gouda")]))
    assert state(reload(index, tmp_path)) == state(index)


def test_two_documents_of_one_id_in_one_build_are_refused():
    with pytest.raises(InvalidDocumentError, match=r"same id 'page-1\.md'"):
        build([page(1), page(1, 1)])


def test_a_node_cannot_take_the_place_of_a_document_it_is_not_a_version_of():
    index = build([page(1)])
    before = state(index)
    with pytest.raises(InvalidDocumentError, match=r"two nodes are document 'page-1\.md'"):
        index.insert_nodes([TextNode(id_="page-1.md", text="An impostor.")])
    assert state(index) == before


# deleting


SECRET = "xyzzy-93"


@pytest.mark.parametrize("how", ["delete", "adelete", "nodes", "update", "refresh"])
async def test_what_is_deleted_is_in_no_store_and_no_persisted_file(how, tmp_path):
    secret = page(1, note=f"metadata {SECRET}")
    secret.set_content(f"The password is {SECRET}. " * 5)
    index = build([page(0), secret, page(2)])
    match how:
        case "delete":
            index.delete_ref_doc("page-1.md")
        case "adelete":
            await index.adelete_ref_doc("page-1.md", delete_from_docstore=False)
        case "nodes":
            index.delete_nodes(index.ref_doc_info["page-1.md"].node_ids, delete_from_docstore=False)
        case "update":
            index.update_ref_doc(page(1))
        case "refresh":
            await index.arefresh_ref_docs([page(1)])
    index.storage_context.persist(tmp_path)
    files = list(tmp_path.iterdir())
    assert len(files) >= 4
    assert [file.name for file in files if SECRET in file.read_text("utf-8")] == []
    held = repr(vars(index.corpus)) + repr(vars(index)) + repr(vars(index.corpus._remembered))
    assert SECRET not in held
    if how in ("update", "refresh"):
        assert state(index) == state(build([page(0), page(1), page(2)]))
    else:
        assert state(index) == state(build([page(0), page(2)]))


def test_deleting_what_is_not_there_changes_nothing():
    index = build([page(0)])
    before = state(index)
    index.delete_ref_doc("nowhere")
    index.delete_nodes(["nowhere"])
    assert state(index) == before


def test_everything_can_be_deleted_and_the_index_filled_again():
    index = build([page(0), page(1)])
    for doc_id in ("page-0.md", "page-1.md"):
        index.delete_ref_doc(doc_id)
    assert index.as_retriever().retrieve("page") == []
    assert index.ref_doc_info == {}
    index.insert(page(2))
    assert state(index) == state(build([page(2)]))


# persisting


def test_a_persisted_index_is_loaded_equal_and_goes_on(tmp_path):
    index = build([page(n) for n in range(20)])
    index.insert(page(21))
    model = HashEmbedding()
    loaded = reload(index, tmp_path, model)
    assert type(loaded) is LongRAGIndex
    assert loaded.index_id == index.index_id
    assert model.asked == []
    assert state(loaded) == state(index)

    assert loaded.refresh_ref_docs([page(20), page(3, 1), page(4)]) == [True, True, False]
    loaded.delete_ref_doc("page-7.md")
    assert {text[:13] for text in paid(model)} == {"title: Page 2", "title: Page 3"}
    kept = [page(n) for n in range(22) if n not in (3, 7)]
    assert state(loaded) == state(build([*kept, page(3, 1)]))
    assert state(reload(loaded, tmp_path)) == state(loaded)


def test_a_folder_is_loaded_in_one_call(tmp_path):
    index = build([page(n) for n in range(5)], directed=True, title_key="version")
    index.storage_context.persist(tmp_path)
    loaded = LongRAGIndex.from_persist_dir(str(tmp_path), embed_model=HashEmbedding())
    assert state(loaded) == state(index)
    assert loaded.corpus.builder.directed is True


def test_an_empty_index_is_persisted_and_filled_later(tmp_path):
    loaded = reload(build([]), tmp_path)
    assert loaded.as_retriever().retrieve("page") == []
    loaded.insert(page(1))
    assert state(loaded) == state(build([page(1)]))


def test_two_indexes_live_in_one_storage_context(tmp_path):
    context = StorageContext.from_defaults()
    one = build([page(n) for n in range(6)], storage_context=context)
    two = build([page(n) for n in range(10, 16)], storage_context=context, chunk_size=12)
    two.set_index_id("two")
    one.delete_ref_doc("page-3.md")
    one.delete_ref_doc("page-12.md")
    two.update_ref_doc(page(11, 1))
    context.persist(tmp_path)
    again = StorageContext.from_defaults(persist_dir=str(tmp_path))
    for index in (one, two):
        loaded = load_index_from_storage(
            again, index_id=index.index_id, embed_model=HashEmbedding()
        )
        assert found(loaded) == found(index)
    assert found(one) == found(build([page(n) for n in (0, 1, 2, 4, 5)]))
    assert len(two.ref_doc_info) == 6
    with pytest.raises(IndexFormatError, match="holds 2 indexes: pass index_id"):
        LongRAGIndex.from_persist_dir(str(tmp_path), embed_model=HashEmbedding())
    named = LongRAGIndex.from_persist_dir(
        str(tmp_path), index_id="two", embed_model=HashEmbedding()
    )
    assert found(named) == found(two)


@pytest.mark.parametrize(
    "other",
    [
        {"max_tokens": 151},
        {"chunk_size": 25},
        {"granularity": "document"},
        {"directed": True},
        {"title_key": "name"},
    ],
)
def test_loading_with_another_setting_is_refused(other, tmp_path):
    (name,) = other
    with pytest.raises(InvalidParameterError, match=f"{name} must be .*as the index was saved"):
        reload(build([page(1)]), tmp_path, **other)
    given = {**SETTINGS, "title_key": "title", "granularity": "chunk"}
    assert len(reload(build([page(1)]), tmp_path, **given).ref_doc_info) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"tokenizer": lambda text: tokenizer(text) * 3},
        {"link_extractor": lambda document: []},
        {"link_rules": [lambda target, document: "page-1.md"]},
    ],
    ids=["tokenizer", "link_extractor", "link_rules"],
)
@pytest.mark.parametrize("chunk_size", [24, 512])
def test_loading_with_another_callable_is_refused_where_units_would_be_others(
    other, chunk_size, tmp_path
):
    index = build([page(n) for n in range(20)], chunk_size=chunk_size)
    with pytest.raises(IndexFormatError, match="built with another"):
        reload(index, tmp_path, **other)


def _write(file: Path, change: Callable[[Any], Any]) -> None:
    file.write_text(json.dumps(change(json.loads(file.read_text("utf-8")))), "utf-8")


def _without_a_document(store: Any) -> Any:
    store["docstore/data"].popitem()
    return store


def _other_text(store: Any) -> Any:
    next(iter(store["docstore/data"].values()))["__data__"]["text"] = "Forged."
    return store


def _vectors(value: Any) -> Callable[[Any], Any]:
    def change(store: Any) -> Any:
        store["embedding_dict"][next(iter(store["embedding_dict"]))] = value
        return store

    return change


def _without_settings(store: Any) -> Any:
    (entry,) = store["index_store/data"].values()
    struct = json.loads(entry["__data__"])
    del struct["settings"]["max_tokens"]
    entry["__data__"] = json.dumps(struct)
    return store


VECTORS, DOCUMENTS, STRUCTS = "default__vector_store.json", "docstore.json", "index_store.json"


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (VECTORS, Path.unlink),
        (VECTORS, lambda file: file.write_text("")),
        (VECTORS, lambda file: file.write_text("{}")),
        (VECTORS, lambda file: _write(file, _vectors([1.0, 2.0]))),
        (VECTORS, lambda file: _write(file, _vectors([float("nan")] * 16))),
        (VECTORS, lambda file: _write(file, _vectors(["a"] * 16))),
        (VECTORS, lambda file: _write(file, _vectors({}))),
        (DOCUMENTS, Path.unlink),
        (DOCUMENTS, lambda file: file.write_text('{"docstore/data": ')),
        (DOCUMENTS, lambda file: file.write_text("{}")),
        (DOCUMENTS, lambda file: _write(file, _without_a_document)),
        (DOCUMENTS, lambda file: _write(file, _other_text)),
        (STRUCTS, Path.unlink),
        (STRUCTS, lambda file: file.write_text("[]")),
        (STRUCTS, lambda file: file.write_text("{}")),
        (STRUCTS, lambda file: _write(file, _without_settings)),
    ],
)
def test_damaged_storage_is_refused(file, damage, tmp_path):
    build([page(n) for n in range(6)]).storage_context.persist(tmp_path)
    damage(tmp_path / file)
    with pytest.raises(IndexFormatError):
        LongRAGIndex.from_persist_dir(str(tmp_path), embed_model=HashEmbedding())


def test_a_folder_that_is_missing_or_holds_another_index_is_refused(tmp_path):
    with pytest.raises(IndexFormatError, match="no index can be read from"):
        LongRAGIndex.from_persist_dir(str(tmp_path / "nowhere"), embed_model=HashEmbedding())
    SummaryIndex.from_documents([page(1)]).storage_context.persist(tmp_path)
    with pytest.raises(IndexFormatError, match="holds no index 'another'"):
        LongRAGIndex.from_persist_dir(str(tmp_path), index_id="another")
    with pytest.raises(InvalidParameterError, match="a saved LongRAGIndex, not SummaryIndex"):
        LongRAGIndex.from_persist_dir(str(tmp_path))


def test_registering_again_changes_nothing():
    before = dict(INDEX_STRUCT_TYPE_TO_INDEX_CLASS), dict(INDEX_STRUCT_TYPE_TO_INDEX_STRUCT_CLASS)
    register()
    register()
    after = dict(INDEX_STRUCT_TYPE_TO_INDEX_CLASS), dict(INDEX_STRUCT_TYPE_TO_INDEX_STRUCT_CLASS)
    assert after == before
    assert after[0]["longrag"] is LongRAGIndex
    assert after[1]["longrag"] is LongRAGStruct


# settings


class OtherStore(BasePydanticVectorStore):
    """A vector store of someone else."""

    stores_text: bool = True

    @property
    def client(self) -> None:
        return None

    def add(self, nodes: Any, **kwargs: Any) -> list[str]:
        raise AssertionError("nothing may be written")

    def delete(self, ref_doc_id: str, **kwargs: Any) -> None:
        raise AssertionError("nothing may be deleted")

    def query(self, query: Any, **kwargs: Any) -> Any:
        raise AssertionError("nothing may be asked")


def test_another_vector_store_is_refused_before_anything_is_paid():
    model = HashEmbedding()
    context = StorageContext.from_defaults(vector_store=OtherStore())
    with pytest.raises(InvalidParameterError, match="a SimpleVectorStore, got 'OtherStore'"):
        build([page(1)], model, storage_context=context)
    assert model.asked == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"granularity": "unit"}, "granularity must be chunk or document, got 'unit'"),
        ({"granularity": "sentence"}, "granularity must be"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"chunk_size": 2.5}, "chunk_size must be"),
        ({"link_extractor": 7}, "link_extractor must be"),
    ],
)
def test_a_setting_out_of_range_is_refused(settings, message):
    with pytest.raises(InvalidParameterError, match=message):
        build([page(1)], **settings)


def test_an_unknown_setting_is_refused():
    with pytest.raises(TypeError, match="top_k"):
        build([page(1)], top_k=3)
    with pytest.raises(TypeError, match="top_k"):
        LongRAGIndex([], embed_model=HashEmbedding(), top_k=3)


def test_whole_documents_are_a_granularity():
    index = build([page(n) for n in range(5)], granularity="document")
    assert len(index.corpus.index.chunks) == 5
    index.update_ref_doc(page(2, 1))
    assert found(index) == found(
        build([page(n, int(n == 2)) for n in range(5)], granularity="document")
    )


def test_the_global_embedding_model_is_the_default():
    Settings.embed_model = HashEmbedding()
    index = LongRAGIndex.from_documents([page(1)], **SETTINGS)
    assert found(index) == found(build([page(1)]))


# what is embedded


def test_documents_are_embedded_as_llama_index_embeds_nodes():
    model = HashEmbedding()
    document = page(1, town="Delft", hidden="not this")
    document.excluded_embed_metadata_keys = ["hidden", "version"]
    document.metadata_template = "{key} = {value}"
    document.metadata_separator = "; "
    document.text_template = "<{metadata_str}>\n{content}"
    index = build([document], model)
    shown = {
        TextNode(
            text=chunk.text,
            metadata=document.metadata,
            excluded_embed_metadata_keys=document.excluded_embed_metadata_keys,
            metadata_template=document.metadata_template,
            metadata_separator=document.metadata_separator,
            text_template=document.text_template,
        ).get_content(metadata_mode=MetadataMode.EMBED)
        for chunk in index.corpus.index.chunks
    }
    assert set(paid(model)) == shown
    assert all(text.startswith("<title = Page 1; town = Delft>\n") for text in shown)


def test_a_document_without_metadata_is_embedded_as_its_text():
    model = HashEmbedding()
    LongRAGIndex.from_documents([Document(id_="a", text="The mill grinds.")], embed_model=model)
    assert paid(model) == ["The mill grinds."]


def test_nodes_of_every_kind_are_embedded_chunk_by_chunk():
    model = HashEmbedding()
    index = LongRAGIndex([page(1)], embed_model=model, **SETTINGS)
    chunks = index.corpus.index.chunks
    assert len(chunks) > 1
    assert paid(model) == [f"title: Page 1\n\n{chunk.text}" for chunk in chunks]


def test_nothing_the_caller_does_to_a_document_later_reaches_the_index(tmp_path):
    documents = [page(n, tags=["old"]) for n in range(4)]
    nodes = [TextNode(id_="n", text="A node of its own.", metadata={"tags": ["old"]})]
    index = build(documents)
    index.insert_nodes(nodes)
    before = state(index)
    for node in [*documents, *nodes]:
        node.metadata["tags"].append("new")
        node.metadata["title"] = "Another"
        node.excluded_embed_metadata_keys.append("title")
        node.set_content("Nothing.")
    for result in index.as_retriever(similarity_top_k=9).retrieve("page"):
        result.node.metadata.get("tags", []).append("found")
    for info in index.ref_doc_info.values():
        info.metadata["tags"].append("seen")
    assert state(index) == before
    index.insert(page(9))
    index.delete_ref_doc("page-9.md")
    assert state(index) == before
    assert state(reload(index, tmp_path)) == before
    assert all(info.metadata["tags"] == ["old"] for info in index.ref_doc_info.values())


# failing models


class FailingEmbedding(HashEmbedding):
    """Fails as ``failure`` says, once it is set."""

    _failure: Any = PrivateAttr(default=None)

    def _vector(self, how: str, text: str) -> list[float]:
        vector = super()._vector(how, text)
        if self._failure is None or "query" in how:
            return vector
        return self._failure(vector)


def _raise(vector: list[float]) -> list[float]:
    raise TimeoutError("too slow")


FAILURES = pytest.mark.parametrize(
    ("failure", "error"),
    [
        (_raise, TimeoutError),
        (lambda vector: [float("nan")] * len(vector), EmbeddingError),
        (lambda vector: vector[:5], EmbeddingError),
    ],
    ids=["raises", "not finite", "narrow"],
)


@FAILURES
async def test_a_failing_change_leaves_index_and_stores_as_they_were(failure, error, tmp_path):
    model = FailingEmbedding()
    index = build([page(n) for n in range(6)], model)
    before, hashes = state(index), index.docstore.get_all_document_hashes()
    model._failure = failure
    for call in (index.insert, index.update_ref_doc):
        with pytest.raises(error):
            call(page(3, 1))
    for acall in (index.ainsert, index.aupdate_ref_doc):
        with pytest.raises(error):
            await acall(page(3, 1))
    with pytest.raises(error):
        index.refresh_ref_docs([page(1), page(2, 2), page(9)])
    with pytest.raises(error):
        await index.arefresh_ref_docs([page(1), page(2, 2), page(9)])
    model._failure = None
    assert state(index) == before
    assert index.docstore.get_all_document_hashes() == hashes
    assert state(reload(index, tmp_path)) == before
    assert index.refresh_ref_docs([page(1), page(2, 2), page(9)]) == [False, True, True]
    assert state(index) == state(build([*map(page, [0, 1, 3, 4, 5, 9]), page(2, 2)]))


class FailingStore(SimpleDocumentStore):
    """Fails once in the named method when told to."""

    fails = ""

    def _fail(self, name: str) -> None:
        if self.fails == name:
            self.fails = ""
            raise ConnectionError("the store is down")

    def add_documents(self, *args: Any, **kwargs: Any) -> None:
        self._fail("add_documents")
        super().add_documents(*args, **kwargs)

    def delete_document(self, *args: Any, **kwargs: Any) -> None:
        self._fail("delete_document")
        super().delete_document(*args, **kwargs)


@pytest.mark.parametrize("method", ["add_documents", "delete_document"])
@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.insert(page(9)),
        lambda index: index.update_ref_doc(page(3, 1)),
        lambda index: index.delete_ref_doc("page-1.md"),
        lambda index: index.refresh_ref_docs([page(1, 2), page(9)]),
    ],
    ids=["insert", "update", "delete", "refresh"],
)
def test_what_a_failing_store_cut_short_the_next_change_completes(change, method, tmp_path):
    docstore = FailingStore()
    context = StorageContext.from_defaults(docstore=docstore)
    index = build([page(n) for n in range(6)], storage_context=context)
    expected = build([page(n) for n in range(6)])
    docstore.fails = method
    for one in (index, expected):
        with contextlib.suppress(ConnectionError):
            change(one)
        docstore.fails = ""
        one.insert(page(20))
    assert state(index) == state(expected)
    assert state(reload(index, tmp_path)) == state(expected)


@pytest.mark.parametrize("change", ["insert", "delete_ref_doc"])
def test_what_a_failing_store_leaves_can_be_loaded(change, tmp_path):
    docstore = FailingStore()
    context = StorageContext.from_defaults(docstore=docstore)
    index = build([page(n) for n in range(6)], storage_context=context)
    docstore.fails = "add_documents" if change == "insert" else "delete_document"
    with pytest.raises(ConnectionError):
        getattr(index, change)(page(9) if change == "insert" else "page-1.md")
    numbers = range(6) if change == "insert" else [0, 2, 3, 4, 5]
    loaded = reload(index, tmp_path)
    assert loaded.corpus.index.units == build([page(n) for n in numbers]).corpus.index.units


async def test_what_a_cancelled_insert_leaves_the_next_change_completes(tmp_path):
    index = build([page(n) for n in range(6)])
    paid = index._apay

    async def pay_and_be_cancelled(*args: Any) -> None:
        await paid(*args)
        raise asyncio.CancelledError

    index._apay = pay_and_be_cancelled
    with pytest.raises(asyncio.CancelledError):
        await index.ainsert(page(9))
    index._apay = paid
    index.insert(page(20))
    assert state(reload(index, tmp_path)) == state(build([*map(page, [*range(6), 9, 20])]))


@pytest.mark.parametrize(
    "settings",
    [
        {"filters": MetadataFilters(filters=[MetadataFilter(key="version", value=1)])},
        {"node_ids": ["a"]},
        {"hits": 0},
        {"retriever_mode": "evidence", "similarity_top_k": 3},
    ],
    ids="-".join,
)
def test_a_setting_the_retriever_does_not_have_is_not_passed_over(settings):
    index = build([page(n) for n in range(3)])
    name = list(settings)[-1]
    with pytest.raises(InvalidParameterError, match=name):
        index.as_retriever(**settings)
    with pytest.raises(InvalidParameterError, match=name):
        index.as_query_engine(llm=ScriptedLLM(["1312"]), **settings)


def test_settings_of_evidence_reach_its_retriever():
    index = build([page(n) for n in range(3)])
    with pytest.raises(InvalidParameterError, match="hits"):
        index.as_retriever(retriever_mode="evidence", hits=-1)


@pytest.mark.parametrize("failure", [_raise, lambda vector: [float("inf")] * len(vector)])
def test_a_build_that_fails_leaves_the_stores_empty(failure):
    model, context = FailingEmbedding(), StorageContext.from_defaults()
    model._failure = failure
    empty = copy.deepcopy(context.to_dict())
    with pytest.raises((TimeoutError, EmbeddingError)):
        build([page(1)], model, storage_context=context)
    assert context.to_dict() == empty
    model._failure = None
    index = build([page(1)], model, storage_context=context)
    assert state(index) == state(build([page(1)]))


# custom transformations


def split(documents: list[Document], model: HashEmbedding | None = None) -> LongRAGIndex:
    splitter = SentenceSplitter(chunk_size=30, chunk_overlap=0, tokenizer=tokenizer)
    return build(documents, model, transformations=[splitter])


def texts(index: LongRAGIndex) -> dict[str, list[str]]:
    nodes = [index.docstore.get_node(node_id) for node_id in index.index_struct.documents]
    grouped: dict[str, list[str]] = {}
    for node in sorted(nodes, key=lambda node: node.start_char_idx):
        grouped.setdefault(node.ref_doc_id, []).append(node.text)
    return grouped


async def test_the_nodes_of_a_splitter_are_replaced_and_deleted_with_their_document(tmp_path):
    model = HashEmbedding()
    index = split([page(n, note="old") for n in range(5)], model)
    assert len(index.index_struct.documents) > 5
    index.update_ref_doc(page(1, 1))
    await index.aupdate_ref_doc(page(2, 2))
    assert index.refresh_ref_docs([page(3, 1), page(2, 2)]) == [True, False]
    index.delete_ref_doc("page-4.md")
    expected = split([page(0, note="old"), page(1, 1), page(2, 2), page(3, 1)])
    assert texts(index) == texts(expected)
    infos = {
        doc_id: info.metadata for doc_id, info in index.docstore.get_all_ref_doc_info().items()
    }
    assert infos == {
        doc_id: info.metadata for doc_id, info in expected.docstore.get_all_ref_doc_info().items()
    }
    rows = index.storage_context.vector_store.to_dict()["embedding_dict"]
    assert len(rows) == len(index.corpus.index.chunks)
    assert found(reload(index, tmp_path)) == found(index)


def test_nodes_that_a_splitter_no_longer_makes_are_gone_after_an_update():
    index = split([page(1), page(2)])
    index.update_ref_doc(Document(id_="page-1.md", text="Short now."))
    assert texts(index)["page-1.md"] == ["Short now."]
    index.update_ref_doc(Document(id_="page-1.md", text=""))
    assert texts(index)["page-1.md"] == [""]
    assert {chunk.title for chunk in index.corpus.index.chunks} == {"Page 2"}
    assert index.refresh_ref_docs([Document(id_="page-1.md", text="")]) == [False]


# searching and reading


def test_a_retriever_follows_later_changes():
    index = build([page(n) for n in range(5)])
    retriever = index.as_retriever(similarity_top_k=1)
    assert isinstance(retriever, MaxPRetriever)
    index.insert(Document(id_="z.md", text="A zeppelin flies."))
    assert retriever.retrieve("zeppelin")[0].metadata["doc_ids"] == ["z.md"]
    index.delete_ref_doc("z.md")
    assert "z.md" not in retriever.retrieve("zeppelin")[0].metadata["doc_ids"]


def test_a_retriever_counts_its_budget_as_the_index_counts():
    double = lambda text: tokenizer(text) * 2  # noqa: E731
    index = build([page(n) for n in range(9)], tokenizer=double)
    for retriever, count in [
        (index.as_retriever(token_budget=60), double),
        (index.as_retriever(token_budget=60, tokenizer=tokenizer), tokenizer),
    ]:
        used = sum(len(count(node.text)) for node in retriever.retrieve(QUESTION))
        assert 30 < used <= 60


def test_scores_are_those_of_a_vector_store_index_over_the_same_chunks():
    index = build([page(n) for n in range(20)])
    nodes = [
        TextNode(
            id_=chunk.id,
            text=chunk.text,
            metadata={"title": chunk.title},
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=chunk.unit_id)},
        )
        for chunk in index.corpus.index.chunks
    ]
    other = VectorStoreIndex(nodes, embed_model=HashEmbedding())
    best: dict[str, float] = {}
    for node in other.as_retriever(similarity_top_k=len(nodes)).retrieve(QUESTION):
        best.setdefault(node.node.ref_doc_id, node.score)
    results = found(index)
    assert len(results) == len(best)
    assert [score for _, score, _ in results] == pytest.approx(
        [best[unit_id] for unit_id, _, _ in results], abs=1e-6
    )


def test_a_query_engine_reads_in_two_turns_and_takes_what_others_take():
    llm = ScriptedLLM("1312")
    index = build([page(n) for n in range(8)])
    engine = index.as_query_engine(
        llm=llm, similarity_top_k=2, token_budget=500, vector_store_query_mode="default"
    )
    response = engine.query(QUESTION)
    assert str(response) == "1312"
    assert len(response.source_nodes) == 2
    assert "long_answer" in response.metadata
    assert isinstance(engine._response_synthesizer, TwoTurnSynthesizer)


def test_a_query_engine_that_is_told_how_to_synthesize_does_so():
    index, llm = build([page(1)]), ScriptedLLM("yes")
    compact = index.as_query_engine(llm=llm, response_mode="compact")
    assert isinstance(compact._response_synthesizer, CompactAndRefine)
    template = PromptTemplate("CONTEXT {context_str} QUERY {query_str}")
    own = index.as_query_engine(llm=llm, text_qa_template=template)
    assert str(own.query("gates")) == "yes"
    assert llm.prompts[-1].startswith("CONTEXT ")
    reader = TwoTurnSynthesizer(llm=llm)
    assert index.as_query_engine(llm=llm, response_synthesizer=reader)._response_synthesizer is (
        reader
    )


async def test_a_query_engine_streams():
    index, llm = build([page(1)]), ScriptedLLM("the year 1312")
    engine = index.as_query_engine(llm=llm, streaming=True)
    response = engine.query("gates")
    assert isinstance(response, StreamingResponse)
    assert "".join(response.response_gen) == "the year 1312"
    aresponse = await engine.aquery("gates")
    assert isinstance(aresponse, AsyncStreamingResponse)
    assert "".join([token async for token in aresponse.async_response_gen()]) == "the year 1312"


def test_the_global_language_model_is_the_default():
    Settings.llm = ScriptedLLM("from the settings")
    assert str(build([page(1)]).as_query_engine().query("gates")) == "from the settings"


@pytest.mark.parametrize(
    "mode", [ChatMode.BEST, ChatMode.CONTEXT, ChatMode.CONDENSE_QUESTION, ChatMode.SIMPLE]
)
async def test_a_chat_engine_answers(mode):
    llm = ScriptedLLM("There is a market.")
    # The default memory leaves a database connection open.
    memory = ChatMemoryBuffer.from_defaults(token_limit=10_000, tokenizer_fn=tokenizer)
    index = build([page(n) for n in range(4)])
    chat = index.as_chat_engine(chat_mode=mode, llm=llm, memory=memory)
    assert str(chat.chat("Is there a market?")) == "There is a market."
    assert str(await chat.achat("And a gate?")) == "There is a market."
    assert ("Page " in "".join(llm.prompts)) is (mode != ChatMode.SIMPLE)


def test_callbacks_and_events_are_seen():
    debug = LlamaDebugHandler(print_trace_on_end=False)
    names: list[str] = []

    class Watch(BaseEventHandler):
        def handle(self, event: Any, **kwargs: Any) -> None:
            names.append(event.class_name())

    dispatcher, watch = get_dispatcher(), Watch()
    dispatcher.add_event_handler(watch)
    try:
        manager = CallbackManager([debug])
        index = build([page(n) for n in range(3)], callback_manager=manager)
        index.insert(page(4))
        index.as_query_engine(llm=ScriptedLLM("yes")).query("gates")
    finally:
        dispatcher.event_handlers.remove(watch)
    assert len(debug.get_event_pairs(CBEventType.EMBEDDING)) == 3
    assert len(debug.get_event_pairs(CBEventType.RETRIEVE)) == 1
    assert {"EmbeddingStartEvent", "RetrievalStartEvent", "RetrievalEndEvent"} <= set(names)


# async and threads


async def test_async_calls_are_the_embedding_models_own_and_end_as_sync_ones_do():
    model = HashEmbedding()
    index = build([], model)
    await index.ainsert(page(1))
    await index.ainsert_nodes(WholeDocuments()([page(2), page(3)]))
    await index.aupdate_ref_doc(page(1, 1))
    await index.arefresh_ref_docs([page(4), page(2)])
    await index.adelete_ref_doc("page-3.md")
    nodes = await index.as_retriever().aretrieve(QUESTION)
    assert {how for how, _ in model.asked} == {"atext", "aquery"}
    expected = build([page(1, 1), page(2), page(4)])
    assert [node.node_id for node in nodes] == [
        node.node_id for node in expected.as_retriever().retrieve(QUESTION)
    ]
    assert index.corpus.index.units == expected.corpus.index.units


async def test_changes_from_many_tasks_are_all_kept(tmp_path):
    index = build([page(n) for n in range(20, 26)])
    await asyncio.gather(
        *(index.ainsert(page(n)) for n in range(12)),
        *(index.adelete_ref_doc(f"page-{n}.md") for n in range(20, 26)),
    )
    expected = build([page(n) for n in range(12)])
    assert state(index) == state(expected)
    assert state(reload(index, tmp_path)) == state(expected)


async def test_a_change_computes_off_the_event_loop():
    counted_in = set()

    def count(text: str) -> list[str]:
        counted_in.add(threading.get_ident())
        return tokenizer(text)

    index = build([], tokenizer=count)
    await index.arefresh_ref_docs([page(n) for n in range(40)])
    await index.adelete_ref_doc("page-1.md")
    assert counted_in
    assert threading.get_ident() not in counted_in


class SlowStore(SimpleVectorStore):
    """Takes its time before it writes, so that another change could come between."""

    def add(self, nodes: Any, **kwargs: Any) -> list[str]:
        time.sleep(0.01)
        return super().add(nodes, **kwargs)


def slow_build(documents: list[Document]) -> LongRAGIndex:
    return build(documents, storage_context=StorageContext.from_defaults(vector_store=SlowStore()))


def run_all(works: list[Callable[[], None]]) -> list[Exception]:
    """Run works in a thread each, and return what they raised."""
    errors: list[Exception] = []

    def attempt(work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=attempt, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_searches_and_changes_run_beside_each_other(tmp_path):
    index = slow_build([page(n) for n in range(9)])

    def search() -> None:
        retriever = index.as_retriever(similarity_top_k=5)
        for _ in range(60):
            for node in retriever.retrieve(QUESTION):
                assert node.metadata["best_chunk"]["text"] in node.text

    def change(first: int) -> None:
        for n in range(3):
            index.insert(page(10 * first + n))
            index.update_ref_doc(page(10 * first + n, 1))
            index.delete_ref_doc(f"page-{3 * (first - 1) + n}.md")

    errors = run_all([search, search, *(lambda first=first: change(first) for first in (1, 2, 3))])
    assert errors == []
    expected = build([page(n, 1) for n in (10, 11, 12, 20, 21, 22, 30, 31, 32)])
    assert state(index) == state(expected)
    assert state(reload(index, tmp_path)) == state(expected)


def test_one_document_changed_by_many_threads_is_in_all_stores_the_same(tmp_path):
    index = slow_build([page(0)])
    versions = [page(0, version) for version in range(1, 9)]
    assert run_all([lambda new=new: index.update_ref_doc(new) for new in versions]) == []
    assert state(reload(index, tmp_path)) == state(index)


def test_the_stores_end_with_the_change_that_was_embedded_last():
    index = build([page(0), page(3)])
    first, second = ([*WholeDocuments()([page(0, version)])] for version in (1, 2))
    other = WholeDocuments()([page(3)])
    index._pay(first)
    index._pay(second)
    index._pay([], [other[0].node_id])
    index._store()
    index._pay(first)
    index._pay(second)
    index._store()
    index.docstore.set_document_hash("page-0.md", page(0, 2).hash)
    assert state(index) == state(build([page(0, 2)]))


def test_it_is_an_index_as_others_are():
    index = build([page(1)])
    assert isinstance(index, BaseIndex)
    assert index.index_struct.get_type() == "longrag"
    index.summary = "towns"
    assert index.summary == "towns"
    assert not np.isnan([score for _, score, _ in found(index)]).any()
