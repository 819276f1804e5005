"""Kinds are chosen by the class of a store, whose package need not be there."""

import sys

import pytest
from llama_index.core.vector_stores import SimpleVectorStore

from llama_index_longrag import StoreKind, register_store
from llama_index_longrag.bridge.store_kinds import kind_of

KNOWN = [
    "chroma.base.ChromaVectorStore",
    "duckdb.base.DuckDBVectorStore",
    "elasticsearch.base.ElasticsearchStore",
    "faiss.base.FaissVectorStore",
    "lancedb.base.LanceDBVectorStore",
    "milvus.base.MilvusVectorStore",
    "mongodb.base.MongoDBAtlasVectorSearch",
    "opensearch.base.OpensearchVectorStore",
    "pinecone.base.PineconeVectorStore",
    "postgres.base.PGVectorStore",
    "qdrant.base.QdrantVectorStore",
    "weaviate.base.WeaviateVectorStore",
]


def store_class(name, module="llama_index.vector_stores"):
    module, _, own = f"{module}.{name}".rpartition(".")
    return type(own, (), {"__module__": module, "__qualname__": own})


@pytest.mark.parametrize("name", KNOWN)
def test_a_store_has_the_kind_of_its_class_without_an_import(name):
    before = set(sys.modules)
    known = store_class(name)
    subclass = type("Mine", (known,), {"__module__": "mine", "__qualname__": "Mine"})
    assert kind_of(store_class(name, "mine")()) == StoreKind() != kind_of(known())
    assert kind_of(known()) is kind_of(subclass())
    assert {one for one in set(sys.modules) - before if "vector_stores" in one} == set()


def test_each_class_has_a_kind_of_its_own():
    assert len({id(kind_of(store_class(name)())) for name in KNOWN}) == len(KNOWN)


def test_a_registered_kind_comes_before_one_of_the_package():
    class Mine(SimpleVectorStore):
        pass

    mine = StoreKind(exact=True)
    register_store(Mine, mine)
    assert kind_of(Mine()) is mine
    assert kind_of(SimpleVectorStore()) is not mine
