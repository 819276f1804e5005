"""Indexes over documents that come, change and go.

An index makes its retriever, so this room is above ``retrieval``.
"""
