"""Decoding that can only quote the corpus (RICHES): constraint, search, attribution."""

from typing import TYPE_CHECKING

from longrag import lazily

if TYPE_CHECKING:
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
else:
    __getattr__, __dir__ = lazily(
        globals(),
        {
            "answers": "parse_answer riches_prompt thoughts",
            "attribution": "sources",
            "building": "build_decoder",
            "constraint": "Constraint Moves",
            "decoder": "RichesDecoder SearchMode",
            "generation": "Delta FinishReason Generation RetrievedSpan Source Usage",
            "place": "Closed Place",
            "processor": "RichesLogitsProcessor",
            "retrieving": "Retrieved retrieve",
        },
    )

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
