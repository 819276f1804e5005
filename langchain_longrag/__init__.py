"""LongRAG for LangChain: retrievers, transformers and chains that compose with any other."""

from langchain_longrag.chains import create_longrag_chain, create_two_turn_reader
from langchain_longrag.retrievers import MaxPRetriever
from langchain_longrag.transformers import LongUnitTransformer

__all__ = [
    "LongUnitTransformer",
    "MaxPRetriever",
    "create_longrag_chain",
    "create_two_turn_reader",
]
