"""Best first, best last, or the best at both ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrag.errors import InvalidParameterError
from longrag.refinement import repack


@pytest.mark.parametrize(
    ("order", "five", "four"),
    [
        ("forward", [1, 2, 3, 4, 5], [1, 2, 3, 4]),
        ("reverse", [5, 4, 3, 2, 1], [4, 3, 2, 1]),
        ("sides", [1, 3, 5, 4, 2], [1, 3, 4, 2]),
    ],
)
def test_the_orders_of_the_paper_for_both_parities(order, five, four):
    assert repack([1, 2, 3, 4, 5], order) == five
    assert repack((1, 2, 3, 4), order) == four


def test_the_best_stands_last_unless_said_otherwise():
    assert repack(["best", "second"]) == ["second", "best"]


@given(st.lists(st.integers(0, 3)))
def test_sides_puts_each_next_best_at_the_outermost_free_place_of_alternate_ends(items):
    numbered = list(enumerate(items))
    left, free = [None] * len(items), list(range(len(items)))
    for rank, item in enumerate(numbered):
        left[free.pop(0 if rank % 2 == 0 else -1)] = item
    assert repack(numbered, "sides") == left


@given(st.lists(st.integers()), st.sampled_from(["forward", "reverse", "sides"]))
def test_nothing_is_lost_doubled_or_changed_in_place(items, order):
    before = list(items)
    packed = repack(items, order)
    assert sorted(packed) == sorted(before)
    assert items == before
    assert packed is not items


@pytest.mark.parametrize("order", ["forward", "reverse", "sides"])
def test_no_item_and_one_item_stay_as_they_are(order):
    assert repack([], order) == []
    assert repack(["水坝"], order) == ["水坝"]


@pytest.mark.parametrize("order", ["side", "", None, "Reverse"])
def test_another_order_is_refused(order):
    with pytest.raises(
        InvalidParameterError, match='order must be "forward", "reverse" or "sides"'
    ):
        repack([1], order)
