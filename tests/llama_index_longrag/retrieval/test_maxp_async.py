"""Async retrieval uses async calls, works off the event loop and agrees with sync retrieval."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from llama_index.core import (
    StorageContext,
    VectorStoreIndex,
)
from llama_index.core.node_parser import get_leaf_nodes
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    VectorStoreQuery,
    VectorStoreQueryResult,
)

from llama_index_longrag import MaxPRetriever
from tests.fakes.llama_index import HashEmbedding, tokenizer
from tests.llama_index_longrag.retrieval.maxp_stores import QUESTION, store_index


class AsyncOnly(SimpleVectorStore):
    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        raise AssertionError("the sync query of an async retrieval")

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        await asyncio.sleep(0)
        return SimpleVectorStore.query(self, query, **kwargs)


async def test_async_retrieval_uses_async_calls_alone(nodes):
    def refuse(*args, **kwargs):
        raise AssertionError("a sync call of an async retrieval")

    class Docstore(SimpleDocumentStore):
        def close_sync(self):
            self.get_nodes = self.get_ref_doc_info = refuse

    class Model(HashEmbedding):
        def _get_query_embedding(self, query):
            return refuse()

    expected = MaxPRetriever(index=store_index(get_leaf_nodes(nodes))).retrieve(QUESTION)
    docstore, model = Docstore(), Model()
    context = StorageContext.from_defaults(vector_store=AsyncOnly(), docstore=docstore)
    index = VectorStoreIndex(get_leaf_nodes(nodes), storage_context=context, embed_model=model)
    model.asked.clear()
    docstore.close_sync()
    found = await MaxPRetriever(index=index).aretrieve(QUESTION)
    assert [n.node.node_id for n in found] == [n.node.node_id for n in expected]
    assert [n.node.text for n in found] == [n.node.text for n in expected]
    assert model.asked == [("aquery", QUESTION)]


async def test_the_work_of_an_async_retrieval_is_done_off_the_event_loop(nodes):
    threads = set()

    def counting(text):
        threads.add(threading.get_ident())
        return tokenizer(text)

    retriever = MaxPRetriever(
        nodes=nodes, embed_model=HashEmbedding(), token_budget=100, tokenizer=counting
    )
    threads.clear()
    await retriever.aretrieve(QUESTION)
    assert threads
    assert threading.get_ident() not in threads


async def test_sync_and_async_agree_also_when_called_inside_a_running_loop(nodes):
    index = store_index(get_leaf_nodes(nodes))
    for source in ({"nodes": nodes}, {"index": index}):
        retriever = MaxPRetriever(**source, embed_model=HashEmbedding(), token_budget=300)
        assert retriever.retrieve(QUESTION) == await retriever.aretrieve(QUESTION)


async def test_many_retrievals_at_once_do_not_mix(nodes):
    retriever = MaxPRetriever(
        index=store_index(get_leaf_nodes(nodes)), similarity_top_k=1, embed_model=HashEmbedding()
    )
    names = ["Utrecht", "Gouda", "Breda", "Zwolle"] * 5
    questions = [f"{name} {name} {name}" for name in names]
    alone = [retriever.retrieve(question) for question in questions]
    assert await asyncio.gather(*(retriever.aretrieve(q) for q in questions)) == alone
    assert len({n[0].node.node_id for n in alone}) == 3
