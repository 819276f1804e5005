"""A filter that is given with one call of a chain, a recipe or a retriever around another."""

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

import langchain_longrag as lc
from longrag.errors import InvalidParameterError
from tests.fakes.langchain import HashEmbeddings, ScriptedChatModel

RED, BLUE = {"tenant": "red"}, {"tenant": "blue"}


@pytest.fixture
def index():
    pages = [
        Document(id=f"{tenant}{n}", page_content=f"The {tenant} mill {n}", metadata=metadata)
        for tenant, n in [("red", 0), ("red", 1), ("blue", 0)]
        for metadata in [{"tenant": tenant, "n": n}]
    ]
    return lc.LongRAGIndex.from_documents(pages, HashEmbeddings(), k=9)


@pytest.fixture
def model():
    return ScriptedChatModel(reply=lambda prompt: "an answer")


def ids(found):
    context = found["context"] if isinstance(found, dict) else found
    return {id_ for one in context for id_ in one.metadata["doc_ids"]}


def chains(retriever, model):
    off = {"reranker": None, "classifier": None, "compressor": None}
    yield lc.create_longrag_chain(retriever, model)
    if isinstance(retriever, lc.LongRAGIndex):
        yield lc.balanced_efficiency(retriever, model, **off)
        yield lc.best_performance(retriever, model, alpha=None, **off)


async def test_a_chain_reads_what_passes_the_filter_of_its_call_and_shows_no_other_key(
    index, model
):
    for chain in chains(index, model):
        question = {"input": "mill", "mine": 1}
        whole = chain.invoke(question)
        assert ids(whole) == {"red0", "red1", "blue0"}
        found = chain.invoke(question, filter=RED)
        assert ids(found) == {"red0", "red1"}
        assert found.keys() == whole.keys()
        assert ids(await chain.ainvoke(question, filter=BLUE)) == {"blue0"}
        assert ids(chain.invoke(question, filter=lambda data: data["n"] == 0)) == {"red0", "blue0"}
        assert ids(chain.batch([question], filter=BLUE)[0]) == {"blue0"}


def test_an_input_cannot_choose_the_filter(index, model):
    for chain in chains(index, model):
        given = {"input": "mill", "_filter": BLUE, "filter": BLUE}
        assert ids(chain.invoke(given)) == {"red0", "red1", "blue0"}
        found = chain.invoke(given, filter=RED)
        assert ids(found) == {"red0", "red1"}
        assert found["filter"] == BLUE
        assert "_filter" not in found


def test_the_filter_of_a_call_narrows_one_that_is_bound(index, model):
    bound = index.bind(filter=RED)
    for retriever in (bound, bound.with_retry(), index.with_fallbacks([bound]), bound.with_retry()):
        for chain in chains(retriever, model):
            assert "blue0" not in ids(chain.invoke({"input": "mill"}, filter={"n": 1}))
    for retriever in (bound, bound.with_retry(), bound.with_fallbacks([bound])):
        for chain in chains(retriever, model):
            assert ids(chain.invoke({"input": "mill"}, filter=BLUE)) == set()


def test_what_takes_no_filter_with_a_call_is_a_typed_error(index, model):
    store = InMemoryVectorStore(HashEmbeddings())
    store.add_documents([Document(id="d", page_content="mill", metadata=RED)])
    off = {"reranker": None, "classifier": None}
    refusing = [
        lc.create_longrag_chain(store.as_retriever(), model),
        lc.create_longrag_chain(RunnableLambda(lambda _: []), model),
        lc.balanced_efficiency(store, model, **off),
        lc.balanced_efficiency(store.as_retriever(), model, alpha=None, **off),
    ]
    for chain in refusing:
        assert chain.invoke({"input": "mill"})
        with pytest.raises(InvalidParameterError, match="filter"):
            chain.invoke({"input": "mill"}, filter=RED)
    transform = lc.QueryTransformRetriever(vectorstore=store, llm=model)
    with pytest.raises(InvalidParameterError, match="search_kwargs"):
        transform.invoke("mill", filter=RED)
    with pytest.raises(InvalidParameterError, match="filter"):
        lc.create_longrag_chain(index, model).invoke({"input": "mill"}, filter=3)


@pytest.mark.parametrize("transform", ["hyde", "rewrite", "decompose"])
async def test_a_query_transform_hands_on_the_filter_of_its_call(index, model, transform):
    retriever = lc.QueryTransformRetriever(
        retriever=index, llm=model, query_transform=transform, k=9
    )
    assert ids(retriever.invoke("mill")) == {"red0", "red1", "blue0"}
    assert ids(retriever.invoke("mill", filter=RED)) == {"red0", "red1"}
    assert ids(await retriever.ainvoke("mill", filter=BLUE)) == {"blue0"}
