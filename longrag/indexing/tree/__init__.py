"""Trees of summaries (RAPTOR): clusterers, summarizers, and what builds and changes a tree.

Searching a tree is in ``longrag.retrieval``.
"""
