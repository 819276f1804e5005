"""Evidence assembly over an index that changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from longrag.calls import Flow
from longrag.errors import InvalidParameterError
from longrag.ingestion.relations import LinkSource, SharedEntities, TitleMentions
from longrag.retrieval.corpus import CorpusIndex
from longrag.retrieval.evidence import EvidenceIndex, retrieve_evidence
from longrag.retrieval.units import UnitIndex
from longrag.types import RetrievedUnit

LINK_SOURCES: tuple[LinkSource, ...] = (TitleMentions(), SharedEntities())
"""Read links out of any text: the setting that the measurements of evidence mode used."""


class CorpusEvidence:
    """The evidence mode of a ``CorpusIndex``: its chunks, and the links between their documents.

    Links are the corpus's own, by its builder, and those that ``link_sources`` find. What it needs
    is made at the first question and again after a change.

    Args:
        corpus: the documents and vectors.
        link_sources: find more links; see ``longrag.ingestion.relations``.
        settings: the keyword arguments of ``EvidenceIndex``.

    Raises:
        InvalidParameterError: the corpus embeds whole units, or a setting is not allowed.
    """

    def __init__(
        self,
        corpus: CorpusIndex,
        *,
        link_sources: Sequence[LinkSource] = LINK_SOURCES,
        **settings: Any,
    ) -> None:
        if corpus.builder.granularity == "unit":
            raise InvalidParameterError(
                "granularity", "unit", "chunk or document", "Evidence names one document a passage."
            )
        self._corpus = corpus
        self._link_sources = tuple(link_sources)
        self._settings = settings
        self._made: tuple[UnitIndex, EvidenceIndex] | None = None
        EvidenceIndex([], np.empty((0, 1), np.float32), **settings)

    def index(self) -> EvidenceIndex:
        """Return the evidence index over the documents there are."""
        documents, units = self._corpus.snapshot()
        if self._made is not None and self._made[0] is units:
            return self._made[1]
        ordered = list(documents.values())
        links = list(self._corpus.builder.link_report(ordered).links)
        for source in self._link_sources:
            links.extend(source(ordered))
        number = {id_: i for i, id_ in enumerate(documents)}
        document_of = [number[chunk.doc_id] for chunk in units.chunks]
        # A blank document has no chunk, so that links with it lead nowhere.
        blank = set(range(len(ordered))).difference(document_of)
        index = EvidenceIndex(
            units.chunks,
            units.index.vectors,
            [pair for pair in links if blank.isdisjoint(pair)],
            document_of=document_of,
            **self._settings,
        )
        self._made = (units, index)
        return index

    def retrieve(
        self,
        texts: Sequence[str],
        *,
        token_budget: int | None,
        vector: npt.ArrayLike | None = None,
    ) -> Flow[list[RetrievedUnit]]:
        """Return the evidence for a query as units, best first; see ``retrieve_evidence``."""
        found: list[RetrievedUnit] = yield from retrieve_evidence(
            texts, self.index(), token_budget=token_budget, vector=vector
        )
        return found
