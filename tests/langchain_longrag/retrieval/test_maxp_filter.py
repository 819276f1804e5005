"""A filter on MaxPRetriever over documents in memory."""

import asyncio

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_longrag import (
    HybridRetriever,
    LongRAGIndex,
    LongUnitTransformer,
    MaxPRetriever,
    RaptorIndex,
)
from longrag.errors import InvalidParameterError
from tests.fakes.langchain import HashEmbeddings

# The framework's own notice about the class the indexes extend.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The class `DocumentIndex` is in beta"
    ":langchain_core._api.beta_decorator.LangChainBetaWarning"
)

TENANTS = ("red", "blue", "green")


def page(number):
    tenant = TENANTS[number % 3]
    return Document(
        id=f"d{number}",
        page_content=f"The {tenant} page {number} is about otters. [on](d{number + 1})",
        metadata={"tenant": tenant, "number": number, "title": f"Title {number}"},
    )


UNITS = LongUnitTransformer(max_tokens=60, chunk_size=12).transform_documents(
    [page(n) for n in range(18)]
)


def made(**settings):
    return MaxPRetriever(documents=UNITS, embedding=HashEmbeddings(), k=30, **settings)


def asked(retriever, **settings):
    found = retriever.invoke("otters", **settings)
    assert asyncio.run(retriever.ainvoke("otters", **settings)) == found
    return found


def expect_only(found, numbers):
    """Expect all of these pages, and nothing of any other."""
    told = {id_ for one in found for id_ in one.metadata["doc_ids"]}
    assert told == {f"d{n}" for n in numbers}
    for other in set(range(18)).difference(numbers):
        shown = repr([(one.page_content, one.metadata) for one in found])
        assert f"page {other} is" not in shown
        assert f"Title {other}'" not in shown


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        ({"tenant": "red"}, range(0, 18, 3)),
        ({"tenant": ["red", "blue"], "number": [0, 1, 2, 4]}, [0, 1, 4]),
        (lambda metadata: metadata.get("number", 0) > 13, range(14, 18)),
        ({"tenant": "nobody"}, []),
    ],
)
def test_only_documents_that_pass_are_shown(wanted, numbers):
    expect_only(asked(made(filter=wanted)), numbers)
    expect_only(asked(made(), filter=wanted), numbers)


def test_the_filter_of_a_call_narrows_that_of_the_retriever():
    retriever = made(filter={"tenant": ["red", "blue"]})
    expect_only(asked(retriever, filter={"tenant": ["blue", "green"]}), range(1, 18, 3))
    expect_only(asked(retriever), [n for n in range(18) if n % 3 != 2])


def test_a_hybrid_over_it_keeps_to_it():
    hybrid = HybridRetriever(retriever=made(filter={"tenant": "red"}), k=30)
    expect_only(asked(hybrid), range(0, 18, 3))


@pytest.mark.parametrize("kind", ["units", "index", "tree"])
def test_a_hybrid_takes_a_filter_for_each_call(kind):
    pages = [page(n) for n in range(18)]
    if kind == "units":
        retriever = made(filter={"tenant": ["red", "blue"]})
    elif kind == "tree":
        retriever = RaptorIndex.from_documents(
            pages,
            HashEmbeddings(),
            summarizer="extractive",
            filter={"tenant": ["red", "blue"]},
        )
    else:
        retriever = LongRAGIndex.from_documents(
            pages, HashEmbeddings(), max_tokens=60, filter={"tenant": ["red", "blue"]}
        )
    hybrid = HybridRetriever(retriever=retriever, k=30)
    before = asked(hybrid)
    for _ in range(2):
        expect_only(asked(hybrid, filter={"tenant": ["red", "green"]}), range(0, 18, 3))
        expect_only(asked(hybrid, filter=lambda m: m["tenant"] == "blue"), range(1, 18, 3))
    expect_only(asked(hybrid, filter={"tenant": "green"}), [])
    assert asked(hybrid) == before
    expect_only(before, [n for n in range(18) if n % 3 != 2])


def test_a_hybrid_over_what_takes_no_filter_refuses_one():
    store = InMemoryVectorStore(HashEmbeddings())
    store.add_documents([page(1)])
    for hybrid in (
        HybridRetriever(vectorstore=store),
        HybridRetriever(retriever=store.as_retriever()),
        HybridRetriever(vectorstore=store, documents=[page(1)]),
    ):
        with pytest.raises(InvalidParameterError, match="filter"):
            hybrid.invoke("otters", filter={"tenant": "red"})


def test_scores_are_those_of_an_index_of_the_documents_alone():
    found = asked(made(filter={"tenant": "red"}))
    pieces = [
        one
        for one in UNITS
        if one.metadata.get("tenant") == "red" and "doc_ids" not in one.metadata
    ]
    alone = asked(MaxPRetriever(documents=pieces, embedding=HashEmbeddings(), k=30))
    assert [one.metadata["score"] for one in found] == [one.metadata["score"] for one in alone]


def test_what_cannot_be_filtered_is_refused():
    store = InMemoryVectorStore(HashEmbeddings())
    for wanted in ({"tenant": "red"}, lambda _: True):
        with pytest.raises(InvalidParameterError, match="search_kwargs"):
            MaxPRetriever(vectorstore=store, filter=wanted)
        with pytest.raises(InvalidParameterError, match="search_kwargs"):
            MaxPRetriever(vectorstore=store).invoke("otters", filters=wanted)
    with pytest.raises(InvalidParameterError, match="filter"):
        made(filter=3)
    with pytest.raises(InvalidParameterError, match="returned a str"):
        made().invoke("otters", filter=lambda _: "yes")
