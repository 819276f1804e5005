"""The modules composed: one workflow, and the paper's two recipes as its settings."""

from typing import TYPE_CHECKING

from longrag import lazily

if TYPE_CHECKING:
    from longrag.recipes.modules import (
        Compressor,
        Hybrid,
        QueryGate,
        QueryTransform,
        Refine,
        Refiner,
        Retriever,
        compressing,
        refined_outside,
        reranking,
        search_by_text,
        search_by_vector,
        search_each,
    )
    from longrag.recipes.passages import Passage, as_passage
    from longrag.recipes.settings import balanced_efficiency, best_performance
    from longrag.recipes.trace import Flowing, Seen, Step, Trace
    from longrag.recipes.workflow import (
        Answer,
        Prepared,
        Recipe,
        Repacker,
    )
else:
    __getattr__, __dir__ = lazily(
        globals(),
        {
            "modules": (
                "Compressor Hybrid QueryGate QueryTransform Refine Refiner Retriever compressing "
                "refined_outside reranking search_by_text search_by_vector search_each"
            ),
            "passages": "Passage as_passage",
            "settings": "balanced_efficiency best_performance",
            "trace": "Flowing Seen Step Trace",
            "workflow": "Answer Prepared Recipe Repacker",
        },
    )

__all__ = [
    "Answer",
    "Compressor",
    "Flowing",
    "Hybrid",
    "Passage",
    "Prepared",
    "QueryGate",
    "QueryTransform",
    "Recipe",
    "Refine",
    "Refiner",
    "Repacker",
    "Retriever",
    "Seen",
    "Step",
    "Trace",
    "as_passage",
    "balanced_efficiency",
    "best_performance",
    "compressing",
    "refined_outside",
    "reranking",
    "search_by_text",
    "search_by_vector",
    "search_each",
]
