"""Stores of databases that need a server, over stand-ins of these: see ``stand_ins``.

``make stores`` installs the packages that go together. LangChain's for Pinecone does not, and is
skipped where it is missing. What is tested is the package's side: which conditions and limits are
sent, and that what comes back is taken rightly.
"""

import importlib.util

import pytest

from longrag.stores.checks import CHECKS, WIDTH, check_rows, check_store
from tests.stores.stand_ins import (
    AsyncCollection,
    Collection,
    PineconeIndex,
    search_server,
    weaviate_client,
)

pytestmark = [
    pytest.mark.stores,
    pytest.mark.allow_hosts(["127.0.0.1", "localhost"]),
    pytest.mark.filterwarnings("ignore"),
]


def need(*modules: str) -> None:
    for module in modules:
        try:
            there = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            there = False
        if not there:
            pytest.skip(f"{module} is not installed")


def llama_index_elasticsearch(url):
    need("llama_index.vector_stores.elasticsearch", "elasticsearch")
    from llama_index.vector_stores.elasticsearch import ElasticsearchStore

    return ElasticsearchStore(index_name="rows", es_url=url)


def llama_index_opensearch(url):
    need("llama_index.vector_stores.opensearch", "opensearchpy")
    from llama_index.vector_stores.opensearch import OpensearchVectorClient, OpensearchVectorStore

    return OpensearchVectorStore(OpensearchVectorClient(url, "rows", WIDTH, engine="lucene"))


def langchain_elasticsearch(url, embeddings):
    need("langchain_elasticsearch")
    from langchain_elasticsearch import ElasticsearchStore

    return ElasticsearchStore("rows", es_url=url, embedding=embeddings)


def langchain_opensearch(url, embeddings):
    need("langchain_community", "opensearchpy")
    from langchain_community.vectorstores import OpenSearchVectorSearch

    store = OpenSearchVectorSearch(url, "rows", embeddings, engine="lucene")
    store.bulk_size = 1000
    return store


def llama_index_mongodb(collection=None):
    need("llama_index.vector_stores.mongodb")
    from llama_index.vector_stores.mongodb import MongoDBAtlasVectorSearch

    collection = collection or Collection((*Collection().filters, "metadata.even"))

    class Database(dict):
        def list_collection_names(self):
            return list(self)

    return MongoDBAtlasVectorSearch(
        {"db": Database(rows=collection)},
        {"db": {"rows": AsyncCollection(collection)}},
        db_name="db",
        collection_name="rows",
    )


def llama_index_pinecone():
    need("llama_index.vector_stores.pinecone")
    from llama_index.vector_stores.pinecone import PineconeVectorStore

    return PineconeVectorStore(pinecone_index=PineconeIndex())


def llama_index_weaviate():
    need("llama_index.vector_stores.weaviate")
    from llama_index.vector_stores.weaviate import WeaviateVectorStore

    return WeaviateVectorStore(weaviate_client(), index_name="Rows")


def langchain_mongodb(embeddings):
    need("langchain_mongodb")
    from langchain_mongodb import MongoDBAtlasVectorSearch

    return MongoDBAtlasVectorSearch(Collection(), embeddings)


def langchain_pinecone(embeddings):
    need("langchain_pinecone")
    from langchain_pinecone import PineconeVectorStore

    return PineconeVectorStore(PineconeIndex(), embeddings)


def langchain_weaviate(embeddings):
    need("langchain_weaviate")
    from langchain_weaviate import WeaviateVectorStore

    return WeaviateVectorStore(
        client=weaviate_client(), index_name="Rows", text_key="text", embedding=embeddings
    )


SEARCH = {
    "LlamaIndex Elasticsearch": llama_index_elasticsearch,
    "LlamaIndex OpenSearch": llama_index_opensearch,
    "LangChain Elasticsearch": langchain_elasticsearch,
    "LangChain OpenSearch": langchain_opensearch,
}
OTHERS = {
    "LlamaIndex MongoDB": llama_index_mongodb,
    "LlamaIndex Pinecone": llama_index_pinecone,
    "LlamaIndex Weaviate": llama_index_weaviate,
    "LangChain MongoDB": langchain_mongodb,
    "LangChain Pinecone": langchain_pinecone,
    "LangChain Weaviate": langchain_weaviate,
}


def weaviate_filter(number):
    from weaviate.classes.query import Filter

    return Filter.by_property("even").equal(number)


FILTERS = {
    "LangChain Elasticsearch": ("filter", lambda n: [{"term": {"metadata.even": n}}]),
    "LangChain OpenSearch": ("filter", lambda n: {"term": {"metadata.even": n}}),
    "LangChain MongoDB": ("pre_filter", lambda n: {"even": {"$eq": n}}),
    "LangChain Weaviate": ("filters", weaviate_filter),
}

UNFIT = {
    # Its class has either a sync or an async client.
    "LlamaIndex Weaviate": "async_calls",
    # Its class compares every value with a text, and even is a number.
    "LlamaIndex Elasticsearch": "filters",
}


def checked(kind, make, *args, **settings):
    if kind.startswith("LlamaIndex"):
        from llama_index_longrag.retrieval.store_check import CheckedStore

        return CheckedStore(make(*args), **settings)
    from langchain_longrag.retrieval.store_check import CheckedStore, CheckEmbeddings

    key, even = FILTERS.get(kind, ("filter", None))
    embeddings = CheckEmbeddings()
    return CheckedStore(make(*args, embeddings), even=even, filter_key=key, **settings)


def assert_honest(kind, store, only=CHECKS):
    only = [name for name in only if name not in ("beside_a_writer", UNFIT.get(kind))]
    results = {one.check: one for one in check_store(store, only)}
    assert {name: one.detail for name, one in results.items() if not one.passed} == {}
    assert results["ranking"].detail == "approximate, 192 of 192 units the same"
    # Nothing but searches is asked of a server, so that it never says that there is no more.
    assert results["all_units"].detail == "59 of 59, and says so"
    assert results["whole"].detail == "0 of 72, the others say so"
    if "Weaviate" not in kind:  # a name without a word is not found by its words
        for one in store.retrieve("question 1", 4):
            assert all(row.text in one.text for row in check_rows() if row.unit == one.unit)
    assert results["hostile_ids"].detail == "all 18"
    if "filters" in results:
        assert results["filters"].detail == "kept"
    return results


@pytest.mark.parametrize("kind", SEARCH)
def test_a_search_server_is_asked_for_what_it_can_do(kind):
    with search_server() as (url, index):
        store = checked(kind, SEARCH[kind], url)
        results = assert_honest(kind, store)
        assert results["deletes"].detail == "ok"
        excluding = [one for one in index.searches if "must_not" in str(one)]
        assert excluding


@pytest.mark.parametrize("kind", OTHERS)
def test_a_server_is_asked_for_what_it_can_do(kind):
    assert_honest(kind, checked(kind, OTHERS[kind]))
