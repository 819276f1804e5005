"""The runs of a store below a retriever's say which documents they gave."""

from __future__ import annotations

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_longrag import HybridRetriever, MaxPRetriever, QueryTransformRetriever
from tests.fakes.langchain import HashEmbeddings, chunk, list_store, replying

CHUNKS = [chunk(f"u{n}", part, f"old harbour {n} {part}") for n in range(5) for part in range(2)]


def store() -> InMemoryVectorStore:
    made = InMemoryVectorStore(HashEmbeddings())
    made.add_documents(CHUNKS)
    return made


RETRIEVERS = {
    "maxp": lambda: MaxPRetriever(vectorstore=store(), k=2),
    "maxp without vectors": lambda: MaxPRetriever(
        vectorstore=list_store(CHUNKS, HashEmbeddings()), k=2, on_short="ignore"
    ),
    "all units": lambda: MaxPRetriever(vectorstore=store(), k=9),
    "hybrid": lambda: HybridRetriever(vectorstore=store(), k=2),
    "transformed": lambda: QueryTransformRetriever(
        vectorstore=store(), llm=replying(lambda _: "old harbour 3"), query_transform="rewrite", k=2
    ),
}


@pytest.mark.parametrize("name", RETRIEVERS)
async def test_each_event_of_a_retriever_s_end_holds_documents(name):
    texts = {one.page_content for one in CHUNKS}
    chain = RETRIEVERS[name]() | RunnableLambda(len)
    events = [event async for event in chain.astream_events("old harbour 3", version="v2")]
    ends = [event for event in events if event["event"] == "on_retriever_end"]
    nested = [event for event in ends if "." in event["name"]]
    assert any(event["name"].endswith(".search") for event in nested)
    for event in ends:
        found = event["data"]["output"]
        assert isinstance(found, list)
        assert all(isinstance(one, Document) for one in found)
    for event in nested:
        given = [one.page_content for one in event["data"]["output"]]
        assert given
        assert set(given) <= texts
        if event["name"].endswith(".search") and name in ("maxp", "hybrid"):
            assert "harbour 3" in given[0]
