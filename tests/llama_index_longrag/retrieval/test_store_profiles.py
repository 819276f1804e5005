"""Profiles are chosen by the class of a store, whose package need not be there."""

import sys

import pytest
from llama_index.core.vector_stores import SimpleVectorStore

from llama_index_longrag import StoreProfile, register_store_profile
from llama_index_longrag.bridge.store_profiles import profile_of

CLASSES = {
    "chroma.base.ChromaVectorStore": "ChromaProfile",
    "duckdb.base.DuckDBVectorStore": "DuckDBProfile",
    "elasticsearch.base.ElasticsearchStore": "ElasticsearchProfile",
    "faiss.base.FaissVectorStore": "FaissProfile",
    "lancedb.base.LanceDBVectorStore": "LanceProfile",
    "milvus.base.MilvusVectorStore": "MilvusProfile",
    "mongodb.base.MongoDBAtlasVectorSearch": "MongoProfile",
    "opensearch.base.OpensearchVectorStore": "OpenSearchProfile",
    "pinecone.base.PineconeVectorStore": "PineconeProfile",
    "postgres.base.PGVectorStore": "PostgresProfile",
    "qdrant.base.QdrantVectorStore": "QdrantProfile",
    "redis.base.RedisVectorStore": "RedisProfile",
    "weaviate.base.WeaviateVectorStore": "WeaviateProfile",
}


@pytest.mark.parametrize("name", CLASSES)
def test_a_store_has_the_profile_of_its_class_without_an_import(name):
    module, _, own = f"llama_index.vector_stores.{name}".rpartition(".")
    before = set(sys.modules)
    store_class = type(own, (), {"__module__": module, "__qualname__": own})
    subclass = type("Mine", (store_class,), {"__module__": "mine", "__qualname__": "Mine"})
    for kind in (store_class, subclass):
        assert type(profile_of(kind())).__name__ == CLASSES[name]
    other = type(own, (), {"__module__": "mine", "__qualname__": own})
    assert type(profile_of(other())) is StoreProfile
    assert {one for one in set(sys.modules) - before if "vector_stores" in one} == set()


def test_a_registered_profile_comes_before_one_of_the_package():
    class Mine(SimpleVectorStore):
        pass

    mine = StoreProfile(exhaustive=True)
    register_store_profile(Mine, mine)
    assert profile_of(Mine()) is mine
    assert profile_of(SimpleVectorStore()) is not mine
