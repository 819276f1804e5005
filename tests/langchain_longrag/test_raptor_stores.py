"""A vector store that holds the nodes of a tree, kept in step and searched alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_longrag import (
    RaptorIndex,
    RaptorRetriever,
)
from longrag.errors import (
    InvalidParameterError,
    StoreError,
)
from tests.langchain_longrag.conftest import (
    HashEmbeddings,
    ListStore,
)
from tests.langchain_longrag.trees import (
    PAGES,
    SETTINGS,
    build,
    page,
    prompts_of,
)

# The framework's own notice about the class the index extends.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The class `DocumentIndex` is in beta"
    ":langchain_core._api.beta_decorator.LangChainBetaWarning"
)


# a vector store in step


class StrictStore(ListStore):
    """Refuses rows that many stores cannot take, and ids it does not know."""

    def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        known = {row.id for row, _ in self.rows}
        for document, id_ in zip(documents, kwargs["ids"], strict=True):
            assert document.id == id_
            assert id_ not in known, "the store does not overwrite"
            for key, value in document.metadata.items():
                assert isinstance(key, str)
                assert type(value) in (str, int, float, bool), (key, value)
        return super().add_documents(documents)

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        assert ids
        known = {row.id for row, _ in self.rows}
        assert known.issuperset(ids)
        self.rows = [row for row in self.rows if row[0].id not in ids]
        return True


def rows_of(store: ListStore) -> dict[str, str]:
    return {str(row.id): row.page_content for row, _ in store.rows}


def nodes_of(built: RaptorIndex) -> dict[str, str]:
    return {node.id: node.text for node in built.tree.nodes.values()}


def test_a_strict_store_holds_the_nodes_after_every_change():
    store, draw = StrictStore(HashEmbeddings()), random.Random(3)
    odd = {"tags": ["a"], "none": None, "set": {1}, "level": "high", "ratio": 0.5, "ok": True}
    pages = [page(n) for n in range(12)]
    for document in pages:
        document.metadata.update(odd)
    changed = build(pages, vectorstore=store)
    for step in range(8):
        assert rows_of(store) == nodes_of(changed)
        changed.upsert([page(draw.randrange(15), step) for _ in range(1)])
        changed.delete([f"page-{draw.randrange(15)}"])
    changed.rebuild()
    assert rows_of(store) == nodes_of(changed)
    for row, _ in store.rows:
        node = changed.tree.nodes[str(row.id)]
        assert (row.metadata["level"], row.metadata["tokens"]) == (node.level, node.tokens)
        assert row.metadata.get("doc_id", node.doc_ids) in (node.doc_ids[0], node.doc_ids)


def test_rows_that_are_not_the_trees_are_left_alone_and_changed_metadata_is_written():
    store = InMemoryVectorStore(HashEmbeddings())
    store.add_documents([Document("Another.", id="other")])
    built = build(PAGES[:5], vectorstore=store)
    changed = page(2).model_copy(update={"metadata": {"source": "moved.md", "lang": "en"}})
    paid = len(prompts_of(built))
    built.upsert([changed])
    assert len(prompts_of(built)) == paid
    assert set(store.store) == {"other", *built.tree.nodes}
    moved = [
        d for d in store.get_by_ids(list(built.tree.nodes)) if d.metadata.get("doc_id") == "page-2"
    ]
    assert [row.metadata["source"] for row in moved] == ["moved.md"] * 3
    built.delete([f"page-{n}" for n in range(5)])
    assert set(store.store) == {"other"}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("method", ["add_documents", "delete"])
def test_a_store_that_failed_is_made_up_for_by_the_next_change(method, asynchronous):
    class Failing(StrictStore):
        broken = False

        def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
            if self.broken and method == "add_documents":
                raise ConnectionError("gone")
            return super().add_documents(documents, **kwargs)

        def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
            return False if self.broken and method == "delete" else super().delete(ids)

    store = Failing(HashEmbeddings())
    built = build(PAGES[:9], vectorstore=store)
    store.broken = True
    with pytest.raises((ConnectionError, StoreError), match=r"gone|did not delete"):
        built.upsert([page(3, 1)])
    assert built.get(["page-3"]) == [page(3, 1)]
    assert rows_of(store) != nodes_of(built)
    store.broken = False
    paid = len(prompts_of(built))
    if asynchronous:
        asyncio.run(built.aupsert([]))
    else:
        built.delete(["nowhere"])
    assert rows_of(store) == nodes_of(built)
    assert len(prompts_of(built)) == paid


async def test_overlapping_changes_leave_the_store_in_step():
    class Yielding(InMemoryVectorStore):
        async def aadd_documents(
            self, documents: list[Document], *args: Any, **kw: Any
        ) -> list[str]:
            for _ in range(random.randrange(5)):
                await asyncio.sleep(0.001)
            return self.add_documents(documents, *args, **kw)

        async def adelete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> None:
            for _ in range(random.randrange(5)):
                await asyncio.sleep(0.001)
            self.delete(ids)

    store = Yielding(HashEmbeddings())
    changed = build(PAGES[:6], vectorstore=store)
    for _ in range(4):
        await asyncio.gather(
            changed.adelete(["page-1", "page-9"]),
            changed.aupsert([page(1), page(9)]),
            changed.aupsert([page(2, random.randrange(9))]),
            asyncio.to_thread(changed.upsert, [page(1)]),
        )
        assert set(store.store) == set(changed.tree.nodes)


def test_a_loaded_index_fills_a_store_that_lacks_its_nodes(tmp_path):
    built = build()
    built.save(tmp_path / "tree")
    store = InMemoryVectorStore(HashEmbeddings())
    RaptorIndex.load(tmp_path / "tree", HashEmbeddings(), vectorstore=store, **SETTINGS)
    assert set(store.store) == set(built.tree.nodes)
    silent = StrictStore(HashEmbeddings())
    RaptorIndex.load(tmp_path / "tree", HashEmbeddings(), vectorstore=silent, **SETTINGS)
    assert silent.rows == []


# searching a store


@pytest.mark.parametrize("kind", [InMemoryVectorStore, ListStore])
async def test_a_filled_store_answers_as_the_tree_does(kind):
    store = kind(HashEmbeddings())
    built = build(vectorstore=store)
    for settings in ({}, {"token_budget": 150}, {"k": 2}, {"levels": [1]}, {"token_budget": 5}):
        served = RaptorRetriever(vectorstore=store, **settings)
        found = served.invoke("how many boats")
        own = RaptorRetriever(index=built, redundancy=None, **settings).invoke("how many boats")
        assert _scores(found) == pytest.approx(_scores(own), abs=1e-6)
        assert sum(d.metadata["tokens"] for d in found) == sum(d.metadata["tokens"] for d in own)
        assert _scores(await served.ainvoke("how many boats")) == _scores(found)
    for document in RaptorRetriever(vectorstore=store).invoke("boats"):
        if document.metadata["level"] == 0:
            assert document.metadata["source"] == f"{document.metadata['doc_id']}.md"


def _scores(documents: list[Document]) -> list[float]:
    return [document.metadata["score"] for document in documents]


def test_a_store_is_asked_for_more_until_the_budget_is_full():
    store = ListStore(HashEmbeddings())
    built = build(vectorstore=store)
    assert len(built.tree) == 106
    RaptorRetriever(vectorstore=store, token_budget=100).invoke("boats")
    assert store.asked == [32]
    store.asked.clear()
    everything = RaptorRetriever(vectorstore=store, token_budget=None).invoke("boats")
    assert (len(everything), store.asked) == (106, [32, 128])
    store.asked.clear()
    store.most = 40
    assert len(RaptorRetriever(vectorstore=store, token_budget=None).invoke("boats")) == 40
    assert store.asked == [32, 128]


def test_a_store_without_scores_or_with_its_own_numbers_is_searched():
    store = ListStore(HashEmbeddings(), scores=False)
    build(vectorstore=store)
    for row, _ in store.rows:
        row.metadata["level"] = float(row.metadata["level"])
        row.metadata["tokens"] = np.int64(row.metadata["tokens"])
    found = RaptorRetriever(vectorstore=store, k=4, levels=[0]).invoke("boats")
    assert [document.metadata["score"] for document in found] == [None] * 4
    assert {document.metadata["level"] for document in found} == {0}


def test_rows_that_are_no_nodes_are_an_error_unless_filtered():
    store = InMemoryVectorStore(HashEmbeddings())
    build(PAGES[:3], vectorstore=store)
    store.add_documents([Document("Boats of another kind.", id="other")])
    with pytest.raises(StoreError, match="row other of the vector store has no integer"):
        RaptorRetriever(vectorstore=store).invoke("Boats of another kind.")
    kept = {"filter": lambda document: "level" in document.metadata}
    found = RaptorRetriever(vectorstore=store, search_kwargs=kept).invoke("Boats of another kind.")
    assert "other" not in {document.id for document in found}
    with pytest.raises(InvalidParameterError, match="search_kwargs must be without k"):
        RaptorRetriever(vectorstore=store, search_kwargs={"k": 3})
