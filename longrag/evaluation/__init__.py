"""Metrics of answers and rankings for one question, and their means with intervals.

Metrics belong here, and what drives them over pipelines and data sets (``harness``, ``datasets``,
``judged``). Metrics are pure functions of texts and ids, so they also score what other systems
produced; nothing in the core imports this package.
"""

from longrag.evaluation import metrics
from longrag.evaluation.attributed import auto_ais, cross_encoder, lexical_stand_in
from longrag.evaluation.losses import IndexedKeys, loss, loss_counts, needs_context
from longrag.evaluation.riches_baselines import (
    BaselineAnswer,
    KeySearch,
    iterative,
    no_retrieval,
    search_and_generate,
)
from longrag.evaluation.tuning_data import (
    TuningExample,
    TuningQuestion,
    split_questions,
    tuning_examples,
    write_jsonl,
)

__all__ = [
    "BaselineAnswer",
    "IndexedKeys",
    "KeySearch",
    "TuningExample",
    "TuningQuestion",
    "auto_ais",
    "cross_encoder",
    "iterative",
    "lexical_stand_in",
    "loss",
    "loss_counts",
    "metrics",
    "needs_context",
    "no_retrieval",
    "search_and_generate",
    "split_questions",
    "tuning_examples",
    "write_jsonl",
]
