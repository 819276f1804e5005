"""Retrievers with retries, fallbacks and settings around them are retrievers."""

import pytest
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField

from langchain_longrag import (
    HybridRetriever,
    MaxPRetriever,
    balanced_efficiency,
    create_longrag_chain,
)
from longrag.errors import InvalidParameterError
from tests.fakes.langchain import HashEmbeddings, chunk, memory_store, replying

CHUNKS = [chunk(f"u{n}", 0, f"old harbour {n}") for n in range(6)]


class Fails(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        raise ConnectionError("gone")


def retriever():
    return MaxPRetriever(vectorstore=memory_store(CHUNKS, HashEmbeddings()), k=2)


WRAPPED = {
    "retry": lambda: retriever().with_retry(),
    "config": lambda: retriever().with_config(tags=["own"]),
    "fallbacks": lambda: Fails().with_fallbacks([retriever()]),
    "fields": lambda: retriever().configurable_fields(k=ConfigurableField(id="k")),
    "sequence": lambda: retriever() | (lambda found: found),
}


@pytest.mark.parametrize("name", WRAPPED)
async def test_a_chain_asks_a_wrapped_retriever_the_question(name):
    chain = create_longrag_chain(WRAPPED[name](), replying(lambda _: "in the harbour"))
    found = chain.invoke({"input": "old harbour 3"})
    assert found["context"][0].id == "u3"
    assert len(found["context"]) == 2
    assert (await chain.ainvoke({"input": "old harbour 3"}))["context"] == found["context"]


@pytest.mark.parametrize("name", WRAPPED)
def test_a_hybrid_retriever_fuses_with_a_wrapped_one(name):
    pytest.importorskip("bm25s")
    hybrid = HybridRetriever(retriever=WRAPPED[name](), documents=CHUNKS, k=2)
    assert [unit.id for unit in hybrid.invoke("old harbour 3")]


def test_what_is_no_retriever_is_refused():
    with pytest.raises(InvalidParameterError, match="retriever must be a retriever"):
        HybridRetriever(retriever=replying(lambda _: ""), documents=CHUNKS)


@pytest.mark.parametrize("name", WRAPPED)
async def test_a_recipe_asks_a_wrapped_retriever(name):
    recipe = balanced_efficiency(
        WRAPPED[name](),
        replying(lambda _: "in the harbour"),
        reranker=None,
        alpha=None,
        compressor=None,
        classifier=None,
    )
    made = recipe.invoke({"input": "old harbour 3"})
    assert made["answer"] == "in the harbour"
    assert "old harbour 3" in [one.page_content for one in made["context"]]
    assert (await recipe.ainvoke({"input": "old harbour 3"}))["context"] == made["context"]
