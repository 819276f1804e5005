"""The package's own models as LlamaIndex's: a local embedder and the extractive reader."""
