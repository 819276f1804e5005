"""What keywords search beside another retriever: the documents that it searches.

A source is asked for its state before each search; one that follows an index gives another state
when the index has changed, and is then read again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_longrag.bridge.documents import StoredUnits, from_result, to_core, units_of_documents
from langchain_longrag.bridge.passages import to_passage
from langchain_longrag.bridge.tree_nodes import from_node
from langchain_longrag.indices.long_units import LongRAGIndex
from langchain_longrag.indices.raptor import RaptorRetriever
from langchain_longrag.retrieval.base_retrievers import Beneath
from langchain_longrag.retrieval.maxp import MaxPRetriever
from longrag.errors import InvalidDocumentError, InvalidParameterError
from longrag.indexing.keywords import KeywordIndex, Tokenizer, UnitKeywords
from longrag.ingestion.units import embedding_text
from longrag.models.tokens import count_tokens
from longrag.recipes.passages import Passage
from longrag.retrieval.assembly import place
from longrag.types import Chunk, LongUnit, RetrievedNode, RetrievedUnit, stable_id

Make = Callable[[str, str | None], Document]
"""Makes the document of an id; the second is the id of its best text, where that is known."""


@dataclass(frozen=True)
class Keywords:
    """The keywords of a source as it was.

    Attributes:
        index: the index; its ids, or its units', are those of ``ids``.
        make: makes a document of an id, each time another one.
        ids: the ids of all documents, sorted.
        id_of: the id under which the documents know what a retriever returned.
    """

    index: KeywordIndex | UnitKeywords
    make: Make
    ids: tuple[str, ...]
    id_of: Callable[[Document], str]


class KeywordSource(Protocol):
    """Documents that change or not."""

    def state(self) -> object:
        """Return something that is another thing, or unequal, when the documents have changed."""

    def read(self, state: Any, tokenizer: Tokenizer | None) -> Keywords:
        """Index the words of the documents there are."""


def source_of(beneath: Beneath, documents: Sequence[Document] | None) -> KeywordSource:
    """Find what is searched beneath.

    Raises:
        InvalidParameterError: it cannot be known and no documents were given, or the other way
            round.
    """
    retriever = beneath.retriever
    source: KeywordSource | None = None
    if isinstance(retriever, MaxPRetriever) and retriever.vectorstore is None:
        source = _Units(retriever)
    elif isinstance(retriever, LongRAGIndex):
        source = _ChangingUnits(retriever)
    elif isinstance(retriever, RaptorRetriever) and retriever.index is not None:
        source = _TreeNodes(retriever)
    if source is not None:
        if documents is not None:
            raise InvalidParameterError(
                "documents", f"{len(documents)} documents", "None: the retriever has them"
            )
        return source
    if documents is not None:
        key = retriever.unit_key if isinstance(retriever, MaxPRetriever) else None
        return _Given(list(documents), key)
    if isinstance(beneath.store, InMemoryVectorStore):
        return _InMemory(beneath.store, beneath.search_kwargs.get("filter"))
    raise InvalidParameterError(
        "documents",
        None,
        "given for this retriever",
        "It does not tell which documents it searches.",
    )


def _same_id(document: Document) -> str:
    return str(document.id)


class _Given:
    """Documents, or the chunks of units, that were given."""

    def __init__(self, documents: Sequence[Document], unit_key: str | None) -> None:
        self._documents = documents
        self._unit_key = unit_key

    def state(self) -> object:
        return self._documents

    def read(self, state: Any, tokenizer: Tokenizer | None) -> Keywords:
        if self._unit_key is None:
            return _of_documents(state, tokenizer)
        stored = StoredUnits(self._unit_key)
        units, chunks = units_of_documents(state, stored, count_tokens)

        def make(unit: RetrievedUnit) -> Document:
            known = copy.deepcopy(stored.metadata(unit.unit.id))
            return from_result(unit, known, self._unit_key or "unit_id")

        return _of_units(units, chunks, make, tokenizer)


class _InMemory:
    """The documents of a store in memory, those that a filter passes."""

    def __init__(
        self, store: InMemoryVectorStore, passes: Callable[[Document], bool] | None
    ) -> None:
        self._store = store
        self._passes = passes

    def state(self) -> object:
        return [(id_, row["text"], row["metadata"]) for id_, row in self._store.store.items()]

    def read(self, state: Any, tokenizer: Tokenizer | None) -> Keywords:
        found = (Document(id=id_, page_content=t, metadata=m) for id_, t, m in state)
        kept = [one for one in found if self._passes is None or self._passes(one)]
        return _of_documents(kept, tokenizer)


class _Units:
    """The units of a retriever that has them all."""

    def __init__(self, retriever: MaxPRetriever) -> None:
        self._retriever = retriever

    def state(self) -> object:
        return self._retriever._built()

    def read(self, state: Any, tokenizer: Tokenizer | None) -> Keywords:
        def make(unit: RetrievedUnit) -> Document:
            return self._retriever._results([unit], self._retriever._known())[0]

        return _of_units(state.units, state.chunks, make, tokenizer)


class _ChangingUnits:
    """The units of an index that changes."""

    def __init__(self, index: LongRAGIndex) -> None:
        self._index = index

    def state(self) -> object:
        return [self._index._view(None)]

    def read(self, state: Any, tokenizer: Tokenizer | None) -> Keywords:
        (view,) = state
        complete = {found.unit.id: found.complete for found in view.units}

        def make(unit: RetrievedUnit) -> Document:
            whole = replace(unit, complete=complete[unit.unit.id])
            return self._index._results([whole], view)[0]

        return _of_units([found.unit for found in view.units], view.chunks, make, tokenizer)


class _TreeNodes:
    """The leaves and summaries of a tree, those of the levels that are searched."""

    def __init__(self, retriever: RaptorRetriever) -> None:
        self._retriever = retriever

    def state(self) -> object:
        return self._retriever._seen()[1].tree

    def read(self, state: Any, tokenizer: Tokenizer | None) -> Keywords:
        (documents, tree), _, _ = self._retriever._seen()
        levels = self._retriever.levels
        nodes = {
            id_: node for id_, node in tree.nodes.items() if levels is None or node.level in levels
        }

        def make(id_: str, _: str | None) -> Document:
            return from_node(RetrievedNode(nodes[id_], 0.0, tree.leaves(id_)), documents)

        texts = [node.text for node in nodes.values()]
        index = KeywordIndex.build(list(nodes), texts, tokenizer=tokenizer)
        return Keywords(index, make, index.ids, _same_id)


def _of_units(
    units: Sequence[LongUnit],
    chunks: Sequence[Chunk],
    make: Callable[[RetrievedUnit], Document],
    tokenizer: Tokenizer | None,
) -> Keywords:
    unit_of = {unit.id: unit for unit in units}
    chunk_of = {chunk.id: chunk for chunk in chunks}
    first: dict[str, Chunk] = {}
    for chunk in chunks:
        first.setdefault(chunk.unit_id, chunk)

    def made(unit_id: str, best: str | None) -> Document:
        unit = unit_of[unit_id]
        chunk = first[unit_id] if best is None else chunk_of[best]
        document = make(RetrievedUnit(unit, None, place(chunk, unit)))
        if best is None:
            # Which of its chunks is the best is not known.
            del document.metadata["best_chunk"]
        return document

    texts = [embedding_text(chunk) for chunk in chunks]
    keywords = KeywordIndex.build(list(chunk_of), texts, tokenizer=tokenizer)
    index = keywords.by_unit({chunk.id: chunk.unit_id for chunk in chunks})
    return Keywords(index, made, index.ids, _same_id)


def _of_documents(documents: Sequence[Document], tokenizer: Tokenizer | None) -> Keywords:
    converted = to_core(documents, "title")
    document_of = {one.id: document for one, document in zip(converted, documents, strict=True)}
    if len(document_of) < len(documents):
        ids = [one.id for one in converted]
        twice = next(id_ for at, id_ in enumerate(ids) if id_ in ids[:at])
        raise InvalidDocumentError(f"two documents have the same id {twice!r}")
    by_content: dict[str, str] = {}
    for id_, document in document_of.items():
        by_content.setdefault(_content(document), id_)

    def make(id_: str, _: str | None) -> Document:
        found = document_of[id_]
        metadata = copy.deepcopy(found.metadata)
        return found.model_copy(update={"id": id_, "metadata": metadata})

    def id_of(document: Document) -> str:
        # A store may give ids of its own to documents that came without.
        known = document.id is not None and str(document.id) in document_of
        own = _content(document)
        return str(document.id) if known else by_content.get(own, str(document.id or own))

    texts = [document.page_content for document in documents]
    index = KeywordIndex.build(list(document_of), texts, tokenizer=tokenizer)
    return Keywords(index, make, index.ids, id_of)


def _content(document: Document) -> str:
    return stable_id(document.metadata.get("source", ""), document.page_content)


class KeywordPassages(Mapping[str, Passage]):
    """What keywords find, by id, as the recipes take it; made when it is asked for."""

    def __init__(self, keywords: Keywords) -> None:
        self._keywords = keywords
        self._ids = frozenset(keywords.ids)

    def __getitem__(self, id_: str) -> Passage:
        if id_ not in self._ids:
            raise KeyError(id_)
        return to_passage(self._keywords.make(id_, None), id_)

    def __contains__(self, id_: object) -> bool:
        return id_ in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._keywords.ids)

    def __len__(self) -> int:
        return len(self._keywords.ids)
