"""Corpora with questions: prepared files, the release formats of published sets, your folders.

Reading and making questions belongs here. What is done with them does not.
"""

from longrag.evaluation.datasets.beir import read_beir
from longrag.evaluation.datasets.dataset import Dataset, GivenVectors, PassageSpan, Question
from longrag.evaluation.datasets.files import read_folder, read_prepared, read_questions
from longrag.evaluation.datasets.made import (
    MadeQuestions,
    make_questions,
    write_questions,
)
from longrag.evaluation.datasets.releases import RELEASE_FORMATS, read_release

__all__ = [
    "RELEASE_FORMATS",
    "Dataset",
    "GivenVectors",
    "MadeQuestions",
    "PassageSpan",
    "Question",
    "make_questions",
    "read_beir",
    "read_folder",
    "read_prepared",
    "read_questions",
    "read_release",
    "write_questions",
]
