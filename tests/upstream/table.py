"""Which of LlamaIndex's tests do not pass with our class in the place of its own, and why.

Written for llama-index-core 0.14; its tests come from a checkout, since the package holds none.
"""

from __future__ import annotations

_INDEXES = (
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

SUITES: dict[str, tuple[str, ...]] = {
    "MaxPRetriever": (*_INDEXES, "ingestion"),
    "HybridRetriever": (*_INDEXES, "ingestion"),
    "LongRAGIndex": (*_INDEXES, "ingestion"),
    "RaptorIndex": (*_INDEXES, "ingestion"),
    "LongUnitNodeParser": ("ingestion",),
}
"""The suites of LlamaIndex's core, its folders of tests, that run with each class of ours."""

REASONS: dict[str, dict[str, str]] = {}
