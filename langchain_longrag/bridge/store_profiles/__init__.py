"""Profiles of vector stores: what is known of each class of stores, and how it is asked.

A store's peculiarities belong here; the algorithm that ranks units does not know them.
"""

from __future__ import annotations

from typing import Final

from langchain_longrag.bridge.store_profiles.base import (
    DocumentQuery,
    FilteredProfile,
    StoreProfile,
    UnitFilter,
)
from langchain_longrag.bridge.store_profiles.databases import (
    ChromaProfile,
    LanceProfile,
    MilvusProfile,
    QdrantProfile,
)
from langchain_longrag.bridge.store_profiles.memory import (
    DuckDBProfile,
    FaissProfile,
    InMemoryProfile,
)
from langchain_longrag.bridge.store_profiles.postgres import (
    PGVectorProfile,
    PGVectorStoreProfile,
)
from langchain_longrag.bridge.store_profiles.servers import (
    ElasticsearchProfile,
    MongoProfile,
    OpenSearchProfile,
    PineconeProfile,
    RedisProfile,
    WeaviateProfile,
)
from longrag.integration.store_profiles import StoreProfiles

__all__ = [
    "DocumentQuery",
    "FilteredProfile",
    "StoreProfile",
    "UnitFilter",
    "profile_of",
    "register_store_profile",
]

_COMMUNITY: Final = "langchain_community.vectorstores"

_PROFILES: Final = StoreProfiles[StoreProfile](
    StoreProfile(),
    {
        "langchain_core.vectorstores:InMemoryVectorStore": InMemoryProfile(),
        "langchain_chroma:Chroma": ChromaProfile(),
        "langchain_elasticsearch:ElasticsearchStore": ElasticsearchProfile(),
        "langchain_milvus:Milvus": MilvusProfile(),
        "langchain_mongodb:MongoDBAtlasVectorSearch": MongoProfile(),
        "langchain_pinecone:PineconeVectorStore": PineconeProfile(),
        "langchain_postgres:PGVector": PGVectorProfile(),
        "langchain_postgres.v2:AsyncPGVectorStore": PGVectorStoreProfile(),
        "langchain_postgres.v2:PGVectorStore": PGVectorStoreProfile(),
        "langchain_qdrant:QdrantVectorStore": QdrantProfile(),
        "langchain_redis:RedisVectorStore": RedisProfile(),
        "langchain_weaviate:WeaviateVectorStore": WeaviateProfile(),
        f"{_COMMUNITY}.duckdb:DuckDB": DuckDBProfile(),
        f"{_COMMUNITY}.faiss:FAISS": FaissProfile(),
        f"{_COMMUNITY}.lancedb:LanceDB": LanceProfile(),
        f"{_COMMUNITY}.opensearch_vector_search:OpenSearchVectorSearch": OpenSearchProfile(),
    },
)

profile_of = _PROFILES.of
register_store_profile = _PROFILES.register
