"""Small protocols for what the outside provides, and local backends that need no key."""

from longrag.models.embedder import Embedder, LsaEmbedder, MiniLmEmbedder
from longrag.models.tokenizer import Tokenizer
from longrag.models.tokens import count_tokens

__all__ = ["Embedder", "LsaEmbedder", "MiniLmEmbedder", "Tokenizer", "count_tokens"]
