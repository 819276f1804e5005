"""What keywords search beneath a hybrid retriever: the nodes that the other retriever searches.

A source is asked for its state before each search; one that follows an index gives another state
when the index has changed, and is then read again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.indices.vector_store.retrievers.retriever import VectorIndexRetriever
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore
from llama_index.core.vector_stores.types import MetadataFilters
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from llama_index_longrag.bridge.nodes import holds_chunks, unit_of, units_of_nodes
from llama_index_longrag.bridge.stores import StoredUnits
from llama_index_longrag.retrieval.maxp import MaxPRetriever
from llama_index_longrag.retrieval.raptor import RaptorRetriever
from longrag.errors import InvalidParameterError
from longrag.indexing.keywords import KeywordIndex, Tokenizer, UnitKeywords
from longrag.ingestion.units import embedding_text
from longrag.models.tokens import count_tokens
from longrag.retrieval.assembly import place
from longrag.retrieval.hybrid import HybridHit
from longrag.types import Chunk, LongUnit, RetrievedNode, RetrievedUnit

Make: TypeAlias = Callable[[HybridHit], NodeWithScore]
"""Makes the result of a hit that the keywords alone have found."""


@dataclass(frozen=True, slots=True)
class Keywords:
    """The keywords of a source as it was, and what makes results of it."""

    index: KeywordIndex | UnitKeywords
    make: Make


class KeywordSource(Protocol):
    """Nodes that change or not."""

    def state(self) -> object:
        """Return something that is another thing, or unequal, when the nodes have changed."""

    def read(self, state: Any, tokenizer: Tokenizer | None) -> Keywords:
        """Index the words of the nodes there are."""


class CurrentKeywords:
    """The keywords of a source as it is now, read again only when it has changed.

    Copies of a retriever share it, so that none reads what another has read.
    """

    def __init__(self, source: KeywordSource, tokenizer: Tokenizer | None) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self._read: tuple[object, Keywords] | None = None

    def now(self) -> Keywords:
        """Return the keywords of the nodes there are."""
        state, known = self._source.state(), self._read
        if known is None or not _same(known[0], state):
            known = self._read = state, self._source.read(state, self._tokenizer)
        return known[1]


def _same(one: object, other: object) -> bool:
    return one is other or (isinstance(one, list) and one == other)


def source_of(
    retriever: BaseRetriever, nodes: Sequence[BaseNode] | None, *, follow: bool
) -> KeywordSource:
    """Find what a retriever searches.

    The framework's own retrievers search the nodes that were there when they were made; ``follow``
    takes those that are there now.

    Raises:
        InvalidParameterError: it cannot be known, and no nodes were given; or both are there.
    """
    own = isinstance(retriever, MaxPRetriever) and retriever._index is None
    if nodes is not None and (own or isinstance(retriever, RaptorRetriever)):
        raise InvalidParameterError("nodes", f"{len(nodes)} nodes", "None: the retriever has them")
    match retriever:
        case RaptorRetriever():
            return _TreeNodes(retriever)
        case MaxPRetriever() if own:
            return _Units(retriever)
        case MaxPRetriever():
            return _StoredUnits(retriever, nodes)
        case _:
            return _Nodes(retriever, nodes, follow=follow)


class _Nodes:
    """Nodes by their ids, given or in the docstore of an index."""

    def __init__(
        self,
        retriever: BaseRetriever,
        nodes: Sequence[BaseNode] | None,
        *,
        follow: bool = True,
    ) -> None:
        self._nodes = None if nodes is None else list(nodes)
        index = getattr(retriever, "_index", None)
        self._index = index if isinstance(index, VectorStoreIndex) else None
        filters = getattr(retriever, "_filters", None)
        self._filters = filters if isinstance(filters, MetadataFilters) else None
        self._only_nodes: frozenset[str] = frozenset()
        self._only_documents: frozenset[str] = frozenset()
        if isinstance(retriever, VectorIndexRetriever):
            self._only_nodes = frozenset(() if follow else retriever._node_ids or ())
            self._only_documents = frozenset(retriever._doc_ids or ())
        hidden = self._index is None or self._index.vector_store.stores_text
        if self._nodes is None and hidden and not self.state():
            raise InvalidParameterError(
                "nodes",
                None,
                "given for this retriever",
                "It does not tell which nodes it searches, or its vector store alone has them.",
            )

    def state(self) -> object:
        """Return the ids of the nodes in the index."""
        if self._nodes is not None:
            return self._nodes
        return list(self._index.index_struct.nodes_dict.values()) if self._index else []

    def read(self, state: Any, tokenizer: Tokenizer | None) -> Keywords:
        """Index the nodes as they are embedded, with their metadata."""
        nodes = {node.node_id: node for node in self._passing(state)}
        texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes.values()]
        index = KeywordIndex.build(list(nodes), texts, tokenizer=tokenizer)
        return Keywords(index, lambda hit: NodeWithScore(node=nodes[hit.id], score=hit.score))

    def _passing(self, state: Any) -> list[BaseNode]:
        nodes = self._nodes
        if nodes is None and self._index is not None:
            nodes = self._index.docstore.get_nodes(state, raise_error=False)
        by_id = {node.node_id: node for node in nodes or ()}
        passes = build_metadata_filter_fn(lambda id_: by_id[id_].metadata, self._filters)
        return [
            node
            for node in by_id.values()
            if passes(node.node_id)
            and (not self._only_nodes or node.node_id in self._only_nodes)
            and (not self._only_documents or node.ref_doc_id in self._only_documents)
        ]


class _StoredUnits(_Nodes):
    """Units whose chunks are in a vector store."""

    def __init__(self, retriever: MaxPRetriever, nodes: Sequence[BaseNode] | None) -> None:
        super().__init__(retriever, nodes)
        self._retriever = retriever

    def read(self, state: Any, tokenizer: Tokenizer | None) -> Keywords:
        """Index the chunks, as they are embedded, for their units."""
        key, nodes = self._retriever._unit_key, self._passing(state)
        if self._filters is not None:
            # A unit's node holds the text of all its chunks, of those that do not pass as well.
            nodes = [node for node in nodes if not holds_chunks(node)]
        elif self._index is not None:
            there = {node.node_id for node in nodes}
            names = dict.fromkeys(unit_of(node, key) or "" for node in nodes)
            missing = [name for name in names if name and name not in there]
            found = self._index.docstore.get_nodes(missing, raise_error=False)
            nodes += [node for node in found if holds_chunks(node)]
        units, chunks, leaves = units_of_nodes(nodes, key, count_tokens)
        texts = [leaf.get_content(metadata_mode=MetadataMode.EMBED) for leaf in leaves]
        index = KeywordIndex.build([one.id for one in chunks], texts, tokenizer=tokenizer)
        stored = StoredUnits(key)
        for leaf in leaves:
            stored.hit(NodeWithScore(node=leaf))
        for node in nodes:
            if holds_chunks(node):
                stored.know(node)
        return _of_units(self._retriever, index, units, chunks, stored)


class _Units:
    """The units of a retriever that has them in memory."""

    def __init__(self, retriever: MaxPRetriever) -> None:
        self._retriever = retriever

    def state(self) -> object:
        """Return the index of the units, which is another after each change."""
        return [self._retriever._view()]

    def read(self, state: Any, tokenizer: Tokenizer | None) -> Keywords:
        """Index the chunks that may be seen, with their titles, for their units."""
        (view,) = state
        ids = [one.id for one in view.chunks]
        texts = [embedding_text(one) for one in view.chunks]
        index = KeywordIndex.build(ids, texts, tokenizer=tokenizer)
        stored = StoredUnits(self._retriever._unit_key)
        cut = {found.unit.id for found in view.units if not found.complete}
        units = [found.unit for found in view.units]
        return _of_units(self._retriever, index, units, view.chunks, stored, cut=cut)


def _of_units(
    retriever: MaxPRetriever,
    index: KeywordIndex,
    units: Sequence[LongUnit],
    chunks: Sequence[Chunk],
    stored: StoredUnits,
    *,
    cut: Collection[str] = (),
) -> Keywords:
    chunk: Mapping[str, Chunk] = {one.id: one for one in chunks}
    unit = {one.id: one for one in units}

    def make(hit: HybridHit) -> NodeWithScore:
        own = unit[hit.id]
        best = place(chunk[str(hit.keyword_id)], own)
        known = retriever._index is None or retriever._filters is None
        complete = known and own.id not in retriever._cut and own.id not in cut
        found = RetrievedUnit(own, hit.score, best, retriever._exact, complete)
        return retriever._results([found], stored)[0]

    return Keywords(index.by_unit({one.id: one.unit_id for one in chunks}), make)


class _TreeNodes:
    """The nodes of a tree, on the levels that are searched."""

    def __init__(self, retriever: RaptorRetriever) -> None:
        self._retriever = retriever

    def state(self) -> object:
        """Return the scorer of the tree, which is another after each change."""
        return self._retriever._seen()[1]

    def read(self, state: Any, tokenizer: Tokenizer | None) -> Keywords:
        """Index the texts of the nodes with their titles."""
        documents, scorer = self._retriever._seen()
        tree, levels = scorer.tree, self._retriever._search.get("levels")
        nodes = [node for node in tree.nodes.values() if levels is None or node.level in levels]
        texts = [f"{node.title}\n\n{node.text}" if node.title else node.text for node in nodes]
        index = KeywordIndex.build([node.id for node in nodes], texts, tokenizer=tokenizer)

        def make(hit: HybridHit) -> NodeWithScore:
            found = RetrievedNode(tree.nodes[hit.id], hit.score, tree.leaves(hit.id))
            return self._retriever._results([found], documents)[0]

        return Keywords(index, make)
