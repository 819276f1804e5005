"""Conditions of databases, made of values as data or of literals that are safe."""

import pytest

from longrag.stores.databases import (
    compare_field,
    compare_terms,
    milvus_condition,
    set_candidates,
    sql_condition,
)


def test_terms_are_compared_type_by_type_and_texts_unchanged():
    assert compare_terms("metadata.unit", ["a", 1, "b", True], inside=True) == {
        "bool": {
            "should": [
                {"terms": {"metadata.unit.keyword": ["a", "b"]}},
                {"terms": {"metadata.unit": [1]}},
                {"terms": {"metadata.unit": [True]}},
            ]
        }
    }
    mapped = compare_terms("metadata.ref_doc_id", ["a"], suffix="", inside=False)
    assert mapped == {"bool": {"must_not": [{"terms": {"metadata.ref_doc_id": ["a"]}}]}}
    with pytest.raises(NotImplementedError):
        compare_terms("metadata.unit", [("a",)], inside=True)


@pytest.mark.parametrize(
    ("k", "given", "expected"), [(4, 50, 50), (80, 50, 800), (2000, 50, 10_000)]
)
def test_candidates_are_as_many_as_the_database_takes(k, given, expected):
    asked = {"knn": {"k": k, "num_candidates": given, "field": "v"}}
    body = set_candidates(None)(asked, "question")
    assert body == {"knn": {"k": k, "num_candidates": expected, "field": "v"}}
    assert asked["knn"]["num_candidates"] == given


def test_the_users_own_adjustment_comes_first_and_other_searches_stay():
    def own(body, text):
        return {"query": {"match": {"text": text}}}

    adjust = set_candidates(own)
    assert adjust({"knn": {"k": 1, "num_candidates": 1}}, "mill") == {
        "query": {"match": {"text": "mill"}}
    }


def test_a_field_is_compared_type_by_type_and_an_operator_is_no_field():
    parts = [{"unit": {"$nin": ["$ne"]}}, {"unit": {"$nin": [2.5]}}]
    assert compare_field("unit", ["$ne", 2.5], inside=False) == parts
    parts = [{"unit": {"$in": ["$ne"]}}, {"unit": {"$in": [2.5]}}]
    assert compare_field("unit", ["$ne", 2.5], inside=True) == [{"$or": parts}]
    with pytest.raises(NotImplementedError):
        compare_field("$where", ["a"], inside=True)


@pytest.mark.parametrize("value", ["a\0b", float("nan"), None, ("a",), 2**63])
def test_a_value_without_a_safe_literal_is_refused(value):
    with pytest.raises(NotImplementedError):
        sql_condition("unit", [value], inside=True)
    with pytest.raises(NotImplementedError):
        milvus_condition("unit", [value], inside=True)


def test_literals_end_where_they_should():
    hostile = "x') OR 1=1 --\\"
    assert sql_condition("unit", [hostile, 1], inside=False) == (
        "unit NOT IN ('x'') OR 1=1 --\\', 1)"
    )
    assert milvus_condition("unit", ['a" or 1 == 1', True], inside=False) == (
        'unit not in ["a\\" or 1 == 1", true]'
    )
