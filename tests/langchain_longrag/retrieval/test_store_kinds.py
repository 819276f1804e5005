"""Kinds are chosen by the class of a store, whose package need not be there."""

import sys

import pytest

from langchain_longrag import StoreKind
from langchain_longrag.bridge.store_kinds import kind_of

KNOWN = [
    "langchain_chroma.vectorstores.Chroma",
    "langchain_community.vectorstores.duckdb.DuckDB",
    "langchain_community.vectorstores.faiss.FAISS",
    "langchain_community.vectorstores.lancedb.LanceDB",
    "langchain_community.vectorstores.opensearch_vector_search.OpenSearchVectorSearch",
    "langchain_elasticsearch._sync.vectorstores.ElasticsearchStore",
    "langchain_milvus.vectorstores.milvus.Milvus",
    "langchain_mongodb.vectorstores.MongoDBAtlasVectorSearch",
    "langchain_pinecone.vectorstores.PineconeVectorStore",
    "langchain_postgres.vectorstores.PGVector",
    "langchain_postgres.v2.vectorstores.PGVectorStore",
    "langchain_qdrant.qdrant.QdrantVectorStore",
    "langchain_weaviate.vectorstores.WeaviateVectorStore",
]


@pytest.mark.parametrize("name", KNOWN)
def test_a_store_has_the_kind_of_its_class_without_an_import(name):
    module, _, own = name.rpartition(".")
    before = set(sys.modules)
    store_class = type(own, (), {"__module__": module, "__qualname__": own})
    subclass = type("Mine", (store_class,), {"__module__": "mine", "__qualname__": "Mine"})
    other = type(own, (), {"__module__": "mine", "__qualname__": own})
    assert kind_of(other()) == StoreKind() != kind_of(store_class())
    assert kind_of(store_class()) is kind_of(subclass())
    assert {one for one in set(sys.modules) - before if one.partition(".")[0] in name} == set()


def test_each_class_has_a_kind_of_its_own():
    stores = [type(own, (), {"__module__": module})() for module, _, own in map(split, KNOWN)]
    assert len({id(kind_of(store)) for store in stores}) == len(KNOWN)


def split(name):
    return name.rpartition(".")
