"""JSON in replies: found between words, outermost values alone, and in bounded time."""

import pytest

from longrag.models.json_replies import iterate_json


@pytest.mark.parametrize(
    ("reply", "opening", "values"),
    [
        ('Sure: {"a": 1}. And {"b": [2]}!', "{", [{"a": 1}, {"b": [2]}]),
        ('Sure: {"a": 1}. And {"b": [2]}!', "[", [[2]]),
        ('{"outer": {"inner": 1}}', "{", [{"outer": {"inner": 1}}]),
        ('{ "cut": 1, [1, "x"] {', "[", [[1, "x"]]),
        ("{not json} {}", "{", [{}]),
        ("no brackets", "{", []),
        ("", "[", []),
    ],
)
def test_values_are_found_between_words_and_not_within_each_other(reply, opening, values):
    assert list(iterate_json(reply, opening)) == values


def test_a_reply_of_brackets_is_given_up_after_a_hundred():
    assert list(iterate_json("{ " * 99 + '{"found": 1}', "{")) == [{"found": 1}]
    assert list(iterate_json("{ " * 100 + '{"late": 1}', "{")) == []
    assert list(iterate_json("[" * 100_000, "[")) == []
