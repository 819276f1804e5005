"""Conditions of databases that run as servers, in which every value is data of a request.

Elasticsearch, OpenSearch and MongoDB take conditions as objects. Redis takes them as text: there
only names go into a condition that mean themselves in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from longrag.integration.store_profiles import by_type

MOST_ROWS: Final = 10_000
"""The most rows that Elasticsearch, OpenSearch, Weaviate and Pinecone give for one request."""

MOST_CANDIDATES: Final = 10_000
"""The most candidates that Elasticsearch and MongoDB consider in one search."""

_PLAIN_TAG: Final = re.compile(r"[A-Za-z0-9_./:@-]+(?: [A-Za-z0-9_./:@-]+)*")


def match_terms(field: str, values: Sequence[Any], *, suffix: str = ".keyword") -> dict[str, Any]:
    """Return the query for documents whose field has one of the values.

    Args:
        field: the path of the field.
        values: the values.
        suffix: what leads from the field of a text to the one that holds it unchanged; in an index
            that makes its mapping itself, ``.keyword``.

    Raises:
        NotImplementedError: a value is not a string, boolean, integer or finite float.
    """
    terms = [
        {"terms": {field + suffix * isinstance(group[0], str): group}} for group in by_type(values)
    ]
    return {"bool": {"should": terms, "minimum_should_match": 1}}


def exclude_terms(field: str, values: Sequence[Any], *, suffix: str = ".keyword") -> dict[str, Any]:
    """Return the query for documents whose field has none of the values; see ``match_terms``."""
    if not values:
        return {"match_all": {}}
    return {"bool": {"must_not": [match_terms(field, values, suffix=suffix)]}}


def set_candidates(
    own: Callable[[dict[str, Any], Any], dict[str, Any]] | None, *, deep: bool
) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    """Return what adjusts the body of an Elasticsearch search, after the user's own adjustment.

    The candidates of a search of a graph must be as many as its rows at least and 10,000 at most;
    a deep search has the most.
    """

    def adjust(body: dict[str, Any], text: Any) -> dict[str, Any]:
        if own is not None:
            body = own(body, text)
        knn = body.get("knn")
        if isinstance(knn, dict) and "num_candidates" in knn:
            wanted = max(knn["num_candidates"], 10 * knn.get("k", 1))
            wanted = MOST_CANDIDATES if deep else min(wanted, MOST_CANDIDATES)
            body = {**body, "knn": {**knn, "num_candidates": wanted}}
        return body

    return adjust


def read_hits(response: Mapping[str, Any]) -> list[Any]:
    """Return all hits of a listing by Elasticsearch or OpenSearch.

    Raises:
        NotImplementedError: there may be more than the response holds.
    """
    hits: list[Any] = response["hits"]["hits"]
    failed = (response.get("_shards") or {}).get("failed", 0)
    if len(hits) >= MOST_ROWS or failed or response.get("timed_out"):
        raise NotImplementedError("a listing did not give all rows")
    return hits


def compare_field(key: str, operator: str, values: Sequence[Any]) -> list[dict[str, Any]]:
    """Return MongoDB's conditions on a field, one for the values of each type.

    Raises:
        NotImplementedError: a value is of another type, or the key is an operator.
    """
    if key.startswith("$"):
        raise NotImplementedError(f"{key!r} is an operator")
    return [{key: {operator: group}} for group in by_type(values)]


def check_tags(field: Any, values: Sequence[Any], *, exclude: bool) -> list[str]:
    """Return names of units that a condition on one of Redis's tags may hold.

    Redis cuts the value of a tag at commas and trims it, and compares it without regard to case
    unless the field says otherwise. To exclude one unit by such a field may exclude others.

    Args:
        field: the field of the index's schema, or None where there is no such field.
        values: what names the units.
        exclude: whether the units are left out, or else listed.

    Raises:
        NotImplementedError: the field is missing or not a tag, or a value may mean something else.
    """
    if field is None or str(getattr(field.type, "value", field.type)) != "tag":
        raise NotImplementedError("the units' key is no tag of the index")
    if exclude and not field.attrs.case_sensitive:
        raise NotImplementedError("the index does not tell upper from lower case")
    for value in values:
        if not isinstance(value, str) or not _PLAIN_TAG.fullmatch(value):
            raise NotImplementedError(f"{value!r} may mean something else in a tag")
    return list(values)


class ExactSearches:
    """A collection of MongoDB whose searches of vectors compare the query with each of them."""

    def __init__(self, collection: Any) -> None:
        self._collection = collection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collection, name)

    def aggregate(self, pipeline: list[dict[str, Any]]) -> Any:
        """Run a pipeline that begins with a search."""
        first, *rest = pipeline
        search = {**first["$vectorSearch"], "exact": True}
        search.pop("numCandidates", None)
        return self._collection.aggregate([{"$vectorSearch": search}, *rest])
