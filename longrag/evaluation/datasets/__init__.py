"""Corpora with questions: prepared files, the release formats of published sets, your folders.

Reading and making questions belongs here. What is done with them does not.
"""

from longrag.evaluation.datasets.beir import read_beir
from longrag.evaluation.datasets.dataset import Dataset, Question
from longrag.evaluation.datasets.files import read_folder, read_prepared
from longrag.evaluation.datasets.releases import read_release

__all__ = [
    "Dataset",
    "Question",
    "read_beir",
    "read_folder",
    "read_prepared",
    "read_release",
]
