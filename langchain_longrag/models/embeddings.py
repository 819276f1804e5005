"""A local embedder as a LangChain embedding model."""

from __future__ import annotations

from uuid import uuid4

from langchain_core.embeddings import Embeddings

from longrag.models.embedder import Embedder
from longrag.models.minilm.embedder import MiniLmEmbedder


class LocalEmbeddings(Embeddings):
    """Embed with any ``longrag.models`` embedder, such as ``LsaEmbedder`` or ``MiniLmEmbedder``.

    Example:
        ```python
        embeddings = LocalEmbeddings(LsaEmbedder([one.page_content for one in documents]))
        store = InMemoryVectorStore.from_documents(documents, embeddings)
        (found,) = store.similarity_search("weir river", k=1)
        assert found.id == "weir.md"
        ```
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        fixed = isinstance(embedder, MiniLmEmbedder)
        self.identity = repr(embedder) if fixed else uuid4().hex
        """Names its vectors in a journal: each embedder that may be fitted has a unique name.

        What it embedded is then asked for again by another process, which costs no calls.
        """

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed texts to be searched."""
        vectors: list[list[float]] = self._embedder(texts, "document").tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """Embed a query."""
        vector: list[float] = self._embedder([text], "query")[0].tolist()
        return vector
