"""MaxPRetriever over documents and over stores of every temper."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import ConfigurableField
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from pydantic import ValidationError

from langchain_longrag import LongUnitTransformer, MaxPRetriever
from longrag.errors import (
    EmbeddingError,
    InvalidDocumentError,
    InvalidParameterError,
    StoreError,
)
from longrag.models.tokens import count_tokens
from tests.fakes import Door
from tests.langchain_longrag.conftest import (
    FilterStore,
    HashEmbeddings,
    ListStore,
    chunk,
    cosine,
    list_store,
    memory_store,
    where,
)

QUERY = "old harbour"


def greedy(copies: int = 300, others: int = 9) -> list[Document]:
    """Return a store in which one unit holds hundreds of the best, near-identical chunks."""
    return [
        *(chunk("greedy", n, f"old harbour copy{n}", start_index=n * 100) for n in range(copies)),
        *(
            chunk(f"unit {n}", 0, "harbour " + " ".join(f"filler{n}x{i}" for i in range(n + 3)))
            for n in range(others)
        ),
    ]


def oracle(chunks: list[Document], query: str, embedding: HashEmbeddings) -> dict[str, float]:
    """Score every unit by its best chunk, one chunk at a time."""
    best: dict[str, float] = {}
    for document in chunks:
        score = cosine(embedding.vector(query), embedding.vector(document.page_content))
        unit = document.metadata["unit_id"]
        best[unit] = max(best.get(unit, -math.inf), score)
    return best


def assert_ranked(found: list[Document], best: dict[str, float], k: int) -> None:
    """Compare with the oracle; units whose scores are equal may change places."""
    ids = [document.metadata["unit_id"] for document in found]
    assert len(ids) == len(set(ids)) == min(k, len(best))
    wanted = sorted(best.values(), reverse=True)[: len(ids)]
    assert [best[i] for i in ids] == pytest.approx(wanted, abs=1e-5)
    assert [d.metadata["score"] for d in found] == pytest.approx(wanted, abs=1e-5)


WORDS = ["old", "harbour", "boat", "town", "tide", "crane"]


@st.composite
def stores(draw: st.DrawFn) -> list[Document]:
    texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
    sizes = draw(st.lists(st.integers(1, 25), min_size=1, max_size=8))
    return [chunk(f"u{u}", c, draw(texts)) for u, size in enumerate(sizes) for c in range(size)]


SOURCES: dict[str, Callable[[list[Document]], dict[str, Any]]] = {
    "documents": lambda chunks: {"documents": chunks, "embedding": HashEmbeddings()},
    "InMemoryVectorStore": lambda chunks: {"vectorstore": memory_store(chunks, HashEmbeddings())},
    "a store without filters": lambda chunks: {"vectorstore": list_store(chunks, HashEmbeddings())},
    "a store with a unit_filter": lambda chunks: {
        "vectorstore": filter_store(chunks),
        "unit_filter": where,
    },
}


def filter_store(chunks: list[Document]) -> FilterStore:
    store = FilterStore(HashEmbeddings())
    store.add_documents(chunks)
    return store


@pytest.mark.parametrize("source", SOURCES)
@settings(max_examples=25, deadline=None)
@given(chunks=stores(), k=st.integers(1, 10))
def test_returns_the_best_distinct_units_on_every_kind_of_store(source, chunks, k):
    retriever = MaxPRetriever(**SOURCES[source](chunks), k=k)
    assert_ranked(retriever.invoke(QUERY), oracle(chunks, QUERY, HashEmbeddings()), k)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("k", [1, 4, 10, 99])
async def test_hundreds_of_near_identical_chunks_take_one_place(source, k):
    chunks = greedy()
    retriever = MaxPRetriever(**SOURCES[source](chunks), k=k)
    found = retriever.invoke(QUERY)
    assert_ranked(found, oracle(chunks, QUERY, HashEmbeddings()), k)
    assert found[0].metadata["unit_id"] == "greedy"
    assert await retriever.ainvoke(QUERY) == found


@pytest.mark.parametrize(
    ("source", "exact"),
    [
        ("documents", True),
        ("InMemoryVectorStore", True),
        ("a store without filters", False),
        ("a store with a unit_filter", False),
    ],
)
def test_only_what_is_known_to_rank_exactly_is_called_exact(source, exact):
    found = MaxPRetriever(**SOURCES[source](greedy())).invoke(QUERY)
    assert {d.metadata["exact"] for d in found} == {exact}


def test_a_memory_store_is_asked_by_vector_and_the_query_embedded_once(embedding):
    store = memory_store(greedy(), embedding)
    found = MaxPRetriever(vectorstore=store, k=8).invoke(QUERY)
    assert len(found) == 8
    assert embedding.calls["embed_query"] == 1


def test_a_store_without_filters_is_asked_for_twice_as_many_chunks_each_time():
    store = list_store(greedy(100), HashEmbeddings())
    MaxPRetriever(vectorstore=store, k=3).invoke(QUERY)
    assert store.asked == [12, 24, 48, 96, 192]


def test_a_unit_filter_leaves_out_units_already_seen():
    store = filter_store(greedy(100))
    found = MaxPRetriever(vectorstore=store, k=3, unit_filter=where).invoke(QUERY)
    assert len(found) == 3
    # One search for the greedy unit, one for the others, and one for the chunks of each.
    assert len(store.asked) <= 2 + 3 + 1


def test_a_store_without_scores_ranks_and_has_no_score():
    store = list_store(greedy(20), HashEmbeddings(), scores=False)
    found = MaxPRetriever(vectorstore=store, k=4).invoke(QUERY)
    assert len(found) == 4
    assert [d.metadata["score"] for d in found] == [None] * 4
    assert store.calls["similarity_search"] > 0


@pytest.mark.parametrize("k", [1, 4, 40])
def test_a_store_that_caps_its_answers_ends_the_search(k):
    store = list_store(greedy(50), HashEmbeddings(), most=10)
    found = MaxPRetriever(vectorstore=store, k=k).invoke(QUERY)
    assert [d.metadata["unit_id"] for d in found] == ["greedy"]
    assert found[0].metadata["exact"] is False
    assert len(store.asked) < 20


class BrokenStore(ListStore):
    def _ranked(self, query: str, k: int) -> list[tuple[Document, float]]:
        raise ConnectionError("the store is down")


async def test_what_a_store_raises_is_raised():
    retriever = MaxPRetriever(vectorstore=BrokenStore(HashEmbeddings()))
    with pytest.raises(ConnectionError, match="the store is down"):
        retriever.invoke(QUERY)
    with pytest.raises(ConnectionError, match="the store is down"):
        await retriever.ainvoke(QUERY)


@pytest.mark.parametrize("make", [memory_store, list_store])
async def test_rows_without_the_unit_key_are_refused_with_a_remedy(make):
    store = make([Document(id="7", page_content="a harbour")], HashEmbeddings())
    retriever = MaxPRetriever(vectorstore=store)
    with pytest.raises(StoreError, match=r"document 7 names no unit under 'unit_id'.*unit_key="):
        retriever.invoke(QUERY)
    with pytest.raises(StoreError, match="document 7 names no unit"):
        await retriever.ainvoke(QUERY)


def test_documents_without_the_unit_key_they_were_promised_are_refused(embedding):
    with pytest.raises(StoreError, match="names no unit under 'sauce'"):
        MaxPRetriever(
            documents=[Document(page_content="a", metadata={"source": "s"})],
            embedding=embedding,
            unit_key="sauce",
        )


def test_an_empty_store_and_an_empty_corpus_have_no_units(embedding):
    for made in (memory_store([], embedding), list_store([], embedding)):
        assert MaxPRetriever(vectorstore=made).invoke(QUERY) == []
    assert MaxPRetriever(documents=[], embedding=embedding).invoke(QUERY) == []
    blank = [Document(page_content=" \n"), Document(page_content="")]
    assert MaxPRetriever(documents=blank, embedding=embedding).invoke(QUERY) == []


def test_the_users_filter_holds_in_every_round(embedding):
    chunks = [
        chunk(d.metadata["unit_id"], n, d.page_content, tenant="ab"[n % 2])
        for n, d in enumerate(greedy(300, 20))
    ]
    store = memory_store(chunks, embedding)
    own = {"filter": lambda document: document.metadata["tenant"] == "b"}
    found = MaxPRetriever(vectorstore=store, k=6, search_kwargs=own).invoke(QUERY)
    allowed = [d for d in chunks if d.metadata["tenant"] == "b"]
    assert_ranked(found, oracle(allowed, QUERY, embedding), 6)
    assert found[0].id == "greedy"
    assert len(found[0].page_content.split("\n\n")) == 150


def test_search_kwargs_may_not_name_another_k(embedding):
    store = memory_store(greedy(), embedding)
    with pytest.raises(InvalidParameterError, match="search_kwargs must be without k"):
        MaxPRetriever(vectorstore=store, search_kwargs={"k": 20})


def long_corpus() -> list[Document]:
    return [
        Document(
            id=f"d{n}",
            page_content=" ".join(f"Boat {n} number {i} lies in harbour{n}." for i in range(80)),
            metadata={"title": f"Page {n}", "language": "en"},
        )
        for n in range(6)
    ]


def test_a_docstore_gives_whole_units_with_their_metadata(embedding):
    made = LongUnitTransformer(max_tokens=1500, chunk_size=64).transform_documents(long_corpus())
    units = [d for d in made if "doc_ids" in d.metadata]
    for unit in units:
        unit.metadata["shelf"] = f"shelf of {unit.id}"
    docstore = InMemoryStore()
    docstore.mset([(str(unit.id), unit) for unit in units])
    store = memory_store([d for d in made if "doc_ids" not in d.metadata], embedding)
    found = MaxPRetriever(vectorstore=store, docstore=docstore, k=2).invoke("harbour3")
    by_id = {unit.id: unit for unit in units}
    assert [d.page_content for d in found] == [by_id[d.id].page_content for d in found]
    assert "d3" in found[0].metadata["doc_ids"]
    assert found[0].metadata["shelf"] == f"shelf of {found[0].id}"
    assert {d.metadata["complete"] for d in found} == {True}


def test_units_missing_from_the_docstore_are_put_together(embedding):
    store = memory_store(greedy(5), embedding)
    found = MaxPRetriever(vectorstore=store, docstore=InMemoryStore(), k=1).invoke(QUERY)
    assert found[0].page_content.split("\n\n") == [f"old harbour copy{n}" for n in range(5)]


@pytest.mark.parametrize("source", SOURCES)
def test_a_unit_put_together_holds_each_chunk_once_in_the_order_of_offsets(source):
    texts = [f"sentence{n} about the harbour." for n in range(150)]
    order = sorted(range(150), key=lambda n: (n * 37) % 150)
    chunks = [chunk("book", n, texts[n], start_index=n * 50) for n in order]
    found = MaxPRetriever(**SOURCES[source](chunks)).invoke("sentence7 harbour")
    (book,) = found
    if source == "a store without filters":
        # It gives the chunks that were found and says so.
        assert book.metadata["complete"] is False
        held = book.page_content.split("\n\n")
        assert held == [text for text in texts if text in held]
        assert "sentence7 about the harbour." in held
    else:
        assert book.page_content == "\n\n".join(texts)
        assert book.metadata["complete"] is True


@pytest.mark.parametrize("source", SOURCES)
def test_chunks_without_offsets_are_all_kept(source):
    texts = ["old harbour first", "old harbour second and longer", "old harbour", "harbour third"]
    chunks = [chunk("book", n, text) for n, text in enumerate(texts)]
    (book,) = MaxPRetriever(**SOURCES[source](chunks)).invoke(QUERY)
    assert sorted(book.page_content.split("\n\n")) == sorted(texts)


def test_documents_without_offsets_keep_the_order_they_are_given_in(embedding):
    texts = [f"part {n} of the harbour" + "." * (20 - n) for n in range(20)]
    documents = [Document(page_content=t, metadata={"source": "a.txt"}) for t in texts]
    retriever = MaxPRetriever(documents=documents, embedding=embedding, unit_key="source")
    assert retriever.invoke(QUERY)[0].page_content == "\n\n".join(texts)


@pytest.mark.parametrize(
    "source", ["documents", "InMemoryVectorStore", "a store with a unit_filter"]
)
def test_every_unit_of_a_store_is_put_together_whole(source):
    chunks = [
        chunk(f"u{u}", c, f"part{c} of harbour{u}", start_index=c * 30)
        for u in range(5)
        for c in range(90)
    ]
    found = MaxPRetriever(**SOURCES[source](chunks), k=5).invoke("part7 harbour3")
    assert {d.id for d in found} == {f"u{u}" for u in range(5)}
    for document in found:
        own = [d.page_content for d in chunks if d.metadata["unit_id"] == document.id]
        assert document.page_content == "\n\n".join(own)
        assert document.metadata["complete"] is True


@pytest.mark.parametrize("source", list(SOURCES)[1:])
def test_a_chunk_that_is_replaced_in_the_store_is_seen(source):
    made = SOURCES[source]([chunk("u", 0, "the old harbour")])
    retriever = MaxPRetriever(**made)
    assert retriever.invoke(QUERY)[0].page_content == "the old harbour"
    getattr(made["vectorstore"], "rows", []).clear()
    made["vectorstore"].add_documents([chunk("u", 0, "the new harbour", year=2001)])
    assert retriever.invoke(QUERY)[0].page_content == "the new harbour"
    assert retriever.invoke(QUERY)[0].metadata["year"] == 2001


def test_overlapping_chunks_with_offsets_are_written_once(embedding):
    text = "The harbour is old and deep, and the tide is high in spring."
    chunks = [
        chunk("u", n, text[start : start + 20], start_index=start)
        for n, start in enumerate(range(0, len(text), 12))
    ]
    (unit,) = MaxPRetriever(vectorstore=memory_store(chunks, embedding)).invoke("harbour")
    assert unit.page_content == text


@pytest.mark.parametrize("make", [memory_store, list_store])
async def test_an_existing_store_works_by_naming_its_key(make, embedding):
    rows = [
        Document(
            page_content=f"page {p} of harbour book {b}", metadata={"source": f"{b}.pdf", "page": p}
        )
        for b in range(5)
        for p in range(30)
    ]
    for n, row in enumerate(rows):
        row.id = str(n)
    store = make(rows, embedding)
    plain = store.as_retriever(search_kwargs={"k": 4}).invoke("harbour book 3")
    retriever = MaxPRetriever(vectorstore=store, unit_key="source", k=4)
    found = retriever.invoke("harbour book 3")
    assert plain[0].metadata["source"] == found[0].metadata["source"] == "3.pdf"
    assert len({d.metadata["source"] for d in found}) == 4
    assert found[0].metadata["doc_ids"] == ["3.pdf"]
    assert "page" not in found[0].metadata
    assert await retriever.ainvoke("harbour book 3") == found


def test_the_unit_key_keeps_its_value(embedding):
    rows = [chunk("-", n, f"old harbour {n % 3}", year=1990 + n % 3) for n in range(9)]
    for source in (
        {"vectorstore": memory_store(rows, embedding)},
        {"documents": rows, "embedding": embedding},
    ):
        retriever = MaxPRetriever(**source, unit_key="year")
        found = retriever.invoke(QUERY)
        assert sorted(d.metadata["year"] for d in found) == [1990, 1991, 1992]
        assert sorted(d.id for d in found) == ["1990", "1991", "1992"]
    shared = MaxPRetriever(index=retriever.index, embedding=embedding, unit_key="year")
    assert sorted(d.metadata["year"] for d in shared.invoke(QUERY)) == ["1990", "1991", "1992"]


def test_of_two_equal_texts_the_one_that_matched_is_the_best_chunk(embedding):
    corpus = [
        Document(id=n, page_content="They are old.", metadata={"title": n, "links": ["alpha"]})
        for n in ("alpha", "beta")
    ]
    (found,) = MaxPRetriever(documents=corpus, embedding=embedding).invoke("beta")
    assert found.page_content == "alpha\n\nThey are old.\n\nbeta\n\nThey are old."
    best = found.metadata["best_chunk"]
    assert (best["doc_id"], best["start"]) == ("beta", found.page_content.rindex("They"))


def test_the_best_chunk_stands_where_it_says_in_the_text(embedding):
    made = LongUnitTransformer(max_tokens=1500, chunk_size=64).transform_documents(long_corpus())
    chunks = [d for d in made if "doc_ids" not in d.metadata]
    for source in (
        {"documents": made, "embedding": embedding},
        {"vectorstore": memory_store(chunks, embedding)},
    ):
        for number in range(6):
            found = MaxPRetriever(**source, k=2).invoke(f"harbour{number}")
            best = found[0].metadata["best_chunk"]
            assert best["doc_id"] == f"d{number}"
            assert found[0].page_content[best["start"] : best["end"]] == best["text"]
            original = long_corpus()[number].page_content
            assert original[best["doc_start"] : best["doc_end"]] == best["text"]


def test_a_plain_corpus_is_grouped_with_the_defaults(embedding):
    corpus = [
        Document(id="a.md", page_content="# A\n\nSee [B](b.md)."),
        Document(id="b.md", page_content="# B\n\nAll about harbours."),
        Document(id="c.md", page_content="# C\n\nAll about trains."),
    ]
    retriever = MaxPRetriever(documents=corpus, embedding=embedding, k=1)
    assert retriever.invoke("harbours")[0].metadata["doc_ids"] == ["a.md", "b.md"]


def test_results_do_not_depend_on_the_order_in_which_documents_arrive(embedding):
    corpus = [
        Document(id=f"{n}", page_content=f"Old harbour {n % 3}. " * 3, metadata={"n": n})
        for n in range(9)
    ]
    one = MaxPRetriever(documents=corpus, embedding=embedding, k=9).invoke(QUERY)
    other = MaxPRetriever(documents=corpus[::-1], embedding=embedding, k=9).invoke(QUERY)
    assert one == other
    made = LongUnitTransformer(max_tokens=8, chunk_size=4).transform_documents(corpus)
    one = MaxPRetriever(documents=made, embedding=embedding, k=9).invoke(QUERY)
    other = MaxPRetriever(documents=made[::-1], embedding=embedding, k=9).invoke(QUERY)
    assert one == other


@pytest.mark.parametrize("source", SOURCES)
async def test_k_per_call_is_the_same_sync_and_async(source):
    retriever = MaxPRetriever(**SOURCES[source](greedy(40)))
    found = retriever.invoke(QUERY, k=2)
    assert len(found) == 2
    assert await retriever.ainvoke(QUERY, k=2) == found
    assert found == retriever.invoke(QUERY)[:2]


@pytest.mark.parametrize("k", [0, -1, True, 2.0, "3"])
async def test_k_must_be_a_positive_integer(k, embedding):
    documents = [chunk("u", 0, "harbour")]
    with pytest.raises(InvalidParameterError, match="k must be an integer of at least 1"):
        MaxPRetriever(documents=documents, embedding=embedding, k=k)
    for made in (
        MaxPRetriever(documents=documents, embedding=embedding),
        MaxPRetriever(vectorstore=memory_store(documents, embedding)),
    ):
        with pytest.raises(InvalidParameterError, match="k must be an integer of at least 1"):
            made.invoke(QUERY, k=k)
        with pytest.raises(InvalidParameterError, match="k must be an integer of at least 1"):
            await made.ainvoke(QUERY, k=k)


def test_k_can_be_configured_without_embedding_the_documents_again(embedding):
    retriever = MaxPRetriever(documents=greedy(30), embedding=embedding, k=4)
    plain = retriever.invoke(QUERY)
    configurable = retriever.configurable_fields(k=ConfigurableField(id="k"))
    found = configurable.invoke(QUERY, config={"configurable": {"k": 2}})
    assert found == plain[:2]
    assert len(configurable.invoke(QUERY)) == 4
    assert configurable.with_config(configurable={"k": 6}).batch([QUERY, "boat"])[0][:4] == plain
    assert embedding.calls["embed_documents"] == 1


def test_an_index_can_be_shared(embedding):
    first = MaxPRetriever(documents=greedy(30), embedding=embedding, k=3)
    second = MaxPRetriever(index=first.index, embedding=embedding, k=3)
    assert [d.page_content for d in second.invoke(QUERY)] == [
        d.page_content for d in first.invoke(QUERY)
    ]
    assert embedding.calls["embed_documents"] == 1


async def test_batches_give_what_single_calls_give(embedding):
    queries = [f"harbour filler{n}x0" for n in range(9)]
    for source in SOURCES.values():
        retriever = MaxPRetriever(**source(greedy(30)), k=3)
        single = [retriever.invoke(query) for query in queries]
        assert retriever.batch(queries, config={"max_concurrency": 4}) == single
        assert await retriever.abatch(queries) == single


@pytest.mark.parametrize("name", ["top_k", "similarity_top_k", "retriever", "unitkey"])
def test_unknown_settings_are_refused(name, embedding):
    with pytest.raises(ValidationError, match=name):
        MaxPRetriever(documents=greedy(3), embedding=embedding, **{name: 3})


def test_unknown_arguments_of_a_call_are_refused(embedding):
    retriever = MaxPRetriever(documents=greedy(3), embedding=embedding)
    with pytest.raises(TypeError, match="top_k"):
        retriever.invoke(QUERY, top_k=3)


def test_exactly_one_source_is_needed(embedding):
    store = memory_store([], embedding)
    with pytest.raises(
        InvalidParameterError, match="vectorstore must be given when documents are not"
    ):
        MaxPRetriever(embedding=embedding)
    with pytest.raises(
        InvalidParameterError, match="vectorstore must be given when documents are not"
    ):
        MaxPRetriever(documents=[], embedding=embedding, vectorstore=store)
    with pytest.raises(InvalidParameterError, match="embedding must be given with documents"):
        MaxPRetriever(documents=greedy(3))


class BadEmbeddings(HashEmbeddings):
    """Spoils documents or queries in one way."""

    def __init__(self, spoil: Callable[[list[list[float]]], Any], *, queries: bool) -> None:
        super().__init__()
        self.spoil = spoil
        self.queries = queries

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        vectors = super().embed_documents(texts)
        return vectors if self.queries else self.spoil(vectors)

    def embed_query(self, text: str) -> list[float]:
        vector = super().embed_query(text)
        return self.spoil([vector])[0] if self.queries else vector


BAD_VECTORS: dict[str, Callable[[list[list[float]]], Any]] = {
    "not a number": lambda vectors: [[math.nan, *vectors[0][1:]], *vectors[1:]],
    "infinite": lambda vectors: [[math.inf, *vectors[0][1:]], *vectors[1:]],
    "text": lambda vectors: [["a"] * len(v) for v in vectors],
}


@pytest.mark.parametrize("way", BAD_VECTORS)
@pytest.mark.parametrize("queries", [False, True])
def test_unusable_vectors_are_refused(way, queries):
    embedding = BadEmbeddings(BAD_VECTORS[way], queries=queries)
    with pytest.raises(EmbeddingError):
        MaxPRetriever(documents=greedy(3), embedding=embedding).invoke(QUERY)


@pytest.mark.parametrize("way", [*BAD_VECTORS])
def test_an_unusable_query_vector_does_not_reach_a_store(way):
    embedding = BadEmbeddings(BAD_VECTORS[way], queries=True)
    store = memory_store(greedy(3), embedding)
    with pytest.raises(EmbeddingError):
        MaxPRetriever(vectorstore=store).invoke(QUERY)


def test_vectors_that_do_not_fit_the_texts_are_refused():
    ragged = BadEmbeddings(lambda v: [v[0][:-1], *v[1:]], queries=False)
    with pytest.raises(EmbeddingError, match="width"):
        MaxPRetriever(documents=greedy(3), embedding=ragged)
    few = BadEmbeddings(lambda v: v[1:], queries=False)
    with pytest.raises(EmbeddingError, match="11 vectors for 12 texts"):
        MaxPRetriever(documents=greedy(3), embedding=few)
    wide = BadEmbeddings(lambda v: [[*v[0], 1.0]], queries=True)
    with pytest.raises(EmbeddingError, match="65 values each, where 64 are expected"):
        MaxPRetriever(documents=greedy(3), embedding=wide).invoke(QUERY)


@pytest.mark.parametrize("budget", [1, 40, 200, 1000, 100_000])
def test_a_token_budget_bounds_what_is_returned(budget, embedding):
    retriever = MaxPRetriever(
        documents=LongUnitTransformer(max_tokens=1500).transform_documents(long_corpus()),
        embedding=embedding,
        token_budget=budget,
    )
    found = retriever.invoke("harbour3")
    assert sum(count_tokens(d.page_content) for d in found) <= budget
    assert found[0].metadata["best_chunk"]["doc_id"] == "d3"
    if budget == 100_000:
        assert {d.metadata["complete"] for d in found} == {True}
    elif budget < 1000:
        assert [d.metadata["complete"] for d in found] == [False]
        assert found[0].page_content in long_corpus()[3].page_content


@pytest.mark.parametrize("budget", [0, -1, True, 2.5])
def test_a_token_budget_must_be_a_positive_integer(budget, embedding):
    with pytest.raises(InvalidParameterError, match="token_budget must be"):
        MaxPRetriever(documents=greedy(3), embedding=embedding, token_budget=budget)


class Recorder(BaseCallbackHandler):
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.metadata: dict[str, Any] = {}

    def on_retriever_start(self, serialized: Any, query: str, **kwargs: Any) -> None:
        self.events.append(("start", query))
        self.metadata = kwargs["metadata"]

    def on_retriever_end(self, documents: Any, **kwargs: Any) -> None:
        self.events.append(("end", len(documents)))

    def on_retriever_error(self, error: BaseException, **kwargs: Any) -> None:
        self.events.append(("error", type(error)))


async def test_calls_are_traced_with_what_they_ran_on(embedding):
    for source, store in (
        ({"documents": greedy(3), "embedding": embedding}, None),
        ({"vectorstore": memory_store(greedy(3), embedding)}, "InMemoryVectorStore"),
    ):
        retriever = MaxPRetriever(**source, k=2)
        for run in (retriever.invoke, retriever.ainvoke):
            recorder = Recorder()
            answer = run(QUERY, config={"callbacks": [recorder]})
            if asyncio.iscoroutine(answer):
                await answer
            assert recorder.events == [("start", QUERY), ("end", 2)]
            assert recorder.metadata["ls_retriever_name"] == "maxp"
            assert recorder.metadata["ls_embedding_provider"] == "HashEmbeddings"
            assert recorder.metadata.get("ls_vector_store_provider") == store


async def test_an_error_is_traced_too():
    recorder = Recorder()
    retriever = MaxPRetriever(vectorstore=BrokenStore(HashEmbeddings()))
    with pytest.raises(ConnectionError):
        await retriever.ainvoke(QUERY, config={"callbacks": [recorder]})
    assert recorder.events == [("start", QUERY), ("error", ConnectionError)]


class AsyncRecorder(AsyncCallbackHandler):
    def __init__(self) -> None:
        self.queries: list[str] = []

    async def on_retriever_start(self, serialized: Any, query: str, **kwargs: Any) -> None:
        self.queries.append(query)


async def test_async_callbacks_are_awaited(embedding):
    recorder = AsyncRecorder()
    retriever = MaxPRetriever(documents=greedy(3), embedding=embedding)
    await retriever.ainvoke(QUERY, config={"callbacks": [recorder]})
    assert recorder.queries == [QUERY]


class AsyncStore(ListStore):
    """A store whose async methods are its own."""

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        self.calls["asimilarity_search_with_score"] += 1
        return self._ranked(query, k)


async def test_async_calls_use_the_async_methods_of_the_embedding_and_the_store(embedding):
    retriever = MaxPRetriever(documents=greedy(3), embedding=embedding)
    await retriever.ainvoke(QUERY)
    assert (embedding.calls["aembed_query"], embedding.calls["embed_query"]) == (1, 0)
    store = AsyncStore(HashEmbeddings())
    store.add_documents(greedy(3))
    await MaxPRetriever(vectorstore=store).ainvoke(QUERY)
    assert store.calls["asimilarity_search_with_score"] > 0
    assert store.calls["similarity_search_with_score"] == 0


class SlowStore(ListStore):
    """A store without async methods whose searches wait for the event loop."""

    def __init__(self, embedding: Embeddings) -> None:
        super().__init__(embedding)
        self.door = Door()

    def _ranked(self, query: str, k: int) -> list[tuple[Document, float]]:
        self.door.through()
        return super()._ranked(query, k)


async def test_a_store_without_async_methods_does_not_block_the_event_loop():
    store = SlowStore(HashEmbeddings())
    store.add_documents(greedy(3))
    retriever = MaxPRetriever(vectorstore=store, k=2)
    found, _ = await asyncio.gather(retriever.ainvoke(QUERY), store.door.open())
    assert len(found) == 2


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_returned_can_be_changed_without_changing_what_is_stored(source):
    given_documents = greedy(10)
    before = copy.deepcopy(given_documents)
    retriever = MaxPRetriever(**SOURCES[source](given_documents), k=3)
    first = retriever.invoke(QUERY)
    expected = copy.deepcopy(first)
    for document in first:
        document.page_content = "spoilt"
        document.metadata["doc_ids"].append("spoilt")
        document.metadata["members"][0]["title"] = "spoilt"
        document.metadata["best_chunk"]["text"] = "spoilt"
        document.metadata["unit_id"] = "spoilt"
        document.metadata.pop("score")
    assert retriever.invoke(QUERY) == expected
    assert given_documents == before


def test_units_from_a_docstore_can_be_changed_without_changing_the_docstore(embedding):
    made = LongUnitTransformer(max_tokens=1500).transform_documents(long_corpus())
    units = {str(d.id): d for d in made if "doc_ids" in d.metadata}
    docstore = InMemoryStore()
    docstore.mset(list(units.items()))
    before = copy.deepcopy(units)
    store = memory_store([d for d in made if "doc_ids" not in d.metadata], embedding)
    for document in MaxPRetriever(vectorstore=store, docstore=docstore).invoke(QUERY):
        document.metadata["doc_ids"].clear()
        document.metadata["language"] = "spoilt"
    assert units == before


def test_calls_in_several_threads_do_not_mix():
    chunks = [
        chunk(f"u{u}", c, f"topic{u} part{c}", start_index=c * 20)
        for u in range(20)
        for c in range(20)
    ]
    for source in SOURCES.values():
        retriever = MaxPRetriever(**source(chunks), k=1)
        queries = [f"topic{u}" for u in range(20)] * 3
        single = [retriever.invoke(query) for query in queries]
        assert len({d.id for (d,) in single}) > 10
        assert retriever.batch(queries, config={"max_concurrency": 8}) == single


def test_metadata_of_other_shapes_is_carried_along(embedding):
    documents = [
        Document(
            id=f"band {n}",
            page_content=f"Band {n} plays at the harbour.",
            metadata={
                "members": ["Ann", "Bob"],
                "score": "5 stars",
                "title": 7,
                "start_index": None,
            },
        )
        for n in range(3)
    ]
    found = MaxPRetriever(documents=documents, embedding=embedding).invoke("band 2")
    assert "Band 2 plays" in found[0].page_content
    by_id = [d.model_copy(update={"metadata": {**d.metadata, "unit_id": d.id}}) for d in documents]
    found = MaxPRetriever(vectorstore=memory_store(by_id, embedding), k=3).invoke("band 2")
    assert found[0].id == "band 2"
    assert [len(d.metadata["members"]) for d in found] == [1, 1, 1]


class WholeStore(InMemoryVectorStore):
    """A memory store of another class ranks just as exactly."""


def test_a_subclass_of_the_memory_store_filters_as_well():
    store = WholeStore(HashEmbeddings())
    store.add_documents(greedy())
    assert isinstance(store, VectorStore)
    assert len(MaxPRetriever(vectorstore=store, k=10).invoke(QUERY)) == 10


def test_a_filter_given_twice_is_refused_before_rows_can_leak():
    store = filter_store([chunk("u1", 0, "old harbour"), chunk("u2", 0, "old boat")])
    retriever = MaxPRetriever(
        vectorstore=store, k=2, unit_filter=where, search_kwargs={"where": {"tenant": "a"}}
    )
    with pytest.raises(InvalidParameterError, match="Put both conditions into what unit_filter"):
        retriever.invoke(QUERY)


def test_what_the_callers_own_filter_leaves_out_need_not_name_a_unit(embedding):
    chunks = [chunk("u1", n, f"old harbour {n}") for n in range(10)]
    chunks += [chunk("u2", 0, "tide"), Document("old harbour", metadata={"kind": "note"})]
    store = memory_store(chunks, embedding)
    own = {"filter": lambda document: document.metadata.get("kind") != "note"}
    found = MaxPRetriever(vectorstore=store, k=2, search_kwargs=own).invoke(QUERY)
    assert [d.id for d in found] == ["u1", "u2"]
    assert all(d.metadata["complete"] for d in found)


@pytest.mark.parametrize("name", [str, int, float])
async def test_a_unit_filter_is_given_the_values_the_store_holds(name):
    chunks = [
        chunk(name(t), p, f"old harbour {t} part {p}", start_index=p * 30)
        for t in range(3)
        for p in range(20)
    ]
    retriever = MaxPRetriever(vectorstore=filter_store(chunks), k=3, unit_filter=where)
    found = retriever.invoke("old harbour 1 part 3")
    assert sorted(d.id for d in found) == [str(name(t)) for t in range(3)]
    for document in found:
        own = [d.page_content for d in chunks if str(d.metadata["unit_id"]) == document.id]
        assert document.page_content == "\n\n".join(own)
        assert document.metadata["complete"] is True
    assert await retriever.ainvoke("old harbour 1 part 3") == found


@pytest.mark.parametrize("source", SOURCES)
def test_units_whose_ids_would_be_one_are_refused(source):
    chunks = [chunk("1", n, f"old harbour {n}") for n in range(30)]
    chunks += [Document("harbour", id="other", metadata={"unit_id": 1}), chunk("2", 0, "old tide")]
    with pytest.raises(StoreError, match="two units have the same id '1'"):
        MaxPRetriever(**SOURCES[source](chunks), k=3).invoke(QUERY)


@pytest.mark.parametrize("offset", [int, float, np.int64, np.float32])
@pytest.mark.parametrize("query", ["alpha begins", "beta follows", "gamma ends"])
def test_offsets_of_any_numeric_type_order_a_unit(offset, query, embedding):
    texts = ["Alpha begins.", "Beta follows.", "Gamma ends."]
    chunks = [chunk("u", n, text, start_index=offset(n * 20)) for n, text in enumerate(texts)]
    (found,) = MaxPRetriever(vectorstore=memory_store(chunks, embedding)).invoke(query)
    assert found.page_content == "\n\n".join(texts)
    best = found.metadata["best_chunk"]
    assert type(best["doc_start"]) is int
    assert best["doc_start"] == 20 * texts.index(best["text"])


@pytest.mark.parametrize("offset", [None, True, "7", 0.5, math.nan, math.inf])
def test_what_is_no_offset_is_no_order(offset, embedding):
    texts = ["Gamma ends.", "Alpha begins.", "Beta follows."]
    documents = [chunk("u", n, text, start_index=offset) for n, text in enumerate(texts)]
    (found,) = MaxPRetriever(documents=documents, embedding=embedding).invoke("beta follows")
    assert found.page_content == "\n\n".join(texts)


@pytest.mark.parametrize("units", [("a", "a"), ("a", "b")])
@pytest.mark.parametrize("texts", [("Old harbour.", "New harbour."), ("Same.", "Same.")])
def test_two_chunks_with_one_id_are_refused(units, texts, embedding):
    documents = [
        Document(text, id="one", metadata={"unit_id": unit})
        for text, unit in zip(texts, units, strict=True)
    ]
    with pytest.raises(InvalidDocumentError, match="two chunks have the same id 'one'"):
        MaxPRetriever(documents=documents, embedding=embedding)


def test_equal_texts_without_an_id_are_all_kept(embedding):
    texts = ["Row.", "Head.", "Row.", "Row.", "Tail."]
    documents = [Document(text, metadata={"unit_id": "table"}) for text in texts]
    retriever = MaxPRetriever(documents=documents, embedding=embedding)
    assert retriever.invoke("head")[0].page_content == "\n\n".join(texts)
    assert len({chunk.id for chunk in retriever.index.chunks}) == 5
    again = MaxPRetriever(documents=documents, embedding=embedding)
    assert [chunk.id for chunk in again.index.chunks] == [c.id for c in retriever.index.chunks]


@pytest.mark.parametrize("source", SOURCES)
def test_nested_metadata_of_a_result_is_a_copy(source):
    chunks = [chunk("u", n, f"old harbour {n}", tags=["sea"], at={"lat": [1]}) for n in range(3)]
    retriever = MaxPRetriever(**SOURCES[source](chunks))
    for _ in range(2):
        (found,) = retriever.invoke(QUERY)
        assert (found.metadata["tags"], found.metadata["at"]) == (["sea"], {"lat": [1]})
        found.metadata["tags"].append("spoilt")
        found.metadata["at"]["lat"].clear()
    assert all(d.metadata["tags"] == ["sea"] for d in chunks)
