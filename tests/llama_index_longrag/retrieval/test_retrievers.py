"""MaxP over nodes and over any vector store: exactly k distinct whole units, best first."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core import (
    Document,
    Settings,
    StorageContext,
    SummaryIndex,
    VectorStoreIndex,
)
from llama_index.core.callbacks import CallbackManager
from llama_index.core.node_parser import HierarchicalNodeParser, SentenceSplitter, get_leaf_nodes
from llama_index.core.schema import (
    IndexNode,
    MetadataMode,
    NodeRelationship,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    FilterCondition,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from llama_index.vector_stores.faiss import FaissVectorStore

from llama_index_longrag import LongUnitNodeParser, MaxPRetriever
from longrag.errors import EmbeddingError, InvalidParameterError, StoreError
from tests.fakes import hash_vector
from tests.llama_index_longrag.conftest import (
    WIDTH,
    HashEmbedding,
    chunks_of,
    tokenizer,
    town,
    units_of,
)


def parsed(documents, **given_settings):
    chosen = {"max_tokens": 300, "chunk_size": 40, "tokenizer": tokenizer, **given_settings}
    return LongUnitNodeParser(**chosen).get_nodes_from_documents(documents)


def chunk(number, unit, vector=None, **metadata) -> TextNode:
    return TextNode(
        id_=f"c{number}",
        text=f"text {number} of {unit}",
        embedding=None if vector is None else [float(x) for x in vector],
        start_char_idx=number * 100,
        metadata={"unit_id": unit, **metadata},
    )


class AsyncOnly(SimpleVectorStore):
    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        raise AssertionError("the sync query of an async retrieval")

    async def aquery(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        await asyncio.sleep(0)
        return SimpleVectorStore.query(self, query, **kwargs)


class Watched(SimpleVectorStore):
    """Keeps every query; ``answer`` may change what is asked or given."""

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        self.__dict__.setdefault("queries", []).append(query)
        return self.answer(query)

    def answer(self, query: VectorStoreQuery) -> VectorStoreQueryResult:
        return SimpleVectorStore.query(self, query)


class IgnoresFilters(Watched):
    def answer(self, query):
        return super().answer(
            VectorStoreQuery(
                query_embedding=query.query_embedding, similarity_top_k=query.similarity_top_k
            )
        )


class Capped(Watched):
    def answer(self, query):
        query.similarity_top_k = min(query.similarity_top_k, 3)
        return super().answer(query)


def store_index(nodes, store=None, embed_model=None) -> VectorStoreIndex:
    context = StorageContext.from_defaults(vector_store=store or SimpleVectorStore())
    return VectorStoreIndex(
        nodes, storage_context=context, embed_model=embed_model or HashEmbedding()
    )


def flat_faiss(metric=faiss.IndexFlatIP, width=WIDTH) -> FaissVectorStore:
    return FaissVectorStore(faiss_index=metric(width))


def unit_length(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def oracle(vectors, units, query, k):
    best: dict[str, float] = {}
    for vector, unit in zip(vectors, units, strict=True):
        best[unit] = max(best.get(unit, -2.0), float(vector @ query))
    return sorted(best, key=lambda unit: -best[unit])[:k]


SOURCES = {
    "nodes": lambda nodes: {"nodes": nodes, "embed_model": HashEmbedding()},
    "simple": lambda nodes: {"index": store_index(nodes)},
    "flat faiss": lambda nodes: {"index": store_index(nodes, flat_faiss())},
    "flat l2": lambda nodes: {"index": store_index(nodes, flat_faiss(faiss.IndexFlatL2))},
    "ignores filters": lambda nodes: {"index": store_index(nodes, IgnoresFilters())},
}


@pytest.mark.parametrize("source", SOURCES)
@given(
    labels=st.lists(st.integers(0, 9), min_size=1, max_size=60),
    k=st.integers(1, 12),
    seed=st.integers(0, 9999),
)
@settings(max_examples=12, deadline=None)
def test_exactly_the_k_best_distinct_units_come_back(source, labels, k, seed):
    rng = np.random.default_rng(seed)
    vectors = unit_length(rng.standard_normal((len(labels), WIDTH)))
    (query,) = unit_length(rng.standard_normal((1, WIDTH)))
    units = [f"u{label}" for label in labels]
    nodes = [chunk(i, u, v) for i, (u, v) in enumerate(zip(units, vectors, strict=True))]
    retriever = MaxPRetriever(**SOURCES[source](nodes), similarity_top_k=k)
    found = retriever.retrieve(QueryBundle("q", embedding=query.tolist()))
    assert [n.node.node_id for n in found] == oracle(vectors, units, query, k)
    assert len(found) == min(k, len(set(units)))
    assert {n.node.metadata["exact"] for n in found} == {source != "ignores filters"}


def hoard(seed=0):
    """Four hundred near-copies of the question in one unit, and seven units with one chunk each."""
    rng = np.random.default_rng(seed)
    (query,) = unit_length(rng.standard_normal((1, WIDTH)))
    near = unit_length(query + 0.001 * rng.standard_normal((400, WIDTH)))
    far = unit_length(rng.standard_normal((7, WIDTH)))
    nodes = [chunk(i, "hoard", v) for i, v in enumerate(near)]
    nodes += [chunk(400 + i, f"u{i}", v) for i, v in enumerate(far)]
    order = sorted(range(7), key=lambda i: -float(far[i] @ query))
    return nodes, QueryBundle("q", embedding=query.tolist()), [f"u{i}" for i in order]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("k", [2, 8])
def test_a_unit_with_four_hundred_better_chunks_hides_no_other(source, k):
    nodes, query, others = hoard()
    retriever = MaxPRetriever(**SOURCES[source](nodes), similarity_top_k=k)
    found = retriever.retrieve(query)
    assert [n.node.node_id for n in found] == ["hoard", *others][:k]
    assert [n.node.node_id for n in asyncio.run(retriever.aretrieve(query))] == [
        n.node.node_id for n in found
    ]


def test_a_store_that_filters_is_asked_twice_for_it():
    nodes, query, _ = hoard()
    store = Watched()
    MaxPRetriever(index=store_index(nodes, store), similarity_top_k=8).retrieve(query)
    assert [q.similarity_top_k for q in store.queries[:2]] == [32, 28]
    # The others put the units together, one search a unit of at most 64 chunks.
    assert {q.filters.filters[0].operator for q in store.queries[2:]} == {"=="}
    (exclusion,) = store.queries[1].filters.filters
    assert (exclusion.key, exclusion.operator, exclusion.value) == ("unit_id", "nin", ["hoard"])


def test_nodes_inserted_twice_into_faiss_hide_no_unit():
    nodes, query, others = hoard()
    index = store_index(nodes[:40] + nodes[400:], flat_faiss())
    index.insert_nodes(nodes[:40])
    found = MaxPRetriever(index=index, similarity_top_k=8).retrieve(query)
    assert [n.node.node_id for n in found] == ["hoard", *others]


def test_a_store_that_gives_fewer_rows_than_asked_is_asked_on_and_marked():
    nodes, query, others = hoard()
    retriever = MaxPRetriever(index=store_index(nodes, Capped()), similarity_top_k=4)
    found = retriever.retrieve(query)
    assert [n.node.node_id for n in found] == ["hoard", *others[:3]]
    assert not any(n.node.metadata["exact"] for n in found)


def test_only_exhaustive_stores_are_marked_exact():
    nodes, query, _ = hoard()
    graph = FaissVectorStore(faiss_index=faiss.IndexHNSWFlat(WIDTH, 8))
    for store, exact in ((flat_faiss(), True), (SimpleVectorStore(), True), (graph, False)):
        found = MaxPRetriever(index=store_index(nodes, store)).retrieve(query)
        assert {n.node.metadata["exact"] for n in found} == {exact}


@pytest.fixture
def nodes(documents):
    return parsed(documents)


QUESTION = "Delft has gate number 3 of Delft, Delft."


def test_units_come_back_whole_with_their_documents_and_best_chunk(nodes, documents):
    retriever = MaxPRetriever(nodes=nodes, embed_model=HashEmbedding(), similarity_top_k=2)
    best, second = retriever.retrieve(QUESTION)
    (unit,) = [unit for unit in units_of(nodes) if unit.node_id == best.node.node_id]
    assert best.node.text == unit.text
    assert best.node.metadata["doc_ids"] == ["delft.md", "leiden.md", "utrecht.md"]
    chosen = best.node.metadata["best_chunk"]
    assert chosen["doc_id"] == "delft.md"
    assert unit.text[chosen["start"] : chosen["end"]] == chosen["text"]
    text = {d.node_id: d.text for d in documents}["delft.md"]
    assert text[chosen["doc_start"] : chosen["doc_end"]] == chosen["text"]
    assert best.node.metadata["country"] == "NL"
    assert best.node.metadata["exact"] is best.node.metadata["complete"] is True
    assert best.score > second.score
    assert isinstance(best.node, TextNode)


def test_scores_are_cosines_and_the_query_model_is_asked_once(nodes):
    model = HashEmbedding()
    retriever = MaxPRetriever(nodes=nodes, embed_model=model, similarity_top_k=10)
    asked = model.asked.copy()
    assert asked == [("text", chunk.get_content("embed")) for chunk in chunks_of(nodes)]
    found = retriever.retrieve(QUESTION)
    assert model.asked[len(asked) :] == [("query", QUESTION)]
    (query,) = unit_length(hash_vector(QUESTION, WIDTH)[None])
    for result in found:
        own = [c for c in chunks_of(nodes) if c.metadata["unit_id"] == result.node.node_id]
        vectors = unit_length(np.stack([hash_vector(c.get_content("embed"), WIDTH) for c in own]))
        assert result.score == pytest.approx(float((vectors @ query).max()), abs=1e-5)


def test_an_embedding_that_is_given_is_used_and_nothing_is_embedded(nodes):
    vector = hash_vector(QUESTION, WIDTH).tolist()
    for source in ({"nodes": nodes}, {"index": store_index(get_leaf_nodes(nodes))}):
        model = HashEmbedding()
        retriever = MaxPRetriever(**source, embed_model=model)
        model.asked.clear()
        given_vector = retriever.retrieve(QueryBundle("other words", embedding=vector))
        assert model.asked == []
        as_array = QueryBundle("other words", embedding=np.asarray(vector))
        assert retriever.retrieve(as_array) == given_vector
        assert retriever.retrieve(QUESTION) == given_vector


def test_several_texts_are_embedded_to_their_mean(nodes):
    texts = ["The gate of Delft", "Gouda was built"]
    mean = np.mean([hash_vector(text, WIDTH) for text in texts], axis=0).tolist()
    for source in ({"nodes": nodes}, {"index": store_index(get_leaf_nodes(nodes))}):
        retriever = MaxPRetriever(**source, embed_model=HashEmbedding())
        by_texts = retriever.retrieve(QueryBundle("q", custom_embedding_strs=texts))
        by_mean = retriever.retrieve(QueryBundle("q", embedding=mean))
        assert by_texts == by_mean


def test_chunks_that_have_an_embedding_keep_it(nodes):
    leaves = chunks_of(nodes)
    for leaf in leaves[::2]:
        leaf.embedding = hash_vector(leaf.get_content("embed"), WIDTH).tolist()
    model = HashEmbedding()
    some = MaxPRetriever(nodes=nodes, embed_model=model)
    assert [text for _, text in model.asked] == [c.get_content("embed") for c in leaves[1::2]]
    for leaf in leaves:
        leaf.embedding = None
    assert some.retrieve(QUESTION) == MaxPRetriever(
        nodes=nodes, embed_model=HashEmbedding()
    ).retrieve(QUESTION)


def test_the_number_of_units_can_be_set_later(nodes):
    retriever = MaxPRetriever(nodes=nodes, embed_model=HashEmbedding())
    assert retriever.similarity_top_k == 4
    assert len(retriever.retrieve(QUESTION)) == 3
    retriever.similarity_top_k = 1
    assert len(retriever.retrieve(QUESTION)) == 1
    with pytest.raises(InvalidParameterError, match="similarity_top_k must be an integer"):
        retriever.similarity_top_k = 0
    assert retriever.similarity_top_k == 1


@pytest.mark.parametrize("k", [0, -1, True, 2.0, "2", None])
def test_a_k_out_of_range_is_refused(k):
    with pytest.raises(InvalidParameterError, match="similarity_top_k must be an integer of at"):
        MaxPRetriever(nodes=[], embed_model=HashEmbedding(), similarity_top_k=k)


@pytest.mark.parametrize("budget", [0, -1, True, 10.0])
def test_a_budget_out_of_range_is_refused(budget):
    with pytest.raises(InvalidParameterError, match="token_budget must be an integer of at least"):
        MaxPRetriever(nodes=[], embed_model=HashEmbedding(), token_budget=budget)


def test_exactly_one_source_is_asked_for(nodes):
    with pytest.raises(InvalidParameterError, match="index must be given when nodes is not"):
        MaxPRetriever(embed_model=HashEmbedding())
    with pytest.raises(InvalidParameterError, match="index must be given when nodes is not"):
        MaxPRetriever(index=store_index(nodes), nodes=nodes)


# Whole units from stores


def test_units_in_the_docstore_come_back_whole_and_with_their_metadata(nodes):
    for store in (SimpleVectorStore(), flat_faiss()):
        index = store_index(get_leaf_nodes(nodes), store)
        index.docstore.add_documents(units_of(nodes))
        in_memory = MaxPRetriever(nodes=nodes, embed_model=HashEmbedding()).retrieve(QUESTION)
        found = MaxPRetriever(index=index).retrieve(QUESTION)
        key = lambda n: n.node.node_id  # noqa: E731
        for stored, held in zip(sorted(found, key=key), sorted(in_memory, key=key), strict=True):
            assert stored.node.text == held.node.text
            own, other = dict(stored.node.metadata), dict(held.node.metadata)
            if isinstance(store, FaissVectorStore):
                # It ranks by inner product here, and may prefer another chunk.
                assert own.pop("best_chunk")["text"] in stored.node.text
                other.pop("best_chunk")
            assert own == other
            assert stored.node.get_content("llm") == held.node.get_content("llm")


def test_units_that_are_nowhere_whole_are_put_together_from_all_their_chunks(nodes):
    found = MaxPRetriever(index=store_index(get_leaf_nodes(nodes))).retrieve(QUESTION)
    whole = {unit.node_id: unit for unit in units_of(nodes)}
    for result in found:
        unit, metadata = whole[result.node.node_id], result.node.metadata
        assert metadata["complete"] is True
        assert metadata["doc_ids"] == unit.metadata["doc_ids"]
        assert metadata["country"] == "NL"
        assert [*result.node.text.split()] == unit.text.split()


def test_without_filters_a_unit_is_what_was_found_of_it_and_says_so(nodes):
    index = store_index(get_leaf_nodes(nodes), flat_faiss())
    found = MaxPRetriever(index=index, similarity_top_k=3).retrieve(QUESTION)
    assert len(found) == 3
    assert not any(n.node.metadata["complete"] for n in found)
    for result in found:
        assert result.node.metadata["best_chunk"]["text"] in result.node.text


def test_chunks_without_offsets_are_all_kept():
    texts = ["old gate first", "old gate second and longer", "old gate", "gate third"]
    leaves = [TextNode(text=t, id_=f"n{i}", metadata={"book": "b"}) for i, t in enumerate(texts)]
    for source in ({"nodes": leaves}, {"index": store_index(leaves)}):
        retriever = MaxPRetriever(**source, embed_model=HashEmbedding(), unit_key="book")
        (book,) = retriever.retrieve("old gate")
        assert book.node.node_id == "b"
        assert sorted(book.node.text.split("\n\n")) == sorted(texts)


def long_documents():
    return [
        Document(
            id_=f"doc{n}",
            text=" ".join(f"Boat {i} lies in the harbour of {name}." for i in range(60)),
            metadata={"file_name": f"{name}.txt"},
        )
        for n, name in enumerate(["Ostend", "Whitby", "Ancona", "Whitstable"])
    ]


@pytest.mark.parametrize("store", [SimpleVectorStore, flat_faiss])
@pytest.mark.parametrize("overlap", [0, 20])
def test_one_line_turns_a_stock_index_into_whole_documents(store, overlap):
    documents = long_documents()
    index = VectorStoreIndex.from_documents(
        documents,
        transformations=[
            SentenceSplitter(chunk_size=60, chunk_overlap=overlap, tokenizer=tokenizer)
        ],
        storage_context=StorageContext.from_defaults(vector_store=store()),
        embed_model=HashEmbedding(),
    )
    stock = index.as_retriever(similarity_top_k=3).retrieve("harbour of Whitby")
    assert {n.node.ref_doc_id for n in stock} == {"doc1"}
    retriever = MaxPRetriever(index=index, similarity_top_k=3, unit_key="ref_doc_id")
    found = retriever.retrieve("harbour of Whitby")
    assert found[0].node.node_id == "doc1"
    assert len({n.node.node_id for n in found}) == 3
    whole = {d.node_id: d for d in documents}
    for result in found:
        document = whole[result.node.node_id]
        assert result.node.text.split() == document.text.split()
        assert result.node.metadata["complete"] is True
        assert result.node.metadata["doc_ids"] == [document.node_id]
        assert result.node.metadata["file_name"] == document.metadata["file_name"]
        if overlap:
            assert result.node.text == document.text


def test_chunks_whose_offsets_only_seem_to_overlap_lose_nothing():
    texts = ["The gate is old.", "The wall is new.", "The moat is deep."]
    leaves = [
        TextNode(text=text, id_=f"n{i}", metadata={"book": "b"}, start_char_idx=i)
        for i, text in enumerate(texts)
    ]
    for source in ({"nodes": leaves}, {"index": store_index(leaves)}):
        retriever = MaxPRetriever(**source, embed_model=HashEmbedding(), unit_key="book")
        (book,) = retriever.retrieve("old gate")
        assert sorted(book.node.text.split("\n\n")) == sorted(texts)


def test_pieces_of_one_book_grouped_together_stay_apart_in_what_is_put_together():
    splitter = SentenceSplitter(chunk_size=90, chunk_overlap=0, tokenizer=tokenizer)
    pieces = splitter(long_documents()[:1])
    for piece, after in pairwise(pieces):
        piece.metadata["links"] = [after.node_id]
    nodes = parsed(pieces, max_tokens=10_000)
    (unit,) = units_of(nodes)
    for source in (
        {"nodes": nodes},
        {"nodes": get_leaf_nodes(nodes)},
        {"index": store_index(get_leaf_nodes(nodes))},
    ):
        (found,) = MaxPRetriever(**source, embed_model=HashEmbedding()).retrieve("Boat 40")
        assert sorted(found.node.text.split()) == sorted(unit.text.split())
        assert sorted(found.node.metadata["doc_ids"]) == sorted(p.node_id for p in pieces)
        best = found.node.metadata["best_chunk"]
        assert best["doc_id"] in found.node.metadata["doc_ids"]
        assert found.node.text[best["start"] : best["end"]] == best["text"]


def hierarchy(documents):
    parser = HierarchicalNodeParser.from_defaults(
        node_parser_ids=["large", "small"],
        node_parser_map={
            "large": SentenceSplitter(chunk_size=150, chunk_overlap=0, tokenizer=tokenizer),
            "small": SentenceSplitter(chunk_size=40, chunk_overlap=0, tokenizer=tokenizer),
        },
    )
    return parser.get_nodes_from_documents(documents)


def test_the_parents_of_a_hierarchical_parser_are_units():
    made = hierarchy(long_documents())
    parents = {node.node_id: node for node in made if node.child_nodes}
    index = store_index(get_leaf_nodes(made))
    index.docstore.add_documents(list(parents.values()))
    for source in ({"nodes": made}, {"index": index}):
        retriever = MaxPRetriever(**source, embed_model=HashEmbedding(), similarity_top_k=5)
        found = retriever.retrieve("Boat 7 in the harbour of Ancona")
        assert len({n.node.node_id for n in found}) == 5
        for result in found:
            assert result.node.text == parents[result.node.node_id].text
            best = result.node.metadata["best_chunk"]
            assert result.node.text[best["start"] : best["end"]] == best["text"]


def test_the_documents_of_a_hierarchical_parser_are_units_too():
    documents = long_documents()
    made = hierarchy(documents)
    leaves_alone = store_index(get_leaf_nodes(made))
    all_levels = store_index(get_leaf_nodes(made))
    all_levels.docstore.add_documents(made)
    for source in ({"nodes": made}, {"index": leaves_alone}, {"index": all_levels}):
        retriever = MaxPRetriever(
            **source, embed_model=HashEmbedding(), unit_key="ref_doc_id", similarity_top_k=4
        )
        found = {n.node.node_id: n.node.text for n in retriever.retrieve("Boat 7")}
        for document in documents:
            assert found[document.node_id].split() == document.text.split()


# Filters


FILTERS = {
    "and": MetadataFilters(
        filters=[MetadataFilter(key="country", value="NL"), MetadataFilter(key="number", value=3)]
    ),
    "or": MetadataFilters(
        filters=[
            MetadataFilter(key="title", value="Gouda"),
            MetadataFilter(key="title", value="Breda"),
        ],
        condition=FilterCondition.OR,
    ),
    "not": MetadataFilters(
        filters=[MetadataFilter(key="title", value="Delft")], condition=FilterCondition.NOT
    ),
}
EXPECTED = {
    "and": {("gouda.md",)},
    "or": {("gouda.md",), ("breda.md",)},
    "not": {
        ("gouda.md", "zwolle.md"),
        ("breda.md",),
        ("leiden.md", "utrecht.md"),
    },
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_keep_to_chunks_that_pass(name, nodes):
    index = store_index(get_leaf_nodes(nodes))
    index.docstore.add_documents(units_of(nodes))
    for source in ({"nodes": nodes}, {"index": index}):
        retriever = MaxPRetriever(**source, embed_model=HashEmbedding(), filters=FILTERS[name])
        found = retriever.retrieve(QUESTION)
        assert {tuple(n.node.metadata["doc_ids"]) for n in found} == EXPECTED[name]
        best = {n.node.metadata["best_chunk"]["doc_id"] for n in found}
        assert "delft.md" not in best or name != "not"
        assert name != "and" or best == {"gouda.md"}


def test_filters_and_exclusions_reach_the_store_together():
    nodes, query, others = hoard()
    for node in nodes:
        node.metadata["lang"] = "nl" if node.metadata["unit_id"] != others[0] else "fr"
    own = MetadataFilter(key="lang", value="nl")
    store = Watched()
    retriever = MaxPRetriever(
        index=store_index(nodes, store),
        similarity_top_k=8,
        filters=MetadataFilters(filters=[own]),
    )
    assert [n.node.node_id for n in retriever.retrieve(query)] == ["hoard", *others[1:]]
    assert store.queries[0].filters.filters == [own]
    assert [f.key for f in store.queries[1].filters.filters] == ["lang", "unit_id"]


def test_nested_and_alternative_filters_stay_whole_beside_the_exclusion():
    nodes, query, others = hoard()
    for node in nodes:
        node.metadata["lang"] = {"hoard": "nl", others[0]: "fr"}.get(node.metadata["unit_id"], "de")
    either = MetadataFilters(
        filters=[MetadataFilter(key="lang", value="nl"), MetadataFilter(key="lang", value="fr")],
        condition=FilterCondition.OR,
    )

    class Nests(Watched):
        """Takes one level of nesting, which the stock store refuses."""

        def answer(self, query):
            wanted = query.filters
            groups = [f for f in wanted.filters if isinstance(f, MetadataFilters)]
            if not groups:
                return super().answer(query)
            rest = [f for f in wanted.filters if f not in groups]
            keep = [
                id_
                for id_, metadata in self.data.metadata_dict.items()
                if all(any(metadata[f.key] == f.value for f in g.filters) for g in groups)
            ]
            return super().answer(
                VectorStoreQuery(
                    query_embedding=query.query_embedding,
                    similarity_top_k=query.similarity_top_k,
                    node_ids=keep,
                    filters=MetadataFilters(filters=rest) if rest else None,
                )
            )

    for store, count in ((Nests(), 2), (Watched(), 5)):
        retriever = MaxPRetriever(
            index=store_index(nodes, store), similarity_top_k=2, filters=either
        )
        assert [n.node.node_id for n in retriever.retrieve(query)] == ["hoard", others[0]]
        assert len(store.queries) >= count
        assert store.queries[0].filters == either
        assert store.queries[1].filters.filters[0] == either
        nested = MetadataFilters(filters=[either, MetadataFilter(key="lang", value="fr")])
        if isinstance(store, Nests):
            retriever = MaxPRetriever(index=retriever._index, similarity_top_k=2, filters=nested)
            assert [n.node.node_id for n in retriever.retrieve(query)] == [others[0]]


# Budgets


@given(budget=st.integers(5, 500), k=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_the_budget_is_never_exceeded_and_cut_units_say_so(budget, k):
    documents = [town(0, [1]), town(1, [2]), town(2), town(3, [4]), town(4), town(5)]
    nodes = parsed(documents)
    retriever = MaxPRetriever(
        nodes=nodes,
        embed_model=HashEmbedding(),
        similarity_top_k=k,
        token_budget=budget,
        tokenizer=tokenizer,
    )
    found = retriever.retrieve(QUESTION)
    assert 1 <= len(found) <= k
    assert sum(len(tokenizer(n.node.text)) for n in found) <= budget
    whole = {unit.node_id: unit for unit in units_of(nodes)}
    texts = {d.node_id: d.text for d in documents}
    for result in found:
        unit, metadata = whole[result.node.node_id], result.node.metadata
        assert metadata["complete"] == (result.node.text == unit.text)
        assert set(metadata["doc_ids"]) <= set(unit.metadata["doc_ids"])
        for member in metadata["members"]:
            end = member["start"] + member["doc_end"] - member["doc_start"]
            own = texts[member["doc_id"]][member["doc_start"] : member["doc_end"]]
            assert result.node.text[member["start"] : end] == own


def test_a_unit_is_cut_to_its_best_document(nodes, documents):
    size = len(tokenizer(documents[2].text)) + 8
    retriever = MaxPRetriever(
        nodes=nodes,
        embed_model=HashEmbedding(),
        similarity_top_k=1,
        token_budget=size,
        tokenizer=tokenizer,
    )
    (found,) = retriever.retrieve(QUESTION)
    assert found.node.metadata["doc_ids"] == ["delft.md"]
    assert found.node.text == documents[2].text
    assert found.node.metadata["complete"] is False


# Objects


def test_a_unit_that_stands_for_an_object_is_replaced_by_what_it_retrieves(nodes):
    best = MaxPRetriever(nodes=nodes, embed_model=HashEmbedding()).retrieve(QUESTION)[0]
    inner = MaxPRetriever(nodes=[chunk(0, "inner")], embed_model=HashEmbedding())
    outer = MaxPRetriever(
        nodes=nodes, embed_model=HashEmbedding(), object_map={best.node.node_id: inner}
    )
    for found in (outer.retrieve(QUESTION), asyncio.run(outer.aretrieve(QUESTION))):
        assert found[0].node.node_id == "inner"
        assert len(found) == 3
    as_object = IndexNode(
        text="", index_id=best.node.node_id, obj=TextNode(text="instead", id_="instead")
    )
    outer = MaxPRetriever(nodes=nodes, embed_model=HashEmbedding(), objects=[as_object])
    found = outer.retrieve(QUESTION)[0]
    assert (found.node.text, found.score) == ("instead", pytest.approx(best.score))


def test_index_nodes_among_the_chunks_are_chunks_like_any_other():
    leaves = [
        IndexNode(
            text=f"gate {i} of the town",
            id_=f"i{i}",
            index_id=f"x{i}",
            obj=TextNode(text="elsewhere"),
            metadata={"unit_id": f"u{i % 2}"},
        )
        for i in range(4)
    ]
    found = MaxPRetriever(index=store_index(leaves)).retrieve("gate 1")
    assert {n.node.node_id for n in found} == {"u0", "u1"}
    assert all("elsewhere" not in n.node.text for n in found)


# What models and stores get wrong


class Broken(HashEmbedding):
    how: str

    def _get_text_embeddings(self, texts):
        vectors = [self._get_text_embedding(text) for text in texts]
        if self.how == "too few":
            return vectors[:-1]
        vectors[-1] = {"nan": [float("nan")] * WIDTH, "width": [1.0]}[self.how]
        return vectors


@pytest.mark.parametrize("how", ["nan", "width", "too few"])
def test_unusable_vectors_of_chunks_are_refused(how, nodes):
    with pytest.raises(EmbeddingError):
        MaxPRetriever(nodes=nodes, embed_model=Broken(how=how))


class BrokenQuery(HashEmbedding):
    vector: list[Any]

    def _get_query_embedding(self, query):
        return self.vector

    async def _aget_query_embedding(self, query):
        return self.vector


@pytest.mark.parametrize("vector", [[float("nan")] * WIDTH, [1.0]])
def test_unusable_vectors_of_queries_are_refused(vector, nodes):
    leaves = [n.model_copy(update={"embedding": [1.0] * WIDTH}) for n in chunks_of(nodes)]
    model = BrokenQuery(vector=vector)
    retriever = MaxPRetriever(nodes=leaves, embed_model=model)
    with pytest.raises(EmbeddingError):
        retriever.retrieve("q")
    with pytest.raises(EmbeddingError):
        asyncio.run(retriever.aretrieve("q"))
    stored = MaxPRetriever(index=store_index(leaves), embed_model=model)
    with pytest.raises((EmbeddingError, ValueError)):
        stored.retrieve("q")
    with pytest.raises(EmbeddingError, match=r"query (embedding|vector)"):
        retriever.retrieve(QueryBundle("q", embedding=vector))


def test_a_query_without_words_is_refused(nodes):
    for source in ({"nodes": nodes}, {"index": store_index(get_leaf_nodes(nodes))}):
        with pytest.raises(InvalidParameterError, match="query must be some text"):
            MaxPRetriever(**source, embed_model=HashEmbedding()).retrieve("")


def test_what_an_embedding_model_raises_is_raised(nodes):
    class Down(HashEmbedding):
        def _get_text_embedding(self, text):
            raise ConnectionError("the model is down")

    with pytest.raises(ConnectionError, match="the model is down"):
        MaxPRetriever(nodes=nodes, embed_model=Down())


def test_what_a_store_raises_is_raised(nodes):
    class Down(Watched):
        def answer(self, query):
            raise ConnectionError("the store is down")

    retriever = MaxPRetriever(index=store_index(get_leaf_nodes(nodes), Down()))
    with pytest.raises(ConnectionError, match="the store is down"):
        retriever.retrieve(QUESTION)
    with pytest.raises(ConnectionError, match="the store is down"):
        asyncio.run(retriever.aretrieve(QUESTION))


def test_nodes_that_name_no_unit_are_refused_with_a_remedy():
    stray = [TextNode(text="Nobody's text", id_="stray")]
    message = r"node stray names no unit under 'unit_id'.*LongUnitNodeParser.*unit_key='ref_doc_id'"
    with pytest.raises(StoreError, match=message):
        MaxPRetriever(nodes=stray, embed_model=HashEmbedding())
    with pytest.raises(StoreError, match=message):
        MaxPRetriever(index=store_index(stray)).retrieve("q")


def test_the_same_node_twice_is_refused():
    twice = [chunk(1, "u"), chunk(1, "v")]
    with pytest.raises(InvalidParameterError, match="nodes must be nodes with distinct ids"):
        MaxPRetriever(nodes=twice, embed_model=HashEmbedding())


def test_nothing_to_search_gives_nothing_and_one_node_gives_one():
    assert MaxPRetriever(nodes=[], embed_model=HashEmbedding()).retrieve("q") == []
    assert MaxPRetriever(index=store_index([])).retrieve("q") == []
    assert MaxPRetriever(index=store_index([], flat_faiss())).retrieve("q") == []
    for source in SOURCES.values():
        (found,) = MaxPRetriever(**source([chunk(0, "u")])).retrieve("q")
        assert found.node.node_id == "u"


# Async


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


# Settings


def test_models_and_callbacks_come_from_the_index_or_the_settings(nodes, monkeypatch):
    model, manager = HashEmbedding(), CallbackManager([])
    monkeypatch.setattr(Settings, "_embed_model", model)
    monkeypatch.setattr(Settings, "_callback_manager", manager)
    retriever = MaxPRetriever(nodes=nodes)
    assert model.asked
    assert retriever.callback_manager is manager
    own, own_manager = HashEmbedding(), CallbackManager([])
    index = VectorStoreIndex(get_leaf_nodes(nodes), embed_model=own, callback_manager=own_manager)
    own.asked.clear()
    retriever = MaxPRetriever(index=index)
    retriever.retrieve("q")
    assert own.asked == [("query", "q")]
    assert retriever.callback_manager is own_manager
    assert MaxPRetriever(index=index, callback_manager=manager).callback_manager is manager


def test_a_store_that_searches_by_words_is_given_no_embedding(nodes):
    class ByWords(Watched):
        is_embedding_query: bool = False

        def answer(self, query):
            query.query_embedding = hash_vector(query.query_str, WIDTH).tolist()
            return super().answer(query)

    model = HashEmbedding()
    index = store_index(get_leaf_nodes(nodes), ByWords(), model)
    model.asked.clear()
    found = MaxPRetriever(index=index).retrieve(QUESTION)
    assert model.asked == []
    assert found[0].node.metadata["doc_ids"] == ["delft.md", "leiden.md", "utrecht.md"]


def test_a_result_is_a_plain_text_node_wherever_it_is_stored(nodes):
    found = MaxPRetriever(nodes=nodes, embed_model=HashEmbedding()).retrieve(QUESTION)
    store = SimpleDocumentStore()
    store.add_documents([n.node for n in found])
    for result in found:
        restored = store.get_document(result.node.node_id)
        assert type(restored) is TextNode
        assert restored.text == result.node.text
        assert restored.metadata == result.node.metadata


def in_chapters(*chapters) -> list[TextNode]:
    return [
        TextNode(id_=f"{c!r}.{i}", text=f"Part {i} of {c} apple", metadata={"chapter": c})
        for c in chapters
        for i in range(30)
    ]


@pytest.mark.parametrize("chapters", [(1, 2, 3), (1.5, 2.5, 3.5), ("1", "2", "3"), (1, "two", 3)])
async def test_units_named_by_any_type_of_value_come_back_whole(chapters):
    source = store_index(in_chapters(*chapters))
    retriever = MaxPRetriever(index=source, unit_key="chapter", similarity_top_k=3)
    for found in (retriever.retrieve("apple"), await retriever.aretrieve("apple")):
        assert {n.node.node_id for n in found} == {str(chapter) for chapter in chapters}
        for n in found:
            assert n.node.metadata["complete"]
            assert n.node.text.count(f"of {n.node.node_id} apple") == 30


@pytest.mark.parametrize("source", ["nodes", "simple"])
def test_two_names_of_units_that_read_the_same_are_an_error(source):
    with pytest.raises(StoreError, match="1 and '1' under 'chapter'"):
        MaxPRetriever(
            **SOURCES[source](in_chapters(1, "1")), unit_key="chapter", similarity_top_k=3
        ).retrieve("apple")


@pytest.mark.parametrize("index", [SummaryIndex([]), object()])
def test_an_index_without_vectors_is_refused(index):
    with pytest.raises(InvalidParameterError, match="a VectorStoreIndex or a LongRAGIndex"):
        MaxPRetriever(index=index, embed_model=HashEmbedding())


def tenants() -> list[Document]:
    """Two documents of one unit, of one tenant each, and one of a unit of its own."""
    return [
        Document(id_="a", text="[b](b) The mill burned.", metadata={"tenant": "A", "secret": 1}),
        Document(id_="b", text="The weir holds.", metadata={"tenant": "B"}),
        Document(id_="c", text="The clock stands.", metadata={"tenant": "B"}),
    ]


OF_TENANT_B = MetadataFilters(filters=[MetadataFilter(key="tenant", value="B")])


@pytest.mark.parametrize("source", ["units", "leaves", "docstore", "store"])
async def test_text_that_filters_leave_out_is_not_returned_and_the_rest_is_marked(source):
    made = LongUnitNodeParser(tokenizer=tokenizer).get_nodes_from_documents(tenants())
    index = store_index(get_leaf_nodes(made))
    if source == "docstore":
        index.docstore.add_documents(units_of(made))
    nodes = made if source == "units" else get_leaf_nodes(made)
    given_source = {"nodes": nodes} if source in ("units", "leaves") else {"index": index}
    retriever = MaxPRetriever(**given_source, embed_model=HashEmbedding(), filters=OF_TENANT_B)
    for found in (retriever.retrieve("mill"), await retriever.aretrieve("mill")):
        shown = {n.node.text.strip(): n.node.metadata for n in found}
        assert set(shown) == {"The weir holds.", "The clock stands."}
        assert not shown["The weir holds."]["complete"]
        assert shown["The weir holds."]["tenant"] == "B"
        # Of a store it is not known what else a unit holds.
        assert shown["The clock stands."]["complete"] == (source in ("units", "leaves"))
        assert not any("mill" in str(n.node.to_dict()) for n in found)


def test_parts_of_a_document_that_filters_leave_out_are_not_returned():
    pages = [
        TextNode(
            id_=f"p{i}",
            text=f"page {i} says apple",
            metadata={"page": i},
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="D")},
        )
        for i in range(3)
    ]
    filters = MetadataFilters(filters=[MetadataFilter(key="page", value=1)])
    for source in ("nodes", "simple"):
        retriever = MaxPRetriever(**SOURCES[source](pages), unit_key="ref_doc_id", filters=filters)
        (found,) = retriever.retrieve("apple")
        assert (found.node.text, found.node.metadata["complete"]) == ("page 1 says apple", False)


def test_a_node_that_filters_leave_out_need_not_name_a_unit():
    nodes = [chunk(0, "u0", tenant="B"), TextNode(text="stray", metadata={"tenant": "A"})]
    retriever = MaxPRetriever(nodes=nodes, embed_model=HashEmbedding(), filters=OF_TENANT_B)
    (found,) = retriever.retrieve("text")
    assert (found.node.text, found.node.metadata["complete"]) == ("text 0 of u0", True)


@pytest.mark.parametrize("own_title", [None, "no"])
def test_titles_under_another_key_stay_with_the_chunks(own_title):
    told = {} if own_title is None else {"title": own_title}
    pages = [
        Document(id_="a", text="[b](b) An apple.", metadata={"name": "Alpha", **told}),
        Document(id_="b", text="A pear.", metadata={"name": "Beta", **told}),
        Document(id_="c", text="A fig.", metadata=told),
    ]
    models = (MetadataMode.LLM, MetadataMode.EMBED)
    leaves = get_leaf_nodes(LongUnitNodeParser(title_key="name", tokenizer=tokenizer)(pages))
    assert not any("member_title" in leaf.get_content(mode) for leaf in leaves for mode in models)
    for source in ({"nodes": leaves}, {"index": store_index(leaves)}):
        found = MaxPRetriever(**source, embed_model=HashEmbedding()).retrieve("apple")
        members = [member for n in found for member in n.node.metadata["members"]]
        titles = {member["doc_id"]: member["title"] for member in members}
        assert titles == {"a": "Alpha", "b": "Beta", "c": ""}
        best = [n.node.metadata["best_chunk"] for n in found]
        assert all(chunk["title"] == titles[chunk["doc_id"]] for chunk in best)


@pytest.mark.parametrize("alike", ["document", "node"])
def test_a_unit_is_not_taken_for_a_document_or_node_whose_id_reads_like_its_name(alike):
    index = store_index(in_chapters(1))
    if alike == "document":
        index.insert(Document(id_="1", text="Something else.", metadata={"chapter": 2}))
    else:
        index.insert_nodes([TextNode(id_="1", text="Something else.", metadata={"chapter": 2})])
    retriever = MaxPRetriever(index=index, unit_key="chapter", similarity_top_k=2)
    texts = {n.node.node_id: n.node.text for n in retriever.retrieve("apple")}
    assert texts["2"] == "Something else."
    assert texts["1"].count("of 1 apple") == 30
