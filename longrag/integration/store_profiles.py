"""Profiles of the vector stores that both frameworks wrap: how to query them, what they guarantee.

A *profile* knows one class of stores: how to leave units out of a search, how to list the chunks of
units, how to search deeper, and whether the store's ranking is exact. Each adapter has a profile
for every store its framework's users run, chosen by the store's class; a store without one is asked
for nothing but a ranking, and nothing of what it answers is taken to be certain.

No value that a store holds may become part of a filter expression except as a parameter, or as a
literal that tests against that store prove safe. A profile that cannot do so for a value raises
``NotImplementedError``, and the search goes on without the exclusion.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from longrag.integration.answering import Calls, MethodCall

QueryT_contra = TypeVar("QueryT_contra", contravariant=True)
RowT = TypeVar("RowT")
ChunkT_co = TypeVar("ChunkT_co", covariant=True)
ProfileT = TypeVar("ProfileT")

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Rows(Generic[RowT]):
    """The rows of one search, best first.

    Args:
        rows: the rows as the framework gives them.
        exact: whether they are known to be the best ones, in the right order.
        ended: whether the store is known to hold no other row that the search allows.
    """

    rows: Sequence[RowT]
    exact: bool = False
    ended: bool = False


class Profile(Protocol[QueryT_contra, RowT, ChunkT_co]):
    """How one class of stores is asked; every method raises ``NotImplementedError`` if it is not.

    A query holds the store, the user's own search arguments and the metadata key that names units.
    """

    def search(self, query: QueryT_contra) -> Calls[Rows[RowT]]:
        """Rank rows, without those of units to exclude, as deep as the query asks."""

    def list_chunks(
        self, query: QueryT_contra, values: Sequence[Any]
    ) -> Calls[Sequence[ChunkT_co]]:
        """Return all chunks whose unit is named by one of the values."""

    def lists_all(self, query: QueryT_contra) -> bool:
        """Whether a listing is known to hold all chunks of the units."""

    def has_other(self, query: QueryT_contra, values: Sequence[Any]) -> Calls[bool]:
        """Whether there is a row that passes and whose unit is named by none of the values."""


class StoreProfiles(Generic[ProfileT]):
    """Profiles by the class of the store, that of a base class for its subclasses.

    Args:
        default: for stores of a class that is not known.
        known: profiles by ``"module:Class"``, so that no store's package need be imported; the
            module may also be one above that of the class.
    """

    def __init__(self, default: ProfileT, known: Mapping[str, ProfileT]) -> None:
        self._default = default
        self._known = dict(known)
        self._registered: dict[type, ProfileT] = {}

    def register(self, store_class: type, profile: ProfileT) -> None:
        """Use a profile for stores of a class from now on, in place of any other."""
        self._registered[store_class] = profile

    def of(self, store: object) -> ProfileT:
        """Return the profile of a store."""
        for kind in type(store).__mro__:
            if kind in self._registered:
                return self._registered[kind]
            for name in _names(kind):
                if name in self._known:
                    return self._known[name]
        return self._default


def _names(kind: type) -> Iterator[str]:
    module = kind.__module__
    while module:
        yield f"{module}:{kind.__qualname__}"
        module = module.rpartition(".")[0]


def by_type(values: Iterable[Any]) -> list[list[Any]]:
    """Sort the names of units by type, since stores compare values of one type.

    Raises:
        NotImplementedError: a value is not a string, boolean, 64-bit integer or finite float.
    """
    groups: dict[type, list[Any]] = {}
    for value in values:
        match value:
            case bool() | str():
                pass
            case int() if -(2**63) <= value < 2**63:
                pass
            case float() if math.isfinite(value):
                pass
            case _:
                raise NotImplementedError(f"no filter compares {value!r}")
        groups.setdefault(type(value), []).append(value)
    return list(groups.values())


def check_plain_key(key: str) -> str:
    """Return a metadata key that is an identifier in every filter language.

    Raises:
        NotImplementedError: it is not.
    """
    if not _PLAIN_KEY.fullmatch(key):
        raise NotImplementedError(f"{key!r} may mean something else in a filter")
    return key


def sql_literal(value: Any) -> str:
    """Write a value as a literal of standard SQL, in which a quote is doubled and nothing escapes.

    Raises:
        NotImplementedError: it is not a string, boolean, integer or finite float.
    """
    ((value,),) = by_type([value])
    if isinstance(value, str):
        if "\0" in value:
            raise NotImplementedError("no literal holds a zero character")
        return "'" + value.replace("'", "''") + "'"
    return repr(value).lower() if isinstance(value, bool) else repr(value)


MILVUS_MOST: Final = 16_384
"""The most rows that Milvus gives for one search or query."""


def milvus_literals(values: Iterable[Any]) -> str:
    """Write values as a list of Milvus's literals, whose strings are escaped as those of JSON.

    Raises:
        NotImplementedError: one is not a string, boolean, integer or finite float, or has control
            characters that are not escaped in the same way.
    """
    literals = [
        json.dumps(value, ensure_ascii=False) for group in by_type(values) for value in group
    ]
    if any("\\u" in literal.replace("\\\\", "") for literal in literals):
        raise NotImplementedError("Milvus has no escape for a control character")
    return ", ".join(literals)


def milvus_is_flat(client: Any, uri: object, collection: str, field: str) -> Calls[bool]:
    """Whether Milvus Lite, in this process, compares a query with every vector of a field.

    A server is not asked, since that would be one more call for every question.
    """
    if not str(uri).endswith(".db"):
        return False
    index = yield MethodCall(client, "describe_index", (collection, field))
    return isinstance(index, Mapping) and index.get("index_type") == "FLAT"


def lance_indexes(table: Any) -> bool:
    """Whether a table of LanceDB has an index of vectors."""
    scalar = {"BTree", "Bitmap", "LabelList", "FTS"}
    return any(getattr(index, "index_type", "") not in scalar for index in table.list_indices())
