"""LongRAG for LangChain: retrievers, transformers and chains that compose with any other."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
