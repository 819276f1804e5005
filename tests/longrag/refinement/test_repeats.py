"""Texts that repeat others come last."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrag.errors import InvalidParameterError
from longrag.models.words import content_terms
from longrag.refinement import put_off_repeats

MILL = "The mill at Oberau burned down."
BURNED = "At Oberau a mill burned."
RIVER = "Three rivers meet in Passau."


def test_what_repeats_better_texts_comes_after_all_others():
    assert put_off_repeats([MILL, BURNED, RIVER]) == [0, 2, 1]
    assert put_off_repeats([BURNED, MILL, RIVER, BURNED]) == [0, 2, 1, 3]
    assert put_off_repeats([RIVER, MILL]) == [0, 1]
    assert put_off_repeats([]) == []


def test_the_share_decides_what_is_a_repetition():
    half = ["mill church", "mill tower"]
    assert put_off_repeats([*half, "river"], 0.49) == [0, 2, 1]
    assert put_off_repeats([*half, "river"], 0.5) == [0, 1, 2]
    assert put_off_repeats(["mill", "mill", "river"], 1) == [0, 1, 2]


def test_texts_without_content_words_are_put_off_only_when_they_are_there_twice():
    assert put_off_repeats(["...", "and so", "...", "mill"]) == [0, 1, 3, 2]


WORDS = st.sampled_from(["mill", "river", "tower", "church", "bell"])


@given(st.lists(st.lists(WORDS, min_size=1), max_size=8))
def test_every_text_is_there_once_and_no_taken_one_repeats_those_before(lists):
    order = put_off_repeats([" ".join(words) for words in lists])
    assert sorted(order) == list(range(len(lists)))
    words = [set(content_terms(" ".join(own))) for own in lists]
    taken: list[int] = []
    for place, own in enumerate(words):
        read = set().union(*(words[other] for other in taken))
        if len(own & read) <= 0.4 * len(own):
            taken.append(place)
    assert order == [*taken, *(place for place in range(len(lists)) if place not in taken)]


@pytest.mark.parametrize("share", [-0.1, 1.1, True, "0.4", float("nan")])
def test_a_share_that_is_not_from_0_to_1_is_refused(share):
    with pytest.raises(InvalidParameterError, match="redundancy"):
        put_off_repeats([], share)
