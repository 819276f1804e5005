"""Pipelines that answer: the package's own, made of its modules, and those of the frameworks."""

from __future__ import annotations

from longrag.evaluation.harness.corpora import Corpus
from longrag.evaluation.harness.imported import ImportedSystem
from longrag.evaluation.harness.index_search import EvidenceSystem, TreeSystem
from longrag.evaluation.harness.outcomes import System
from longrag.evaluation.harness.quoting import RichesSystem
from longrag.evaluation.harness.settings import Pipeline, PipelineSettings
from longrag.evaluation.harness.unit_search import UnitSystem
from longrag.evaluation.harness.word_list import WordListSystem


def build_system(pipeline: Pipeline, settings: PipelineSettings, corpus: Corpus) -> System:
    """Build a pipeline over a corpus.

    Raises:
        InvalidParameterError: settings that do not fit together or to the corpus, or ``make``
            returned something that cannot be asked.
        Exception: what ``make`` raises.
    """
    if pipeline.make is not None:
        return ImportedSystem(pipeline, settings, corpus)
    if settings.unit in ("tree", "traversal"):
        return TreeSystem(settings, corpus)
    if settings.unit == "quote":
        return RichesSystem(settings, corpus)
    if settings.unit == "evidence":
        return EvidenceSystem(settings, corpus)
    if settings.unit == "words":
        return WordListSystem(settings, corpus)
    return UnitSystem(settings, corpus)
