"""How good answers and rankings are: metrics of one question, and means with their intervals.

Metrics belong here, and what runs a whole evaluation over any other part of the core. They are pure
functions of texts and ids, so they also score what other systems produced; nothing in the core
imports this package.
"""

from longrag.evaluation.metrics import (
    Estimate,
    Meteor,
    RougeL,
    accuracy,
    all_gold,
    answer_recall,
    average_precision,
    bleu,
    bootstrap_interval,
    contains_exact_match,
    exact_match,
    gold_recall,
    mean_average_precision,
    meteor,
    mrr,
    ndcg,
    normalize_answer,
    paired_difference_interval,
    precision,
    recall,
    reciprocal_rank,
    refined_exact_match,
    rouge_l,
    token_f1,
)

__all__ = [
    "Estimate",
    "Meteor",
    "RougeL",
    "accuracy",
    "all_gold",
    "answer_recall",
    "average_precision",
    "bleu",
    "bootstrap_interval",
    "contains_exact_match",
    "exact_match",
    "gold_recall",
    "mean_average_precision",
    "meteor",
    "mrr",
    "ndcg",
    "normalize_answer",
    "paired_difference_interval",
    "precision",
    "recall",
    "reciprocal_rank",
    "refined_exact_match",
    "rouge_l",
    "token_f1",
]
