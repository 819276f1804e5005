"""What keywords search beside another retriever: the texts of the same units, nodes or documents.

One rule says which words are indexed, in both frameworks: a text with its title, as
``titled_text`` writes it for embedding.

A source is asked for its state before each search. One that follows an index gives another state
when the index has changed, and is then read again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from longrag.errors import InvalidParameterError
from longrag.indexing.keywords import KeywordIndex, UnitKeywords, WordTokenizer
from longrag.indices.corpus_state import CorpusView
from longrag.ingestion.units import embedding_text, titled_text
from longrag.retrieval.assembly import align_chunk
from longrag.types import Chunk, LongUnit, RetrievedNode, RetrievedUnit

if TYPE_CHECKING:
    from longrag.indexing.tree.tree import Tree

Result = TypeVar("Result")

MakeResult: TypeAlias = Callable[[str, str | None, float | None], Result]
"""Makes the result of an id, given the id of its best text in the keyword index and its score, each
None where it is not known."""


@dataclass(frozen=True, slots=True)
class Keywords(Generic[Result]):
    """The keywords of one state of a source.

    Attributes:
        index: the keyword index.
        make_result: makes the framework's result of what only the keywords have found.
        id_of: returns the id under which the index knows a result of the other retriever; None
            where that is the result's own id.
    """

    index: KeywordIndex | UnitKeywords
    make_result: MakeResult[Result]
    id_of: Callable[[Result], str] | None = None


class KeywordSource(Protocol[Result]):
    """Texts that may change."""

    def state(self) -> object:
        """Return another object, or an unequal list or view, after the texts have changed."""

    def read(self, state: Any, tokenizer: WordTokenizer | None) -> Keywords[Result]:
        """Index the words of the present texts."""


@runtime_checkable
class OffersKeywords(Protocol):
    """A retriever that names the texts which keywords search beside it."""

    def keyword_source(self, given: Any = None, /) -> Any:
        """Return a ``KeywordSource``, None where it needs the texts and they are not ``given``.

        Raises:
            InvalidParameterError: texts are given that the retriever has.
        """


class CurrentKeywords(Generic[Result]):
    """The keywords of a source's present state, which is read again only when it has changed.

    Copies of a retriever share it, so that none reads what another has read.

    Args:
        source: the texts.
        tokenizer: gives the words of a text; see ``KeywordIndex``.
        known: a state of the source and the keywords that were read of it.
    """

    def __init__(
        self,
        source: KeywordSource[Result],
        tokenizer: WordTokenizer | None,
        known: tuple[object, Keywords[Result]] | None = None,
    ) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self.known = known

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the keywords, which are read again when they are needed."""
        return {**self.__dict__, "known": None}

    def read(self) -> Keywords[Result]:
        """Return the keywords of the present texts."""
        state, known = self._source.state(), self.known
        if known is None or not _is_same_state(known[0], state):
            known = self.known = state, self._source.read(state, self._tokenizer)
        return known[1]


def _is_same_state(one: object, other: object) -> bool:
    return one is other or (isinstance(one, list | CorpusView | _TreeState) and one == other)


def refuse_texts(name: str, given: Sequence[object] | None) -> None:
    """Refuse texts beside a retriever that has them.

    Raises:
        InvalidParameterError: ``given``, the argument ``name``, is not None.
    """
    if given is not None:
        raise InvalidParameterError.because(f"The retriever has its texts: omit {name}.")


class UnitSource(Generic[Result]):
    """The units of a corpus in memory.

    Args:
        current: returns what may be seen of the corpus now.
        make_unit: makes the framework's result of a unit that is found in such a view.
    """

    def __init__(
        self,
        current: Callable[[], CorpusView],
        make_unit: Callable[[RetrievedUnit, CorpusView], Result],
    ) -> None:
        self._current = current
        self._make_unit = make_unit

    def state(self) -> object:
        """Return what may be seen of the corpus."""
        return self._current()

    def read(self, state: Any, tokenizer: WordTokenizer | None) -> Keywords[Result]:
        """Index the chunks with their titles for their units."""
        texts = [embedding_text(chunk) for chunk in state.chunks]
        return index_units(
            state.units, state.chunks, texts, lambda unit: self._make_unit(unit, state), tokenizer
        )


@dataclass(frozen=True, slots=True)
class _TreeState:
    """One state of a tree; those of one tree are equal."""

    tree: Tree
    make_node: Callable[[RetrievedNode], Any] = field(compare=False)


class TreeSource(Generic[Result]):
    """The nodes of a tree, on the levels that are searched.

    Args:
        current: returns the tree, which is another one after each change, and what makes the
            framework's result of one of its nodes.
        levels: the levels that are searched, None for all.
    """

    def __init__(
        self,
        current: Callable[[], tuple[Tree, Callable[[RetrievedNode], Result]]],
        levels: Collection[int] | None,
    ) -> None:
        self._current = current
        self._levels = levels

    def state(self) -> object:
        """Return the tree, with what makes results of it."""
        return _TreeState(*self._current())

    def read(self, state: Any, tokenizer: WordTokenizer | None) -> Keywords[Result]:
        """Index the texts of the nodes with their titles."""
        tree: Tree = state.tree
        make_node: Callable[[RetrievedNode], Result] = state.make_node
        nodes = [
            node
            for node in tree.nodes.values()
            if self._levels is None or node.level in self._levels
        ]
        texts = [titled_text(node.title, node.text) for node in nodes]
        index = KeywordIndex.build([node.id for node in nodes], texts, tokenizer=tokenizer)

        def make_result(id_: str, _: str | None, score: float | None) -> Result:
            return make_node(RetrievedNode(tree.nodes[id_], score or 0.0, tree.leaves(id_)))

        return Keywords(index, make_result)


def index_units(
    units: Sequence[RetrievedUnit],
    chunks: Sequence[Chunk],
    texts: Sequence[str],
    make_unit: Callable[[RetrievedUnit], Result],
    tokenizer: WordTokenizer | None,
) -> Keywords[Result]:
    """Index the texts of chunks for the units they belong to.

    Args:
        units: the units, each with the chunk it is returned with where the best is not known.
        chunks: the chunks of all units.
        texts: what is indexed of each chunk.
        make_unit: makes the framework's result of a unit with its score and best chunk.
        tokenizer: gives the words of a text; see ``KeywordIndex``.
    """
    chunk_of = {chunk.id: chunk for chunk in chunks}
    unit_of = {found.unit.id: found for found in units}

    def make_result(id_: str, text_id: str | None, score: float | None) -> Result:
        found = replace(unit_of[id_], score=score)
        if text_id is not None:
            found = replace(found, best_chunk=align_chunk(chunk_of[text_id], found.unit))
        return make_unit(found)

    index = KeywordIndex.build([chunk.id for chunk in chunks], texts, tokenizer=tokenizer)
    by_unit = index.by_unit({chunk.id: chunk.unit_id for chunk in chunks})
    return Keywords(by_unit, make_result)


def with_first_chunk(units: Sequence[LongUnit], chunks: Sequence[Chunk]) -> list[RetrievedUnit]:
    """Return units with the first of their chunks, without a score."""
    first: dict[str, Chunk] = {}
    for chunk in chunks:
        first.setdefault(chunk.unit_id, chunk)
    return [RetrievedUnit(unit, None, align_chunk(first[unit.id], unit)) for unit in units]
