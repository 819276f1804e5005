"""LongRAG for LangChain: retrievers, transformers and chains that compose with any other."""

from typing import TYPE_CHECKING

from longrag import lazily

if TYPE_CHECKING:
    from langchain_longrag.chains import (
        ReaderSettings,
        create_longrag_chain,
        create_two_turn_reader,
    )
    from langchain_longrag.chat_models import ExtractiveChatModel
    from langchain_longrag.chunk_metadata import ChunkMetadataTransformer
    from langchain_longrag.compression import CompressDocuments
    from langchain_longrag.compressors import (
        MonoT5Rerank,
        RepackDocuments,
        ScorerRerank,
        TildeRerank,
    )
    from langchain_longrag.embeddings import LocalEmbeddings
    from langchain_longrag.evidence import EvidenceRetriever
    from langchain_longrag.gates import answer_alone, create_query_gate
    from langchain_longrag.hybrid import HybridRetriever
    from langchain_longrag.indexes import LongRAGIndex
    from langchain_longrag.multimodal import MediaFinder
    from langchain_longrag.query_transforms import QueryTransformRetriever
    from langchain_longrag.raptor import RaptorIndex, RaptorRetriever
    from langchain_longrag.recipes import RecipeSettings, balanced_efficiency, best_performance
    from langchain_longrag.retrievers import MaxPRetriever
    from langchain_longrag.riches import ChatRiches
    from langchain_longrag.riches_retriever import RichesRetriever
    from langchain_longrag.splitters import MetadataReplacement, SentenceWindowTransformer
    from langchain_longrag.tools import create_longrag_tool
    from langchain_longrag.transformers import LongUnitTransformer
else:
    __getattr__, __dir__ = lazily(
        globals(),
        {
            "chains": "ReaderSettings create_longrag_chain create_two_turn_reader",
            "chat_models": "ExtractiveChatModel",
            "chunk_metadata": "ChunkMetadataTransformer",
            "compression": "CompressDocuments",
            "compressors": "MonoT5Rerank RepackDocuments ScorerRerank TildeRerank",
            "embeddings": "LocalEmbeddings",
            "evidence": "EvidenceRetriever",
            "gates": "answer_alone create_query_gate",
            "hybrid": "HybridRetriever",
            "indexes": "LongRAGIndex",
            "multimodal": "MediaFinder",
            "query_transforms": "QueryTransformRetriever",
            "raptor": "RaptorIndex RaptorRetriever",
            "recipes": "RecipeSettings balanced_efficiency best_performance",
            "retrievers": "MaxPRetriever",
            "riches": "ChatRiches",
            "riches_retriever": "RichesRetriever",
            "splitters": "MetadataReplacement SentenceWindowTransformer",
            "tools": "create_longrag_tool",
            "transformers": "LongUnitTransformer",
        },
    )

__all__ = [
    "ChatRiches",
    "ChunkMetadataTransformer",
    "CompressDocuments",
    "EvidenceRetriever",
    "ExtractiveChatModel",
    "HybridRetriever",
    "LocalEmbeddings",
    "LongRAGIndex",
    "LongUnitTransformer",
    "MaxPRetriever",
    "MediaFinder",
    "MetadataReplacement",
    "MonoT5Rerank",
    "QueryTransformRetriever",
    "RaptorIndex",
    "RaptorRetriever",
    "ReaderSettings",
    "RecipeSettings",
    "RepackDocuments",
    "RichesRetriever",
    "ScorerRerank",
    "SentenceWindowTransformer",
    "TildeRerank",
    "answer_alone",
    "balanced_efficiency",
    "best_performance",
    "create_longrag_chain",
    "create_longrag_tool",
    "create_query_gate",
    "create_two_turn_reader",
]
