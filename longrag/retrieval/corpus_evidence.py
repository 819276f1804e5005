"""Evidence assembly over an index that changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from longrag.calls import Flow
from longrag.errors import InvalidParameterError
from longrag.ingestion.relations import (
    LinkSource,
    SharedEntities,
    TitleMentions,
    is_symmetric,
)
from longrag.retrieval.corpus import CorpusIndex
from longrag.retrieval.corpus_state import CorpusView
from longrag.retrieval.evidence import EvidenceIndex, retrieve_evidence
from longrag.retrieval.filters import Recent
from longrag.retrieval.units import UnitIndex
from longrag.types import RetrievedUnit

LINK_SOURCES: tuple[LinkSource, ...] = (TitleMentions(), SharedEntities())
"""Read links out of any text: the setting that the measurements of evidence mode used."""


_KEPT_INDEXES = 8


def evidence_of(
    corpus: CorpusIndex, link_sources: Sequence[LinkSource], settings: Mapping[str, Any]
) -> CorpusEvidence:
    """Return the evidence mode of a corpus with these settings.

    Retrievers with equal settings share one, so that making a retriever costs nothing.
    """
    key = (tuple(map(id, link_sources)), tuple(sorted(settings.items())))
    made: CorpusEvidence = corpus.derived.get(
        key, lambda: CorpusEvidence(corpus, link_sources=link_sources, **settings)
    )
    return made


class CorpusEvidence:
    """The evidence mode of a ``CorpusIndex``: its chunks, and the links between their documents.

    Links are the corpus's own, by its builder, and those that ``link_sources`` find; what symmetric
    sources find relates documents without linking them. What it needs is made at the first question
    with a filter, and again after a change.

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
        self._made: tuple[UnitIndex, Recent[bytes | None, EvidenceIndex]] | None = None
        EvidenceIndex([], np.empty((0, 1), np.float32), **settings)

    def index(self, view: CorpusView | None = None) -> EvidenceIndex:
        """Return the evidence index over the documents of a view, by default all there are.

        Links, the statistics of words and the normalisation of scores come from these documents
        alone. The indexes of the views asked for last are kept.
        """
        view = view or self._corpus.view()
        made = self._made
        if made is None or made[0] is not view.index:
            made = self._made = view.index, Recent(_KEPT_INDEXES)
        return made[1].get(view.key, lambda: self._make(view))

    def _make(self, view: CorpusView) -> EvidenceIndex:
        ordered = list(view.documents.values())
        links = list(self._corpus.builder.link_report(ordered).links)
        related: list[tuple[int, int]] = []
        for source in self._link_sources:
            (related if is_symmetric(source) else links).extend(source(ordered))
        number = {id_: i for i, id_ in enumerate(view.documents)}
        rows = view.visible.chunks if view.visible else np.arange(len(view.index.chunks))
        chunks = [view.index.chunks[row] for row in rows.tolist()]
        document_of = [number[chunk.doc_id] for chunk in chunks]
        # A blank document has no chunk, so that links with it lead nowhere.
        blank = set(range(len(ordered))).difference(document_of)
        return EvidenceIndex(
            chunks,
            view.index.index.vectors_of(rows),
            [pair for pair in links if blank.isdisjoint(pair)],
            related=[pair for pair in related if blank.isdisjoint(pair)],
            document_of=document_of,
            **self._settings,
        )

    def retrieve(
        self,
        texts: Sequence[str],
        *,
        token_budget: int | None,
        k: int | None = None,
        vector: npt.ArrayLike | None = None,
        view: CorpusView | None = None,
    ) -> Flow[list[RetrievedUnit]]:
        """Return the evidence for a query as units, best first; see ``retrieve_evidence``.

        It is found among the documents of a view, by default all there are.
        """
        found: list[RetrievedUnit] = yield from retrieve_evidence(
            texts, self.index(view), token_budget=token_budget, k=k, vector=vector
        )
        return found
