"""A local embedder as a LangChain embedding model."""

from __future__ import annotations

from langchain_core.embeddings import Embeddings

from longrag.models.embedder import Embedder


class LocalEmbeddings(Embeddings):
    """Embed with any ``longrag.models`` embedder, such as ``LsaEmbedder`` or ``MiniLmEmbedder``.

    Example: ``LocalEmbeddings(LsaEmbedder(texts))``.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts to be searched."""
        vectors: list[list[float]] = self._embedder(texts, "document").tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """Embed a query."""
        vector: list[float] = self._embedder([text], "query")[0].tolist()
        return vector
