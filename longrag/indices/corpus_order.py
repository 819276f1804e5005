"""The order in which an index that changes is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from longrag.calls import Flow
from longrag.errors import InvalidParameterError
from longrag.indices.corpus import CorpusIndex
from longrag.indices.corpus_state import CorpusView
from longrag.ingestion.relations import LinkSource, TitleMentions
from longrag.models.tokens import count_tokens as default_counter
from longrag.retrieval.assembly import keep_documents, place
from longrag.retrieval.filters import Recent
from longrag.retrieval.order import OrderedPassage, PassageOrder
from longrag.retrieval.reading import Ranked, Shown, check_token_budget, read, whole_units
from longrag.retrieval.units import UnitIndex, check_k, embed_query
from longrag.types import Chunk, RankedPassage, RetrievedUnit, TokenCounter

Form: TypeAlias = Literal["units", "passages"]
"""What is returned of an order: its stretches by unit, each unit once, or each passage alone."""

LINK_SOURCES: tuple[LinkSource, ...] = (TitleMentions(),)
"""Read links out of any text: those that the measurements of the order used."""

_KEPT_ORDERS: Final = 8
_UNITS: Final = 4


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
        form: Form,
        token_budget: int | None,
        k: int | None = None,
        vector: npt.ArrayLike | None = None,
        view: CorpusView | None = None,
        shown: Shown | None = None,
    ) -> Flow[list[RetrievedUnit]]:
        """Return what is read for a query, best first; nothing is embedded for an empty index.

        Args:
            texts: the query's texts.
            form: "units" or "passages".
            token_budget: tokens of all texts, as they are shown, joined by blank lines; None for no
                limit.
            k: the most units or passages; None for as many as fit, and 4 units without a budget.
            vector: the query's embedding, when the caller has it.
            view: the documents that may be seen, by default all.
            shown: returns the text by which a model is shown a unit; by default its own.

        Raises:
            EmbeddingError: the embedder returned unusable vectors.
            InvalidParameterError: an argument is not allowed.
        """
        check_token_budget(token_budget)
        if k is not None:
            check_k(k)
        view = view or self._corpus.view()
        order = self.over(view)
        if not order.passages:
            return []
        if vector is None:
            vector = yield from embed_query(texts)
        question = "\n".join(texts)
        if form == "passages":
            passages = map(order.unit, order.search(question, vector, k=k))
            ranked: Iterable[Ranked] = ((one, one.passages[0]) for one in passages)
        else:
            most = _UNITS if k is None and token_budget is None else k
            units = _UnitsOf(view)
            found = order.search(question, vector, k=most, groups=units.groups)
            ranked = map(units.place, found)
        if token_budget is None:
            return whole_units(ranked)
        return [
            cut
            for _, cut in read(ranked, token_budget, count_tokens=self._count_tokens, shown=shown)
        ]


class _UnitsOf:
    """The units of the passages of a view, as they may be seen."""

    def __init__(self, view: CorpusView) -> None:
        self._view = view
        numbers = view.index.index.unit_of_chunk
        self.groups = numbers if view.visible is None else numbers[view.visible.chunks]
        self._found: dict[int, RetrievedUnit] = {}

    def place(self, one: OrderedPassage) -> Ranked:
        """Return a passage in its unit."""
        number, visible = int(self.groups[one.index]), self._view.visible
        chunk = cast("Chunk", one.passage)
        found = self._found.get(number)
        if found is None:
            unit = self._view.index.units[number]
            found = RetrievedUnit(unit, one.score, place(chunk, unit), ranking="order")
            if visible is not None:
                found = keep_documents(found, visible.documents, count_tokens=visible.count_tokens)
            self._found[number] = found
        placed = place(chunk, found.unit)
        return found, RankedPassage(placed.start, placed.end, one.rank, one.score)
