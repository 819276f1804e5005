"""Long-context retrieval: the algorithms, free of any framework.

``llama_index_longrag`` and ``langchain_longrag`` are the drop-in components; this package holds
what they share. Each folder stands where text is on its way from corpus to answer: ``ingestion``,
``indexing``, ``retrieval``, ``synthesis``.
"""

__version__ = "0.1.0"
