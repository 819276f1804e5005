"""One SQLite file with all that a question needs: pages, units, a tree, and the local embedder.

The command line and the MCP server work on such a file. What an index is belongs to ``retrieval``
and ``indexing``; here is how one is filled from a folder, asked, and how places are named.
"""
