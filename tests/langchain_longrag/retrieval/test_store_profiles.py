"""Profiles are chosen by the class of a store, whose package need not be there."""

import sys

import pytest

from langchain_longrag import StoreProfile
from langchain_longrag.bridge.store_profiles import profile_of

CLASSES = {
    "langchain_chroma.vectorstores.Chroma": "ChromaProfile",
    "langchain_community.vectorstores.duckdb.DuckDB": "DuckDBProfile",
    "langchain_community.vectorstores.faiss.FAISS": "FaissProfile",
    "langchain_community.vectorstores.lancedb.LanceDB": "LanceProfile",
    "langchain_community.vectorstores.opensearch_vector_search.OpenSearchVectorSearch": (
        "OpenSearchProfile"
    ),
    "langchain_elasticsearch._sync.vectorstores.ElasticsearchStore": "ElasticsearchProfile",
    "langchain_milvus.vectorstores.milvus.Milvus": "MilvusProfile",
    "langchain_mongodb.vectorstores.MongoDBAtlasVectorSearch": "MongoProfile",
    "langchain_pinecone.vectorstores.PineconeVectorStore": "PineconeProfile",
    "langchain_postgres.vectorstores.PGVector": "PGVectorProfile",
    "langchain_postgres.v2.vectorstores.PGVectorStore": "PGVectorStoreProfile",
    "langchain_qdrant.qdrant.QdrantVectorStore": "QdrantProfile",
    "langchain_redis.vectorstores.RedisVectorStore": "RedisProfile",
    "langchain_weaviate.vectorstores.WeaviateVectorStore": "WeaviateProfile",
}


@pytest.mark.parametrize("name", CLASSES)
def test_a_store_has_the_profile_of_its_class_without_an_import(name):
    module, _, own = name.rpartition(".")
    before = set(sys.modules)
    store_class = type(own, (), {"__module__": module, "__qualname__": own})
    subclass = type("Mine", (store_class,), {"__module__": "mine", "__qualname__": "Mine"})
    for kind in (store_class, subclass):
        assert type(profile_of(kind())).__name__ == CLASSES[name]
    other = type(own, (), {"__module__": "mine", "__qualname__": own})
    assert type(profile_of(other())) is StoreProfile
    assert {one for one in set(sys.modules) - before if one.partition(".")[0] in name} == set()
