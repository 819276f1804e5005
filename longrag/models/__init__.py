"""Small protocols for what the outside provides, and local backends that need no key."""

from typing import TYPE_CHECKING

from longrag import lazily

if TYPE_CHECKING:
    from longrag.models.cross_encoder import CrossEncoderScorer
    from longrag.models.embedder import Embedder, LsaEmbedder, MiniLmEmbedder
    from longrag.models.language_model import LanguageModel, Next, Scores, Session
    from longrag.models.llama_cpp_model import LlamaCppLanguageModel, LlamaCppTokenizer
    from longrag.models.monot5 import MonoT5Scorer
    from longrag.models.rankllama import RankLlamaScorer
    from longrag.models.scorers import Scorer
    from longrag.models.tilde import TildeExpander, TildeModel
    from longrag.models.tilde_terms import TildeTokenizer
    from longrag.models.tokenizer import Tokenizer
    from longrag.models.tokens import count_tokens
    from longrag.models.transformers_model import TransformersLanguageModel
    from longrag.models.transformers_tokenizer import TransformersTokenizer
    from longrag.models.vllm_model import VllmLanguageModel
else:
    __getattr__, __dir__ = lazily(
        globals(),
        {
            "cross_encoder": "CrossEncoderScorer",
            "embedder": "Embedder LsaEmbedder MiniLmEmbedder",
            "language_model": "LanguageModel Next Scores Session",
            "llama_cpp_model": "LlamaCppLanguageModel LlamaCppTokenizer",
            "monot5": "MonoT5Scorer",
            "rankllama": "RankLlamaScorer",
            "scorers": "Scorer",
            "tilde": "TildeExpander TildeModel",
            "tilde_terms": "TildeTokenizer",
            "tokenizer": "Tokenizer",
            "tokens": "count_tokens",
            "transformers_model": "TransformersLanguageModel",
            "transformers_tokenizer": "TransformersTokenizer",
            "vllm_model": "VllmLanguageModel",
        },
    )

__all__ = [
    "CrossEncoderScorer",
    "Embedder",
    "LanguageModel",
    "LlamaCppLanguageModel",
    "LlamaCppTokenizer",
    "LsaEmbedder",
    "MiniLmEmbedder",
    "MonoT5Scorer",
    "Next",
    "RankLlamaScorer",
    "Scorer",
    "Scores",
    "Session",
    "TildeExpander",
    "TildeModel",
    "TildeTokenizer",
    "Tokenizer",
    "TransformersLanguageModel",
    "TransformersTokenizer",
    "VllmLanguageModel",
    "count_tokens",
]
