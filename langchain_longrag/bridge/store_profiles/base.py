"""How LangChain's vector stores are asked, as long as nothing more is known of one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from langchain_longrag.bridge.documents import BY_VECTOR, search_store
from longrag.integration.answering import Calls, MethodCall
from longrag.integration.store_profiles import Rows

Row: TypeAlias = tuple[Document, float | None]
UnitFilter: TypeAlias = Callable[[Sequence[Any], Any], dict[str, Any]]

FILTER = "filter"
"""The search argument under which most stores take a filter."""


@dataclass(frozen=True, slots=True)
class DocumentQuery:
    """What the profiles are asked; ``exclude`` are the names of units as the store holds them.

    ``kwargs`` are the user's own search arguments.
    """

    store: Any
    unit_key: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    vector: Sequence[float] | None = None
    top_k: int = 1
    exclude: tuple[Any, ...] = ()
    depth: int = 0


class StoreProfile:
    """How one class of vector stores is asked, and what may be believed of its answers.

    Register your own for a store that has none: ``register_store_profile(MyStore,
    StoreProfile(exhaustive=True))``, or a subclass that knows how to leave units out and how to
    list their chunks.

    Args:
        exhaustive: its search compares the query with every row that passes.
        known: search arguments, besides those named ``filter``, that change how a search is done
            and never which rows pass.
    """

    def __init__(self, *, exhaustive: bool = False, known: Sequence[str] = ()) -> None:
        self._exhaustive = exhaustive
        self._known = frozenset(known)

    def takes_vector(self, store: VectorStore) -> bool:
        """Whether the store is searched by the query's vector, given its embedding model."""
        return hasattr(store, BY_VECTOR)

    def is_exact(self, query: DocumentQuery) -> bool:
        """Whether the store ranks every row that passes by its vector."""
        return self._exhaustive

    def hides(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether there may be rows that the user's search arguments leave out."""
        return bool(kwargs.keys() - self._known)

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows, without those of units to exclude, as deep as the query asks."""
        if query.depth or query.exclude:
            raise NotImplementedError
        return (yield from self._rank(query, {}))

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return all rows whose unit is named by one of the values."""
        raise NotImplementedError
        yield

    def lists_all(self, query: DocumentQuery) -> bool:
        """Whether a listing is known to hold all rows of the units."""
        return True

    def has_other(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a row that passes and whose unit is named by none of the values."""
        raise NotImplementedError
        yield

    def check_writable(self, store: VectorStore) -> None:
        """Raise ``InvalidParameterError`` where what is added takes the place of what is there."""

    def needs_equal_keys(self, store: VectorStore) -> bool:
        """Whether the metadata of all rows must have the same keys."""
        return False

    def _rank(self, query: DocumentQuery, added: Mapping[str, Any]) -> Calls[Rows[Row]]:
        kwargs = {**query.kwargs, **added, "k": query.top_k}
        rows = yield from search_store(query.store, query.text, query.vector, kwargs)
        exact = self.is_exact(query)
        return Rows(rows, exact, exact and len(rows) < query.top_k)

    def _check_known(self, query: DocumentQuery, *filters: str) -> None:
        """Raise ``NotImplementedError`` where the user's arguments may hold another filter."""
        if query.kwargs.keys() - self._known - {*filters}:
            raise NotImplementedError


class FilteredProfile(StoreProfile):
    """A store that the user's ``unit_filter`` makes filter, by whatever else is known of it.

    Chunks of a unit are listed by one search a unit, which is complete where the store is known to
    search exhaustively.
    """

    def __init__(self, wrapped: StoreProfile, unit_filter: UnitFilter) -> None:
        super().__init__()
        self._wrapped = wrapped
        self._unit_filter = unit_filter

    def takes_vector(self, store: VectorStore) -> bool:
        """Whether the store is searched by the query's vector, given its embedding model."""
        return self._wrapped.takes_vector(store)

    def is_exact(self, query: DocumentQuery) -> bool:
        """Whether the store ranks every row that passes by its vector."""
        return self._wrapped.is_exact(query)

    def search(self, query: DocumentQuery) -> Calls[Rows[Row]]:
        """Rank rows, without those of units to exclude."""
        if query.depth:
            raise NotImplementedError
        return (yield from self._rank(query, self._unit_filter(query.exclude, None)))

    def list_chunks(self, query: DocumentQuery, values: Sequence[Any]) -> Calls[Sequence[Document]]:
        """Return the rows of each unit, as many as the store gives."""
        found: list[Document] = []
        for value in values:
            asked, before = _FIRST_ROWS, -1
            while True:
                kwargs = {**query.kwargs, **self._unit_filter((), value), "k": asked}
                rows = yield from search_store(query.store, query.text, query.vector, kwargs)
                own = [row for row, _ in rows if row.metadata.get(query.unit_key) == value]
                if len(rows) < asked or len(own) < len(rows) or len(rows) == before:
                    break
                asked, before = asked * 2, len(rows)
            found += own
        return found

    def lists_all(self, query: DocumentQuery) -> bool:
        """Whether a listing is known to hold all rows of the units."""
        return self.is_exact(query)


_FIRST_ROWS = 64


def combine_filters(
    own: Mapping[str, Any] | None, added: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a Mongo-like filter that passes what all of these pass."""
    parts = [dict(part) for part in (own, *added) if part]
    return parts[0] if len(parts) == 1 else {"$and": parts}


def with_vector(store: Any, attribute: str, vector: Sequence[float]) -> Any:
    """Return the store with an embedding model that knows this one query's vector already."""
    changed = copy.copy(store)
    setattr(changed, attribute, _FixedEmbedding(getattr(store, attribute), list(vector)))
    return changed


class _FixedEmbedding:
    """An embedding model that has embedded the query before."""

    def __init__(self, model: Any, vector: list[float]) -> None:
        self._model, self._vector = model, vector

    def embed_query(self, text: str) -> list[float]:
        return self._vector

    async def aembed_query(self, text: str) -> list[float]:
        return self._vector

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class ThreadCall:
    """A function as an object's method, so that it is called in a thread from an event loop."""

    def __init__(self, do: Callable[[], Any]) -> None:
        self.do = do

    def as_call(self) -> MethodCall:
        """Return the call."""
        return MethodCall(self, "do")
