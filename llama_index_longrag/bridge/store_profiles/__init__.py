"""Profiles of vector stores: what is known of each class of stores, and how it is searched.

A store's peculiarities belong here; the algorithm that ranks units does not know them.
"""

from __future__ import annotations

from typing import Final

from llama_index_longrag.bridge.store_profiles.base import (
    WITHOUT_VECTOR,
    ChunkRetriever,
    NodeQuery,
    SearchSettings,
    StoreProfile,
)
from llama_index_longrag.bridge.store_profiles.documents import (
    ChromaProfile,
    DuckDBProfile,
    QdrantProfile,
)
from llama_index_longrag.bridge.store_profiles.expressions import LanceProfile, MilvusProfile
from llama_index_longrag.bridge.store_profiles.memory import FaissProfile, SimpleProfile
from llama_index_longrag.bridge.store_profiles.postgres import PostgresProfile
from llama_index_longrag.bridge.store_profiles.servers import (
    ElasticsearchProfile,
    MongoProfile,
    OpenSearchProfile,
    PineconeProfile,
    RedisProfile,
    WeaviateProfile,
)
from longrag.integration.store_profiles import StoreProfiles

__all__ = [
    "WITHOUT_VECTOR",
    "ChunkRetriever",
    "NodeQuery",
    "SearchSettings",
    "StoreProfile",
    "profile_of",
    "register_store_profile",
]

_STORES: Final = "llama_index.vector_stores"

_PROFILES: Final = StoreProfiles[StoreProfile](
    StoreProfile(),
    {
        "llama_index.core.vector_stores:SimpleVectorStore": SimpleProfile(),
        f"{_STORES}.chroma:ChromaVectorStore": ChromaProfile(),
        f"{_STORES}.duckdb:DuckDBVectorStore": DuckDBProfile(),
        f"{_STORES}.elasticsearch:ElasticsearchStore": ElasticsearchProfile(),
        f"{_STORES}.faiss:FaissVectorStore": FaissProfile(),
        f"{_STORES}.lancedb:LanceDBVectorStore": LanceProfile(),
        f"{_STORES}.milvus:MilvusVectorStore": MilvusProfile(),
        f"{_STORES}.mongodb:MongoDBAtlasVectorSearch": MongoProfile(),
        f"{_STORES}.opensearch:OpensearchVectorStore": OpenSearchProfile(),
        f"{_STORES}.pinecone:PineconeVectorStore": PineconeProfile(),
        f"{_STORES}.postgres:PGVectorStore": PostgresProfile(),
        f"{_STORES}.qdrant:QdrantVectorStore": QdrantProfile(),
        f"{_STORES}.redis:RedisVectorStore": RedisProfile(),
        f"{_STORES}.weaviate:WeaviateVectorStore": WeaviateProfile(),
    },
)

profile_of = _PROFILES.of
register_store_profile = _PROFILES.register
