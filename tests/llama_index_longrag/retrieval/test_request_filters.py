"""Filters that are added for one request, on retrievers and recipes that are there already."""

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import Document, TextNode
from llama_index.core.vector_stores.types import FilterCondition, MetadataFilter, MetadataFilters

import llama_index_longrag as li
from llama_index_longrag.bridge.store_queries import combine_filters
from longrag.errors import InvalidParameterError
from longrag.indexing.keywords import KeywordIndex
from tests.fakes.llama_index import HashEmbedding, ScriptedLLM


def where(condition=FilterCondition.AND, **wanted):
    filters = [MetadataFilter(key=key, value=value) for key, value in wanted.items()]
    return MetadataFilters(filters=filters, condition=condition)


RED, BLUE = where(tenant="red"), where(tenant="blue")


@pytest.fixture
def pages():
    return [
        Document(id_=f"{tenant}{n}", text=f"The {tenant} mill {n}", metadata=metadata)
        for tenant, n in [("red", 0), ("red", 1), ("blue", 0)]
        for metadata in [{"tenant": tenant, "n": n}]
    ]


@pytest.fixture
def index(pages):
    return li.LongRAGIndex.from_documents(pages, embed_model=HashEmbedding())


def texts(found):
    return {one.node.get_content() for one in found}


def has(found, *names):
    shown = " ".join(texts(found))
    return {name for name in ("red mill 0", "red mill 1", "blue mill 0") if name in shown} == {
        *names
    }


@pytest.mark.parametrize("mode", ["maxp", "evidence"])
async def test_filters_of_a_request_narrow_those_of_the_retriever(index, mode):
    retriever = index.as_retriever(retriever_mode=mode, filters=where(n=0))
    assert has(retriever.retrieve("mill"), "red mill 0", "blue mill 0")
    assert has(retriever.with_filters(RED).retrieve("mill"), "red mill 0")
    assert has(await retriever.with_filters(BLUE).aretrieve("mill"), "blue mill 0")
    assert has(retriever.with_filters(RED).with_filters(BLUE).retrieve("mill"))
    assert has(retriever.with_filters(None).retrieve("mill"), "red mill 0", "blue mill 0")
    assert has(retriever.retrieve("mill"), "red mill 0", "blue mill 0")


def test_a_hybrid_reads_the_keywords_of_a_filter_once_for_all_requests(index, monkeypatch):
    hybrid = li.HybridRetriever(index=index, similarity_top_k=9)
    builds, build = [], KeywordIndex.build
    monkeypatch.setattr(
        KeywordIndex, "build", lambda ids, *a, **k: builds.append(len(ids)) or build(ids, *a, **k)
    )
    for _ in range(3):
        assert has(hybrid.with_filters(RED).retrieve("mill"), "red mill 0", "red mill 1")
        assert has(hybrid.with_filters(BLUE).retrieve("mill"), "blue mill 0")
    assert builds == [2, 1]
    index.insert(Document(id_="red2", text="The red weir", metadata={"tenant": "red"}))
    assert "weir" in " ".join(texts(hybrid.with_filters(RED).retrieve("weir")))
    # A copy with another number of results shares the keywords, and not the number.
    hybrid.similarity_top_k = 1
    assert len(hybrid.with_filters(RED).retrieve("mill")) == 1


def test_a_hybrid_over_the_frameworks_retriever_keeps_to_filters_in_both_rankings(pages):
    plain = VectorStoreIndex.from_documents(pages, embed_model=HashEmbedding())
    for hybrid in (
        li.HybridRetriever(index=plain, similarity_top_k=9),
        li.HybridRetriever(retriever=plain.as_retriever(similarity_top_k=9), similarity_top_k=9),
    ):
        assert has(hybrid.with_filters(RED).retrieve("mill"), "red mill 0", "red mill 1")
        assert has(hybrid.with_filters(RED).with_filters(where(n=1)).retrieve("m"), "red mill 1")


async def test_a_recipe_keeps_to_the_filters_of_a_request(index):
    llm = ScriptedLLM(*["an answer"] * 4)
    off = {"reranker": None, "classifier": None, "compressor": None, "llm": llm}
    for alpha in (0.3, None):
        recipe = li.balanced_efficiency(
            index, alpha=alpha, embed_model=HashEmbedding(), top_k=9, **off
        )
        assert has(recipe.with_filters(BLUE).query("mill").source_nodes, "blue mill 0")
        found = await recipe.with_filters(RED).aquery("mill")
        assert has(found.source_nodes, "red mill 0", "red mill 1")
        assert not any("blue" in prompt for prompt in llm.prompts[-1:])


def test_filters_of_a_request_are_refused_where_they_cannot_be_kept(index):
    class Other(BaseRetriever):
        def _retrieve(self, query_bundle):
            return index.as_retriever().retrieve(query_bundle)

    nodes = [TextNode(id_="a", text="a", metadata={"unit_id": "u", "tenant": "red"})]
    over_nodes = li.MaxPRetriever(nodes=nodes, embed_model=HashEmbedding())
    hybrid = li.HybridRetriever(retriever=Other(), nodes=nodes)
    for refused in (over_nodes, hybrid, li.RecipeQueryEngine(Other(), llm=ScriptedLLM())):
        with pytest.raises(InvalidParameterError, match="filters"):
            refused.with_filters(RED)


def test_filters_that_are_combined_keep_their_conditions():
    either = where(FilterCondition.OR, tenant="red", n=1)
    neither = where(FilterCondition.NOT, tenant="red")
    assert combine_filters(RED, either).filters == [*RED.filters, either]
    assert combine_filters(either, neither).filters == [either, neither]
    assert combine_filters(neither, RED).filters == [neither, *RED.filters]
