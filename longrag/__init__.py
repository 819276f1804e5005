"""Long-context retrieval: the algorithms, free of any framework.

``llama_index_longrag`` and ``langchain_longrag`` are the drop-in components; this package holds
what they share. Each folder is one step of text on its way from corpus to answer: ``ingestion``,
``indexing``, ``retrieval``, ``synthesis``.
"""

import logging

# The loggers are silent unless an application sets up logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.1.0"
