"""Fusion of several lists: against the frameworks' own, and alike in the core and both adapters."""

from __future__ import annotations

import asyncio
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_classic.retrievers import EnsembleRetriever
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever as NodeRetriever
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

import langchain_longrag as lc
import llama_index_longrag as li
from longrag.calls import run
from longrag.errors import InvalidParameterError
from longrag.indexing.keywords import KeywordIndex
from longrag.recipes import Hybrid, Recipe
from longrag.recipes.passages import Passage
from longrag.retrieval import fuse_reciprocal_rank, hybrid
from longrag.retrieval.fusion import fuse_lists
from longrag.retrieval.units import Hit
from longrag.types import Chunk
from tests.fakes import hash_vector
from tests.fakes.langchain import HashEmbeddings, replying
from tests.fakes.llama_index import HashEmbedding, ScriptedLLM, tokenizer

pytest.importorskip("bm25s")

QUESTION = "When was the harbour of Delft dug?"
TEXTS = {
    f"{town}-{n}": f"{town} kept record {n}. The {thing} of {town} was {deed} in {1300 + 7 * n}."
    for n, (town, thing, deed) in enumerate(
        (town, thing, deed)
        for town in ("Delft", "Gouda", "Leiden", "Breda")
        for thing, deed in (("harbour", "dug"), ("gate", "built"), ("mill", "burned down"))
    )
}
# What a third retriever finds: others, in another order, with scores on another scale.
THIRD = {id_: 1000.0 - 3 * at for at, id_ in enumerate(sorted(TEXTS)[2:9])}
SETTINGS = [
    {"fusion": "reciprocal_rank"},
    {"fusion": "reciprocal_rank", "alpha": 0.5, "weights": [1, 2]},
    {"fusion": "weighted"},
    {"fusion": "weighted", "alpha": 1.0, "weights": [0.2, 0.7]},
]


@given(
    st.lists(st.permutations(list("abcdefgh")), min_size=1, max_size=4),
    st.lists(st.sampled_from([0.5, 1, 2]), min_size=4, max_size=4),
)
def test_reciprocal_ranks_are_those_of_both_frameworks(orders, weights):
    """Of LangChain's ensemble with any weights; of LlamaIndex's, which counts from 0, with none."""
    weights = weights[: len(orders)]
    rankings = [{id_: -float(at) for at, id_ in enumerate(order)} for order in orders]
    retrievers = [RunnableLambda(lambda _: []) for _ in orders]
    ensemble = EnsembleRetriever(retrievers=retrievers, weights=weights, c=60)
    documents = [[Document(id_) for id_ in order] for order in orders]
    theirs = [one.page_content for one in ensemble.weighted_reciprocal_rank(documents)]
    ours = fuse_reciprocal_rank(rankings, weights)
    score = {id_: round(value, 12) for id_, value in ours.items()}
    assert [score[id_] for id_ in theirs] == [score[id_] for id_ in ours]

    rows = {
        ("", at): [NodeWithScore(node=TextNode(id_=id_, text=id_), score=1.0) for id_ in order]
        for at, order in enumerate(orders)
    }
    fused = QueryFusionRetriever._reciprocal_rerank_fusion(None, rows)
    with patch("longrag.retrieval.fusion.RANK_CONSTANT", 59):  # since it counts ranks from 0
        plain = fuse_reciprocal_rank(rankings)
    assert {one.node.node_id: one.score for one in fused} == pytest.approx(plain)


class ThirdNodes(NodeRetriever):
    """The third list as a retriever of LlamaIndex."""

    def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:
        nodes = llama_nodes()
        return [NodeWithScore(node=nodes[id_], score=score) for id_, score in THIRD.items()]


class ThirdDocuments(BaseRetriever):
    """The third list as a retriever of LangChain."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [
            Document(TEXTS[id_], id=id_, metadata={"score": score}) for id_, score in THIRD.items()
        ]


@cache
def llama_nodes() -> dict[str, TextNode]:
    return {id_: TextNode(id_=id_, text=text) for id_, text in TEXTS.items()}


@cache
def llama_index() -> VectorStoreIndex:
    return VectorStoreIndex(list(llama_nodes().values()), embed_model=HashEmbedding(width=64))


@cache
def store() -> InMemoryVectorStore:
    made = InMemoryVectorStore(HashEmbeddings(64))
    made.add_documents([Document(text, id=id_) for id_, text in TEXTS.items()])
    return made


def dense_scores() -> dict[str, float]:
    query = hash_vector(QUESTION, 64)
    scores = {id_: float(hash_vector(text, 64) @ query) for id_, text in TEXTS.items()}
    return dict(sorted(scores.items(), key=lambda pair: -pair[1]))


def hits(scores: dict[str, float], wanted: int) -> list[Hit]:
    chunks = {
        id_: Chunk(id_, id_, id_, "", text, 0, len(text), 0, len(text))
        for id_, text in TEXTS.items()
    }
    return [Hit(id_, chunks[id_], score) for id_, score in list(scores.items())[:wanted]]


def keyword_index() -> KeywordIndex:
    return KeywordIndex.build(list(TEXTS), list(TEXTS.values()))


def llama_scores() -> dict[str, float]:
    found = llama_index().as_retriever(similarity_top_k=99).retrieve(QUESTION)
    return {one.node.node_id: float(one.score or 0) for one in found}


def langchain_scores() -> dict[str, float]:
    found = store().similarity_search_with_score(QUESTION, k=99)
    return {str(document.id): score for document, score in found}


def check(
    found: dict[str, float],
    dense: dict[str, float],
    fusion: str,
    alpha: float | None = None,
    weights: Any = (1, 1),
) -> None:
    """Compare the best eight with the lists fused one by one."""
    lists = [dense, dict(keyword_index().search(QUESTION, 100)), THIRD]
    if fusion == "reciprocal_rank":
        wanted = fuse_reciprocal_rank(
            lists, [weights[0], 1.0 if alpha is None else alpha, weights[1]]
        )
    else:
        wanted = fuse_lists(
            lists[1], [dense, THIRD], alpha=0.3 if alpha is None else alpha, weights=weights
        )
    assert found == pytest.approx(dict(list(wanted.items())[:8]))
    assert list(found) == list(wanted)[:8]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_three_lists_are_fused_by_the_core(settings: dict[str, Any]) -> None:
    def third(query: str, wanted: int) -> Any:
        yield ()
        return hits(THIRD, wanted)

    flow = hybrid(QUESTION, keywords=keyword_index(), top_k=8, others=[third], **settings)
    found = run(flow, lambda request: hits(dense_scores(), request.top_k))
    check({one.id: one.score for one in found}, dense_scores(), **settings)


@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_three_lists_are_fused_in_llama_index(settings: dict[str, Any], use_async: bool) -> None:
    retriever = li.HybridRetriever(
        index=llama_index(), other_retrievers=[ThirdNodes()], similarity_top_k=8, **settings
    )
    found = (
        asyncio.run(retriever.aretrieve(QUESTION)) if use_async else retriever.retrieve(QUESTION)
    )
    check({one.node.node_id: float(one.score or 0) for one in found}, llama_scores(), **settings)


@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_three_lists_are_fused_in_langchain(settings: dict[str, Any], use_async: bool) -> None:
    retriever = lc.HybridRetriever(
        vectorstore=store(), other_retrievers=[ThirdDocuments()], k=8, **settings
    )
    found = asyncio.run(retriever.ainvoke(QUESTION)) if use_async else retriever.invoke(QUESTION)
    check({str(one.id): one.metadata["score"] for one in found}, langchain_scores(), **settings)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_recipes_fuse_three_lists_alike(settings: dict[str, Any]) -> None:
    passages = {id_: Passage.of_document(id_, text) for id_, text in TEXTS.items()}

    def search(scores: dict[str, float], texts: Any, top_k: int) -> Any:
        yield ()
        return hits(scores, top_k)

    fusing = Hybrid(
        keywords=keyword_index(),
        passages=passages,
        others=[partial(search, THIRD)],
        **settings,
    )
    core = Recipe(retriever=partial(search, dense_scores()), hybrid=fusing, top_k=8, candidates=8)
    step = run(core.prepare(QUESTION), lambda request: None).trace["hybrid"]
    check({one.id: one.score for one in step.output.first}, dense_scores(), **settings)

    off: dict[str, Any] = {"classifier": None, "compressor": None, "top_k": 8, "candidates": 8}
    engine = li.balanced_efficiency(
        li.HybridRetriever(index=llama_index(), other_retrievers=[ThirdNodes()], **settings),
        reranker=None,
        llm=ScriptedLLM("In 1300."),
        tokenizer=tokenizer,
        **off,
    )
    chain = lc.balanced_efficiency(
        lc.HybridRetriever(vectorstore=store(), other_retrievers=[ThirdDocuments()], **settings),
        replying(lambda _: "In 1300."),
        reranker=None,
        **off,
    )
    for trace, dense in (
        (engine.query(QUESTION).metadata["trace"], llama_scores()),
        (chain.invoke({"input": QUESTION})["trace"], langchain_scores()),
    ):
        (fused,) = (one for one in trace if one["name"] == "hybrid")
        check({one["id"]: one["score"] for one in fused["output"]["first"]}, dense, **settings)


async def test_each_retriever_embeds_with_its_own_model() -> None:
    """The framework keeps a query's vector in the bundle, where another retriever finds it."""
    nodes = list(llama_nodes().values())
    wide = VectorStoreIndex(nodes, embed_model=HashEmbedding(width=64))
    narrow = VectorStoreIndex(nodes, embed_model=HashEmbedding(width=16))
    retriever = li.HybridRetriever(
        index=wide, other_retrievers=[narrow.as_retriever()], similarity_top_k=8
    )
    engine = li.balanced_efficiency(
        retriever, reranker=None, compressor=None, llm=ScriptedLLM("1300"), tokenizer=tokenizer
    )
    found = retriever.retrieve(QUESTION)
    assert [one.node.node_id for one in await retriever.aretrieve(QUESTION)] == [
        one.node.node_id for one in found
    ]
    for response in (engine.query(QUESTION), await engine.aquery(QUESTION)):
        assert {one.node.node_id for one in response.source_nodes} == {
            one.node.node_id for one in found[:5]
        }


def test_filters_hold_for_every_list() -> None:
    filters = MetadataFilters(filters=[MetadataFilter(key="town", value="Delft")])
    nodes = [
        TextNode(id_=id_, text=text, metadata={"town": id_.partition("-")[0]})
        for id_, text in TEXTS.items()
    ]
    index = VectorStoreIndex(nodes, embed_model=HashEmbedding(width=64))
    retriever = li.HybridRetriever(
        index=index, other_retrievers=[index.as_retriever()], similarity_top_k=9
    )
    found = retriever.with_filters(filters).retrieve(QUESTION)
    assert {one.node.metadata["town"] for one in found} == {"Delft"}
    assert len(found) == 3
    open_list = li.HybridRetriever(index=index, other_retrievers=[ThirdNodes()])
    with pytest.raises(InvalidParameterError, match="filters"):
        open_list.with_filters(filters)


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"fusion": "sum"}, "fusion"), ({"weights": [1.0]}, "weights"), ({"alpha": -1.0}, "alpha")],
)
def test_settings_that_are_not_allowed_are_refused(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidParameterError, match=name):
        li.HybridRetriever(index=llama_index(), other_retrievers=[ThirdNodes()], **settings)
    with pytest.raises(InvalidParameterError, match=name):
        lc.HybridRetriever(vectorstore=store(), other_retrievers=[ThirdDocuments()], **settings)
    with pytest.raises(InvalidParameterError, match=name):
        Hybrid(keywords=keyword_index(), others=[lambda texts, k: None], **settings)
