"""Decoding that can only quote the corpus (RICHES): constraint, search, attribution."""

from longrag.decoding.answers import parse_answer, riches_prompt, thoughts
from longrag.decoding.attribution import sources
from longrag.decoding.building import build_decoder
from longrag.decoding.constraint import Constraint, Moves
from longrag.decoding.decoder import RichesDecoder, SearchMode
from longrag.decoding.generation import (
    Delta,
    FinishReason,
    Generation,
    RetrievedSpan,
    Source,
    Usage,
)
from longrag.decoding.place import Closed, Place
from longrag.decoding.processor import RichesLogitsProcessor
from longrag.decoding.retrieving import Retrieved, retrieve

__all__ = [
    "Closed",
    "Constraint",
    "Delta",
    "FinishReason",
    "Generation",
    "Moves",
    "Place",
    "Retrieved",
    "RetrievedSpan",
    "RichesDecoder",
    "RichesLogitsProcessor",
    "SearchMode",
    "Source",
    "Usage",
    "build_decoder",
    "parse_answer",
    "retrieve",
    "riches_prompt",
    "sources",
    "thoughts",
]
