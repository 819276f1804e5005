"""Stores of databases that need a server, over stand-ins of these: see ``stand_ins``.

``make stores`` installs the packages that go together. LangChain's for Pinecone does not, and is
skipped where it is missing. What is tested is the package's side: which conditions and limits are
sent, and that what comes back is taken rightly.
"""

import importlib.util
import json

import pytest

from longrag.errors import ShortResultError
from longrag.integration.store_checks import CHECKS, WIDTH, check_store
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
    knows_the_end = "Pinecone" not in kind and "Weaviate" not in kind and "OpenSearch" not in kind
    there = "all" if knows_the_end else "59 of 59, and says so"
    assert results["all_units"].detail == there
    assert results["hostile_ids"].detail == "all 18"
    if "filters" in results:
        assert results["filters"].detail == "kept"
    return results


@pytest.mark.parametrize("kind", SEARCH)
def test_a_search_server_is_asked_for_what_it_can_do(kind):
    with search_server() as (url, index):
        store = checked(kind, SEARCH[kind], url)
        results = assert_honest(kind, store)
        assert results["whole"].detail == "all"
        assert results["deletes"].detail == "ok"
        excluding = [one for one in index.searches if "must_not" in str(one)]
        assert excluding


@pytest.mark.parametrize("kind", OTHERS)
def test_a_server_is_asked_for_what_it_can_do(kind):
    store = checked(kind, OTHERS[kind])
    results = assert_honest(kind, store)
    if "Pinecone" in kind:
        assert results["whole"].detail == "0 of 72, the others say so"
    elif "Weaviate" in kind:
        # A name without a word is not found by its words.
        assert results["whole"].detail in ("all", "72 of 72, the others say so")
    else:
        assert results["whole"].detail == "all"


def test_redis_is_given_names_that_mean_themselves_alone(monkeypatch):
    need("langchain_redis")
    import redis
    from langchain_redis import RedisConfig, RedisVectorStore
    from redisvl.query.filter import Num

    from langchain_longrag import MaxPRetriever
    from langchain_longrag.retrieval.store_check import CheckEmbeddings

    asked, names = [], ["a.md", "two words"]

    def row(number):
        own = {"unit": names[number % 2], "start_index": 7 * number}
        fields = {"text": f"text {number}", "_metadata_json": json.dumps(own)}
        fields["vector_distance"] = str(0.1 * number)
        return {"id": f"rows:{number}", "extra_attributes": fields, "values": []}

    def execute(client, command, *args, **kwargs):
        if command == "FT.INFO":
            raise redis.ResponseError("Unknown index name")
        if command != "FT.SEARCH":
            return []
        asked.append(args[1])
        counts = args[args.index("LIMIT") + 2] == 0
        rows = [] if counts else [row(number) for number in range(4)]
        return {"results": rows, "total_results": 4, "attributes": [], "warning": []}

    monkeypatch.setattr(redis.Redis, "execute_command", execute)
    tag = {"name": "unit", "type": "tag", "attrs": {"case_sensitive": True}}
    config = RedisConfig(
        index_name="rows",
        redis_client=redis.Redis(),
        embedding_dimensions=WIDTH,
        metadata_schema=[tag, {"name": "even", "type": "numeric"}],
    )
    store = RedisVectorStore(CheckEmbeddings(), config=config)
    asked.clear()
    own = {"filter": Num("even") == 1}
    retriever = MaxPRetriever(
        vectorstore=store, unit_key="unit", k=2, search_kwargs=own, on_short="raise"
    )
    found = retriever.invoke("question 1")
    assert [one.id for one in found] == names
    assert found[0].page_content == "text 0\n\ntext 2"
    searched, *listings = asked
    assert '(@even:[1 1] @_index_name:("rows"))' in searched
    assert "=>[KNN 8 @embedding" in searched
    listing = r'((@even:[1 1] @unit:{a\.md|two\ words}) @_index_name:("rows"))'
    assert listings == [listing, listing]
    asked.clear()
    with pytest.raises(ShortResultError):
        retriever.invoke("question 1", k=3)
    assert r"(-@unit:{a\.md|two\ words})" in asked[1]
