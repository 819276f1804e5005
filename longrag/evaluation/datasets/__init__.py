"""Corpora with questions: prepared files, the release formats of published sets, your folders.

Reading and making questions belongs here. What is done with them does not.
"""

from longrag.evaluation.datasets.dataset import Dataset, Question

__all__ = [
    "Dataset",
    "Question",
]
