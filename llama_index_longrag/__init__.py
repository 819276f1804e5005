"""LongRAG for LlamaIndex: subclasses of the framework's own parts, passed where it takes them."""

from llama_index_longrag.embeddings import LocalEmbedding
from llama_index_longrag.evidence import EvidenceRetriever
from llama_index_longrag.indices import LongRAGIndex
from llama_index_longrag.llms import ExtractiveLLM
from llama_index_longrag.node_parsers import LongUnitNodeParser
from llama_index_longrag.query_engines import RichesQueryEngine
from llama_index_longrag.raptor import RaptorIndex
from llama_index_longrag.raptor_retriever import RaptorRetriever
from llama_index_longrag.response_synthesizers import TwoTurnSynthesizer
from llama_index_longrag.retrievers import MaxPRetriever
from llama_index_longrag.riches import RichesLLM
from llama_index_longrag.tools import LongUnitTool

__all__ = [
    "EvidenceRetriever",
    "ExtractiveLLM",
    "LocalEmbedding",
    "LongRAGIndex",
    "LongUnitNodeParser",
    "LongUnitTool",
    "MaxPRetriever",
    "RaptorIndex",
    "RaptorRetriever",
    "RichesLLM",
    "RichesQueryEngine",
    "TwoTurnSynthesizer",
]
