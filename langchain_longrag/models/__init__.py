"""The package's own models as LangChain's: a local embedder and the extractive reader."""
