"""Conditions of databases that run as servers, made of values as data."""

from types import SimpleNamespace

import pytest

from longrag.integration.remote_stores import (
    ExactSearches,
    check_tags,
    compare_field,
    exclude_terms,
    match_terms,
    read_hits,
    set_candidates,
)


def tag(*, case_sensitive=True, kind="tag"):
    return SimpleNamespace(type=kind, attrs=SimpleNamespace(case_sensitive=case_sensitive))


def test_terms_are_compared_type_by_type_and_texts_unchanged():
    assert match_terms("metadata.unit", ["a", 1, "b", True]) == {
        "bool": {
            "should": [
                {"terms": {"metadata.unit.keyword": ["a", "b"]}},
                {"terms": {"metadata.unit": [1]}},
                {"terms": {"metadata.unit": [True]}},
            ],
            "minimum_should_match": 1,
        }
    }
    mapped = exclude_terms("metadata.ref_doc_id", ["a"], suffix="")
    assert mapped["bool"]["must_not"][0]["bool"]["should"] == [
        {"terms": {"metadata.ref_doc_id": ["a"]}}
    ]
    assert exclude_terms("metadata.unit", []) == {"match_all": {}}
    with pytest.raises(NotImplementedError):
        match_terms("metadata.unit", [("a",)])


@pytest.mark.parametrize(
    ("k", "given", "deep", "expected"),
    [(4, 50, False, 50), (80, 50, False, 800), (2000, 50, False, 10_000), (4, 50, True, 10_000)],
)
def test_candidates_are_as_many_as_the_database_takes(k, given, deep, expected):
    asked = {"knn": {"k": k, "num_candidates": given, "field": "v"}}
    body = set_candidates(None, deep=deep)(asked, "question")
    assert body == {"knn": {"k": k, "num_candidates": expected, "field": "v"}}
    assert asked["knn"]["num_candidates"] == given


def test_the_users_own_adjustment_comes_first_and_other_searches_stay():
    def own(body, text):
        return {"query": {"match": {"text": text}}}

    adjust = set_candidates(own, deep=True)
    assert adjust({"knn": {"k": 1, "num_candidates": 1}}, "mill") == {
        "query": {"match": {"text": "mill"}}
    }


@pytest.mark.parametrize(
    "change",
    [{"timed_out": True}, {"_shards": {"failed": 1}}, {"hits": {"hits": [{}] * 10_000}}],
)
def test_a_listing_that_may_lack_rows_is_none(change):
    whole = {"hits": {"hits": [{"_id": "a"}]}, "timed_out": False, "_shards": {"failed": 0}}
    assert read_hits(whole) == [{"_id": "a"}]
    with pytest.raises(NotImplementedError):
        read_hits({**whole, **change})


def test_a_field_is_compared_type_by_type_and_an_operator_is_no_field():
    assert compare_field("unit", "$nin", ["$ne", 2.5]) == [
        {"unit": {"$nin": ["$ne"]}},
        {"unit": {"$nin": [2.5]}},
    ]
    with pytest.raises(NotImplementedError):
        compare_field("$where", "$in", ["a"])


@pytest.mark.parametrize(
    "value", ["a|b", "a}b", "two\nlines", "a,b", " a", "a ", "O'Brien.md", "*", "", 1, "日本"]
)
def test_a_name_that_may_mean_something_else_is_no_tag(value):
    with pytest.raises(NotImplementedError):
        check_tags(tag(), ["plain", value], exclude=False)


def test_a_tag_that_knows_no_case_lists_and_does_not_exclude():
    names = ["notes/mill.md", "two words", "user@host:1"]
    assert check_tags(tag(), names, exclude=True) == names
    assert check_tags(tag(case_sensitive=False), names, exclude=False) == names
    for field in (tag(case_sensitive=False), tag(kind="text"), None):
        with pytest.raises(NotImplementedError):
            check_tags(field, names, exclude=True)


def test_an_exact_search_has_no_candidates():
    asked = []
    collection = SimpleNamespace(name="rows", aggregate=asked.append)
    pipeline = [{"$vectorSearch": {"limit": 4, "numCandidates": 40}}, {"$set": {"score": 1}}]
    exact = ExactSearches(collection)
    exact.aggregate(pipeline)
    assert asked == [[{"$vectorSearch": {"limit": 4, "exact": True}}, {"$set": {"score": 1}}]]
    assert pipeline[0]["$vectorSearch"]["numCandidates"] == 40
    assert exact.name == "rows"
