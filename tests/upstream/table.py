"""Which of LlamaIndex's tests do not pass with our class in the place of its own, and why.

Written for llama-index-core 0.14; its tests come from a checkout, since the package holds none.
"""

from __future__ import annotations

INDEXES = (
    "chat_engine",
    "indices",
    "objects",
    "playground",
    "postprocessor",
    "query_engine",
    "response_synthesizers",
    "retrievers",
    "tools",
    "vector_stores",
)
INGESTION = ("ingestion",)
"""The suites of LlamaIndex's core, its folders of tests. Those of ingestion run by themselves: they
fork, which is safe only before another test has started threads."""

SUITES = {
    "MaxPRetriever": (INDEXES, INGESTION),
    "HybridRetriever": (INDEXES, INGESTION),
    "LongRAGIndex": (INDEXES, INGESTION),
    "RaptorIndex": (INDEXES, INGESTION),
    "LongUnitNodeParser": (INGESTION,),
}
"""What runs with each class of ours."""

REASONS: dict[str, dict[str, str]] = {}
