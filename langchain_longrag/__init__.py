"""LongRAG for LangChain: retrievers, transformers and chains that compose with any other."""

from langchain_longrag.chains import ReaderSettings, create_longrag_chain, create_two_turn_reader
from langchain_longrag.chat_models import ExtractiveChatModel
from langchain_longrag.embeddings import LocalEmbeddings
from langchain_longrag.evidence import EvidenceRetriever
from langchain_longrag.indexes import LongRAGIndex
from langchain_longrag.raptor import RaptorIndex, RaptorRetriever
from langchain_longrag.retrievers import MaxPRetriever
from langchain_longrag.riches import ChatRiches
from langchain_longrag.riches_retriever import RichesRetriever
from langchain_longrag.tools import create_longrag_tool
from langchain_longrag.transformers import LongUnitTransformer

__all__ = [
    "ChatRiches",
    "EvidenceRetriever",
    "ExtractiveChatModel",
    "LocalEmbeddings",
    "LongRAGIndex",
    "LongUnitTransformer",
    "MaxPRetriever",
    "RaptorIndex",
    "RaptorRetriever",
    "ReaderSettings",
    "RichesRetriever",
    "create_longrag_chain",
    "create_longrag_tool",
    "create_two_turn_reader",
]
