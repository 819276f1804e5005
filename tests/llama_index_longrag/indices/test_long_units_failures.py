"""A change that fails or is cancelled leaves LlamaIndex's index and stores consistent."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from typing import Any

import pytest
from llama_index.core import (
    StorageContext,
)
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.storage.docstore import SimpleDocumentStore

from longrag.errors import (
    EmbeddingError,
    InvalidParameterError,
)
from tests.fakes.llama_index import HashEmbedding, ScriptedLLM
from tests.llama_index_longrag.indices.pages import build, page, reload, state


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
    update = index._aupdate_corpus

    async def update_and_be_cancelled(*args: Any) -> None:
        await update(*args)
        raise asyncio.CancelledError

    index._aupdate_corpus = update_and_be_cancelled
    with pytest.raises(asyncio.CancelledError):
        await index.ainsert(page(9))
    index._aupdate_corpus = update
    index.insert(page(20))
    assert state(reload(index, tmp_path)) == state(build([*map(page, [*range(6), 9, 20])]))


@pytest.mark.parametrize(
    "settings",
    [
        {"node_ids": ["a"]},
        {"hits": 0},
        {"retriever_mode": "evidence", "approximate": "flat"},
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
