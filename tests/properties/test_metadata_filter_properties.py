"""LlamaIndex's filters pass what they say, whichever filter was asked before.

``LONGRAG_FILTER_PAIRS=100000`` asks that many pairs of filters in place of five hundred.
"""

import operator
import os
from enum import Enum
from random import Random

import pytest
from llama_index.core.schema import Document as LlamaDocument
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

import llama_index_longrag as li
from llama_index_longrag.bridge.filters import to_filter
from longrag.retrieval.filters import MetadataIndex
from longrag.types import Document
from tests.fakes.llama_index import HashEmbedding

PAIRS = int(os.environ.get("LONGRAG_FILTER_PAIRS", "500"))

Op = FilterOperator
KEYS = ("tenant", "level", "\ud800")


class Tenant(str, Enum):
    RED = "red"


class Level(int, Enum):
    ONE = 1


NUMBERS = [0, 1, -1, 2, 2**53, 2**53 + 1, 10**400, 0.0, -0.0, 1.0, 0.5, float(2**53)]
NAN = float("nan")
NUMBERS += [float("inf"), float("-inf"), NAN]
STRINGS = [
    "",
    "red",
    "RED",
    "blue",
    "1",
    "None",
    "null",
    "NaN",
    "True",
    "\ud800",
    "\u00e9",
    "e\u0301",
]
SCALARS = [None, True, False, Tenant.RED, Level.ONE, *NUMBERS, *STRINGS]
LISTS = [
    [],
    ["red"],
    ["red", "blue"],
    ["blue", "red"],
    [1],
    [1.0],
    [True],
    [NAN],
    ["\ud800"],
]
DOCUMENTS = {
    f"d{number:03}": Document(f"d{number:03}", "text", "", metadata)
    for number, metadata in enumerate(
        [
            {},
            *({"tenant": value} for value in [*SCALARS, *LISTS, {"red": 1}]),
            *({"tenant": "red", "level": value} for value in SCALARS),
            *({"level": 1, "\ud800": value} for value in SCALARS),
        ]
    )
}


def draw_filter(random):
    by_list = random.random() < 0.3
    wanted = random.choice([Op.IN, Op.NIN, Op.ANY, Op.ALL] if by_list else [*Op])
    if wanted in (Op.IN, Op.NIN, Op.ANY, Op.ALL):
        value = random.choices(SCALARS, k=random.randrange(4))
    else:
        value = random.choice([*SCALARS, *LISTS] if random.random() < 0.2 else SCALARS)
    # The framework refuses some of these values, unless a filter is changed after it was made.
    return MetadataFilter.model_construct(key=random.choice(KEYS), value=value, operator=wanted)


def draw_filters(random, depth=0):
    parts = [
        draw_filters(random, depth + 1)
        if depth < 2 and random.random() < 0.2
        else draw_filter(random)
        for _ in range(random.choice([0, 1, 1, 1, 2, 3]))
    ]
    condition = random.choice([None, *FilterCondition])
    return MetadataFilters.model_construct(filters=parts, condition=condition)


def change_one_part(random, filters):
    """Return a copy that differs in one value, operator, key or condition."""
    parts = list(filters.filters)
    if not parts or random.random() < 0.1:
        condition = random.choice([None, *FilterCondition])
        return MetadataFilters.model_construct(filters=parts, condition=condition)
    at = random.randrange(len(parts))
    if isinstance(parts[at], MetadataFilters):
        parts[at] = change_one_part(random, parts[at])
    else:
        other = draw_filter(random)
        if isinstance(other.value, list) == isinstance(parts[at].value, list):
            other = parts[at].model_copy(update={"value": other.value})
        parts[at] = other
    return MetadataFilters.model_construct(filters=parts, condition=filters.condition)


def equal(one, other):
    """Whether values are equal, where True and 1 are not."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


CONDITIONS = {
    Op.GT: operator.gt,
    Op.GTE: operator.ge,
    Op.LT: operator.lt,
    Op.LTE: operator.le,
    Op.EQ: equal,
    Op.NE: lambda value, wanted: not equal(value, wanted),
    Op.IN: lambda value, wanted: any(equal(value, one) for one in wanted),
    Op.NIN: lambda value, wanted: not any(equal(value, one) for one in wanted),
    Op.CONTAINS: operator.contains,
    Op.ALL: lambda value, wanted: all(one in value for one in wanted),
    Op.ANY: lambda value, wanted: any(one in value for one in wanted),
    Op.TEXT_MATCH: str.__contains__,
    Op.TEXT_MATCH_INSENSITIVE: lambda value, wanted: str.lower(wanted) in str.lower(value),
}


def one_holds(one, value):
    """Whether a condition on a value holds, written without what is tested."""
    if one.operator == Op.IS_EMPTY:
        return value is None or value in ("", [])
    if value is None:
        return one.operator in (Op.NE, Op.NIN)
    return CONDITIONS[one.operator](value, one.value)


def all_hold(filters, metadata):
    held = [
        all_hold(one, metadata)
        if isinstance(one, MetadataFilters)
        else one_holds(one, metadata.get(one.key))
        for one in filters.filters
    ]
    if not held:
        return True
    if filters.condition == FilterCondition.OR:
        return any(held)
    return not any(held) if filters.condition == FilterCondition.NOT else all(held)


def expected_ids(filters):
    """Return what passes; what cannot be compared never does, however the filters are nested."""

    def passes(metadata):
        try:
            return all_hold(filters, metadata)
        except TypeError:
            return False

    return {id_ for id_, one in DOCUMENTS.items() if passes(one.metadata)}


def told_by_llamaindex(filters):
    """Return what LlamaIndex passes, and the documents of which it says something comparable.

    It refuses nested filters and values that cannot be compared, and takes True for 1; whether not
    a number is in a list depends on which object it is.
    """
    passing, told = set(), set()
    if any(isinstance(one, MetadataFilters) for one in filters.filters):
        return passing, told
    test = build_metadata_filter_fn(lambda id_: DOCUMENTS[id_].metadata, filters)
    for id_, document in DOCUMENTS.items():
        values = [document.metadata.get(one.key) for one in filters.filters]
        wanted = [one.value for one in filters.filters]
        flat = [each for one in wanted for each in (one if isinstance(one, list) else [one])]
        if any(isinstance(one, bool) or one is NAN for one in [*values, *flat]):
            continue
        try:
            passed = test(id_)
        except TypeError:
            continue
        told.add(id_)
        if passed:
            passing.add(id_)
    return passing, told


def test_a_filter_passes_what_it_says_whichever_was_asked_before():
    random = Random(25)
    index, compared = MetadataIndex(DOCUMENTS), 0
    for _ in range(PAIRS):
        one = draw_filters(random)
        other = change_one_part(random, one) if random.random() < 0.8 else draw_filters(random)
        for filters in (one, other, one):
            found = index.passing(to_filter(filters)).ids
            assert found == expected_ids(filters), filters
            passing, told = told_by_llamaindex(filters)
            assert found & told == passing, filters
            compared += len(told)
    assert compared > 30 * PAIRS


@pytest.mark.parametrize(
    ("first", "second", "kind", "ids"),
    [
        (float("inf"), float("-inf"), Op.LTE, set()),
        (float("-inf"), float("inf"), Op.LTE, {"a", "b"}),
        (float("inf"), float("nan"), Op.LTE, set()),
        (float("inf"), None, Op.NE, {"a", "b"}),
    ],
)
def test_an_index_shows_what_the_present_filter_passes(first, second, kind, ids):
    pages = [
        LlamaDocument(id_=id_, text=f"page {id_}", metadata={"level": n})
        for n, id_ in enumerate("ab")
    ]
    index = li.LongRAGIndex.from_documents(pages, embed_model=HashEmbedding())

    def ask(value):
        filters = MetadataFilters(filters=[MetadataFilter(key="level", value=value, operator=kind)])
        found = index.as_retriever(filters=filters, similarity_top_k=9).retrieve("page")
        return {id_ for one in found for id_ in one.node.metadata["doc_ids"]}

    ask(first)
    assert ask(second) == ids


@pytest.mark.parametrize("kind", [Op.NE, Op.GTE, Op.CONTAINS])
def test_a_lone_surrogate_in_a_filter_is_a_string_like_any_other(kind):
    pages = [
        LlamaDocument(id_=id_, text=f"page {id_}", metadata={"tenant": tenant})
        for id_, tenant in [("a", "x\ud800"), ("b", "x")]
    ]
    index = li.LongRAGIndex.from_documents(pages, embed_model=HashEmbedding())
    wanted = MetadataFilter(key="tenant", value="\ud800" if kind == Op.CONTAINS else "x\ud800")
    wanted.operator = kind
    retriever = index.as_retriever(filters=MetadataFilters(filters=[wanted]))
    found = {id_ for one in retriever.retrieve("page") for id_ in one.node.metadata["doc_ids"]}
    assert found == ({"b"} if kind == Op.NE else {"a"})
