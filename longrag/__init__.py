"""Long-context retrieval: the algorithms, free of any framework.

``llama_index_longrag`` and ``langchain_longrag`` are the drop-in components; this package holds
what they share. Each folder is one step of text on its way from corpus to answer: ``ingestion``,
``indexing``, ``retrieval``, ``synthesis``.
"""

import sys

if (
    sys.argv[:1] == ["-m"]
    and sys.orig_argv[-len(sys.argv)] in ("longrag", "-mlongrag")
    and not getattr(sys.flags, "safe_path", sys.flags.isolated)
):
    # `python -m longrag` searches the current folder first, where documents of others may lie. What
    # the interpreter imports before this line, and this package, it has looked for there.
    del sys.path[0]

import logging

# The loggers are silent unless an application sets up logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.1.0"
