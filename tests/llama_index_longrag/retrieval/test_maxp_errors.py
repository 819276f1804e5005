"""Vectors, queries and stores that MaxP cannot use in LlamaIndex are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core import (
    SummaryIndex,
)
from llama_index.core.node_parser import get_leaf_nodes
from llama_index.core.schema import (
    QueryBundle,
    TextNode,
)

from llama_index_longrag import MaxPRetriever
from longrag.errors import EmbeddingError, InvalidParameterError, StoreError
from tests.fakes.llama_index import WIDTH, HashEmbedding
from tests.llama_index_longrag.conftest import chunks_of
from tests.llama_index_longrag.retrieval.maxp_stores import QUESTION, Watched, chunk, store_index


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
        with pytest.raises(InvalidParameterError, match="query must be a text"):
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
    with pytest.raises(InvalidParameterError, match="Nodes need distinct ids"):
        MaxPRetriever(nodes=twice, embed_model=HashEmbedding())


@pytest.mark.parametrize("index", [SummaryIndex([]), object()])
def test_an_index_without_vectors_is_refused(index):
    with pytest.raises(InvalidParameterError, match="a VectorStoreIndex or a LongRAGIndex"):
        MaxPRetriever(index=index, embed_model=HashEmbedding())
