"""Decoding that can only quote the corpus (RICHES): constraint, search, attribution."""

from longrag.decoding.generation import FinishReason, Generation, RetrievedSpan, Source, Usage

__all__ = ["FinishReason", "Generation", "RetrievedSpan", "Source", "Usage"]
