"""How a question's requests to a vector store are answered by the profile of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from longrag.calls import HasOther, ListChunks, Search
from longrag.integration.answering import Calls
from longrag.integration.store_profiles import Profile
from longrag.retrieval.store_search import Listed, Ranked
from longrag.retrieval.units import Hit
from longrag.types import Chunk

QueryT = TypeVar("QueryT")
RowT = TypeVar("RowT")
ChunkT = TypeVar("ChunkT")
RowT_contra = TypeVar("RowT_contra", contravariant=True)
ChunkT_contra = TypeVar("ChunkT_contra", contravariant=True)


class UnitRows(Protocol[RowT_contra, ChunkT_contra]):
    """Converts the rows of a store, and knows the units that the rows so far named."""

    def names_of(self, unit_ids: Iterable[str]) -> tuple[Any, ...]:
        """Return what names units in the store, which need not be strings."""

    def to_hit(self, row: RowT_contra) -> Hit:
        """Convert a row that a search found."""

    def group_by_unit(
        self, chunks: Sequence[ChunkT_contra], unit_ids: Sequence[str]
    ) -> dict[str, list[Chunk]]:
        """Sort the chunks that a store listed by unit, without those of other units."""


class StoreReader(Generic[QueryT, RowT, ChunkT]):
    """Answers one question's requests to a store: search, list chunks, look for other units.

    Args:
        profile: how stores of this class are asked.
        rows: converts what the store gives.
        make_query: makes the profile's query of a search and the names of units to leave out.
    """

    def __init__(
        self,
        profile: Profile[QueryT, RowT, ChunkT],
        rows: UnitRows[RowT, ChunkT],
        make_query: Callable[[Search, tuple[Any, ...]], QueryT],
    ) -> None:
        self._profile = profile
        self._rows = rows
        self._make_query = make_query
        self._asked = Search("", 1)

    def search(self, request: Search) -> Calls[Ranked]:
        """Rank chunks, without those of units to exclude."""
        self._asked = replace(request, exclude=(), depth=0)
        query = self._make_query(request, self._rows.names_of(request.exclude))
        found = yield from self._profile.search(query)
        return Ranked([self._rows.to_hit(row) for row in found.rows], found.exact, found.ended)

    def list_chunks(self, request: ListChunks) -> Calls[Listed]:
        """List the chunks of units."""
        # Some stores list chunks by one more search for the same question.
        query = self._make_query(self._asked, ())
        chunks = yield from self._profile.list_chunks(query, self._rows.names_of(request.unit_ids))
        grouped = self._rows.group_by_unit(chunks, request.unit_ids)
        return Listed(grouped, self._profile.lists_all(query))

    def has_other(self, request: HasOther) -> Calls[bool]:
        """Whether the store holds a chunk of a unit that is not named."""
        query = self._make_query(self._asked, ())
        return (yield from self._profile.has_other(query, self._rows.names_of(request.unit_ids)))
