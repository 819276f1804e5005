"""LongRAG for LlamaIndex: subclasses of the framework's own parts, passed where it takes them."""

from typing import TYPE_CHECKING

from longrag import lazily

if TYPE_CHECKING:
    from llama_index_longrag.compression import CompressPostprocessor
    from llama_index_longrag.embeddings import LocalEmbedding
    from llama_index_longrag.evidence import EvidenceRetriever
    from llama_index_longrag.extractors import ChunkMetadataExtractor
    from llama_index_longrag.gates import QueryClassifierQueryEngine
    from llama_index_longrag.hybrid import HybridRetriever
    from llama_index_longrag.indices import LongRAGIndex
    from llama_index_longrag.llms import ExtractiveLLM
    from llama_index_longrag.multimodal import MediaQueryEngine
    from llama_index_longrag.node_parsers import LongUnitNodeParser
    from llama_index_longrag.postprocessors import (
        MonoT5Rerank,
        RepackPostprocessor,
        ScorerRerank,
        TildeRerank,
    )
    from llama_index_longrag.query_engines import RichesQueryEngine
    from llama_index_longrag.query_transforms import AsyncTransformRetriever, HydeTransform
    from llama_index_longrag.raptor import RaptorIndex
    from llama_index_longrag.raptor_retriever import RaptorRetriever
    from llama_index_longrag.recipes import (
        RecipeQueryEngine,
        RecipeSynthesizer,
        balanced_efficiency,
        best_performance,
    )
    from llama_index_longrag.response_synthesizers import TwoTurnSynthesizer
    from llama_index_longrag.retrievers import MaxPRetriever
    from llama_index_longrag.riches import RichesLLM
    from llama_index_longrag.tools import LongUnitTool
else:
    __getattr__, __dir__ = lazily(
        globals(),
        {
            "compression": "CompressPostprocessor",
            "embeddings": "LocalEmbedding",
            "evidence": "EvidenceRetriever",
            "extractors": "ChunkMetadataExtractor",
            "gates": "QueryClassifierQueryEngine",
            "hybrid": "HybridRetriever",
            "indices": "LongRAGIndex",
            "llms": "ExtractiveLLM",
            "multimodal": "MediaQueryEngine",
            "node_parsers": "LongUnitNodeParser",
            "postprocessors": "MonoT5Rerank RepackPostprocessor ScorerRerank TildeRerank",
            "query_engines": "RichesQueryEngine",
            "query_transforms": "AsyncTransformRetriever HydeTransform",
            "raptor": "RaptorIndex",
            "raptor_retriever": "RaptorRetriever",
            "recipes": "RecipeQueryEngine RecipeSynthesizer balanced_efficiency best_performance",
            "response_synthesizers": "TwoTurnSynthesizer",
            "retrievers": "MaxPRetriever",
            "riches": "RichesLLM",
            "tools": "LongUnitTool",
        },
    )

__all__ = [
    "AsyncTransformRetriever",
    "ChunkMetadataExtractor",
    "CompressPostprocessor",
    "EvidenceRetriever",
    "ExtractiveLLM",
    "HybridRetriever",
    "HydeTransform",
    "LocalEmbedding",
    "LongRAGIndex",
    "LongUnitNodeParser",
    "LongUnitTool",
    "MaxPRetriever",
    "MediaQueryEngine",
    "MonoT5Rerank",
    "QueryClassifierQueryEngine",
    "RaptorIndex",
    "RaptorRetriever",
    "RecipeQueryEngine",
    "RecipeSynthesizer",
    "RepackPostprocessor",
    "RichesLLM",
    "RichesQueryEngine",
    "ScorerRerank",
    "TildeRerank",
    "TwoTurnSynthesizer",
    "balanced_efficiency",
    "best_performance",
]
