"""The order in which an index that changes is read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from longrag.calls import Flow
from longrag.errors import InvalidParameterError
from longrag.indices.corpus import CorpusIndex
from longrag.indices.corpus_state import CorpusView
from longrag.ingestion.relations import LinkSource, TitleMentions
from longrag.models.tokens import count_tokens as default_counter
from longrag.retrieval.filters import Recent
from longrag.retrieval.order import PassageOrder, retrieve_in_order
from longrag.retrieval.units import UnitIndex
from longrag.types import RetrievedUnit, TokenCounter

LINK_SOURCES: tuple[LinkSource, ...] = (TitleMentions(),)
"""Read links out of any text: those that the measurements of the order used."""

_KEPT_ORDERS = 8


def order_of(
    corpus: CorpusIndex, link_sources: Sequence[LinkSource], count_tokens: TokenCounter
) -> CorpusOrder:
    """Return the order of a corpus's passages with these settings.

    Retrievers with equal settings share one, so that making a retriever costs nothing.

    Raises:
        InvalidParameterError: the corpus embeds whole units.
    """
    made: CorpusOrder = corpus.derived.get(
        ("order", tuple(map(id, link_sources)), id(count_tokens)),
        lambda: CorpusOrder(corpus, link_sources=link_sources, count_tokens=count_tokens),
    )
    return made


class CorpusOrder:
    """The order in which a ``CorpusIndex`` is read: of its chunks, and the links of its documents.

    Links are the corpus's own, by its builder, and those that ``link_sources`` find. What a
    question needs is made at the first one with a filter, and again after a change.

    Args:
        corpus: the documents and vectors.
        link_sources: find more links; see ``longrag.ingestion.relations``.
        count_tokens: counts the tokens of a passage.

    Raises:
        InvalidParameterError: the corpus embeds whole units.
    """

    def __init__(
        self,
        corpus: CorpusIndex,
        *,
        link_sources: Sequence[LinkSource] = LINK_SOURCES,
        count_tokens: TokenCounter = default_counter,
    ) -> None:
        if corpus.builder.granularity == "unit":
            raise InvalidParameterError(
                "granularity", "unit", "chunk or document", "A passage is of one document."
            )
        self._corpus = corpus
        self._link_sources = tuple(link_sources)
        self._count_tokens = count_tokens
        self._made: tuple[UnitIndex, Recent[bytes | None, PassageOrder]] | None = None

    def over(self, view: CorpusView | None = None) -> PassageOrder:
        """Return the order of the passages of a view, by default all there are.

        Links, the statistics of words and the normalisation of scores come from these documents
        alone. The orders of the views asked for last are kept.
        """
        view = view or self._corpus.view()
        made = self._made
        if made is None or made[0] is not view.index:
            made = self._made = view.index, Recent(_KEPT_ORDERS)
        return made[1].get(view.key, lambda: self._make(view))

    def _make(self, view: CorpusView) -> PassageOrder:
        ordered = list(view.documents.values())
        links = list(self._corpus.builder.link_report(ordered).links)
        for source in self._link_sources:
            links.extend(source(ordered))
        number = {id_: i for i, id_ in enumerate(view.documents)}
        rows = view.visible.chunks if view.visible else np.arange(len(view.index.chunks))
        chunks = [view.index.chunks[row] for row in rows.tolist()]
        document_of = [number[chunk.doc_id] for chunk in chunks]
        # A blank document has no chunk, so that links with it lead nowhere.
        blank = set(range(len(ordered))).difference(document_of)
        return PassageOrder(
            chunks,
            view.index.index.vectors_of(rows),
            [pair for pair in links if blank.isdisjoint(pair)],
            document_of=document_of,
            count_tokens=self._count_tokens,
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
        """Return the passages to read for a query as units, best first.

        They are those of a view, by default of all documents.
        """
        found: list[RetrievedUnit] = yield from retrieve_in_order(
            texts, self.over(view), token_budget=token_budget, k=k, vector=vector
        )
        return found
