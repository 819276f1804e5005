"""A forest of tokens in one row: who sees whom, and what is left when branches are dropped."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from longrag.models.transformers.token_tree import TokenTree

PROMPTS = [(1, 2, 3), (1, 2, 4), (5,)]


def seen_texts(tree):
    """Return, for each slot, the tokens and positions that it sees, by the whole mask."""
    mask = tree.visible(0, len(tree))
    tokens = np.array(tree.tokens(0, len(tree)))
    depths = np.array(tree.depths(0, len(tree)))
    return [(tuple(tokens[row]), tuple(depths[row])) for row in mask]


def test_a_chain_is_what_plain_attention_sees():
    tree = TokenTree([(7, 8, 9)])
    assert tree.extend([(0, (4,))]) == [3]
    assert tree.visible(0, 4).tolist() == np.tri(4, dtype=bool).tolist()
    assert tree.tokens(0, 4) == [7, 8, 9, 4]
    assert tree.is_chain(4)


def test_siblings_share_their_prompt_and_nothing_else():
    tree = TokenTree([(7, 8)])
    assert tree.extend([(0, (1,)), (0, (2,)), (0, (1, 3))]) == [2, 3, 4]
    assert tree.visible(2, 5).tolist() == [
        [True, True, True, False, False],
        [True, True, False, True, False],
        [True, True, True, False, True],
    ]
    assert tree.depths(2, 5) == [2, 2, 3]
    assert (tree.is_chain(3), tree.is_chain(4)) == (True, False)


def test_prompts_share_what_they_begin_with():
    tree = TokenTree(PROMPTS)
    assert tree.extend([(0, ()), (1, ()), (2, ())]) == [2, 3, 4]
    assert tree.tokens(0, 5) == [1, 2, 3, 4, 5]
    assert tree.depths(0, 5) == [0, 1, 2, 2, 0]
    assert tree.visible(4, 5).tolist() == [[False, False, False, False, True]]


def test_what_is_there_already_gets_a_twin_that_sees_the_same():
    tree = TokenTree([(7, 8)])
    tree.extend([(0, (1,))])
    assert tree.extend([(0, (1,)), (0, (1, 2)), (0, ())]) == [4, 3, 5]
    assert seen_texts(tree)[4] == seen_texts(tree)[2] == ((7, 8, 1), (0, 1, 2))
    assert seen_texts(tree)[5] == seen_texts(tree)[1]


def test_little_waste_is_kept_and_much_is_not():
    tree = TokenTree([(7, 8)])
    tree.extend([(0, (token,)) for token in range(9)])
    tree.extend([(0, (3, 5))])
    assert len(tree) == 12
    assert tree.is_wasteful(9, 4)
    assert not tree.is_wasteful(10, 4)
    assert not tree.is_wasteful(9, 5)


def test_compacting_keeps_the_prompts_and_the_last_paths():
    tree = TokenTree(PROMPTS)
    tree.extend([(0, (9,)), (2, (8,)), (2, (6,))])
    tree.extend([(2, (6, 7))])
    assert tree.compact().tolist() == [0, 1, 2, 4, 6, 7]
    assert tree.tokens(0, 6) == [1, 2, 3, 5, 6, 7]
    assert tree.depths(0, 6) == [0, 1, 2, 0, 1, 2]
    assert tree.extend([(2, (6, 7, 1)), (2, (8,)), (1, ())]) == [6, 7, 8]
    assert seen_texts(tree)[6:] == [
        ((5, 6, 7, 1), (0, 1, 2, 3)),
        ((5, 8), (0, 1)),
        ((1, 2, 4), (0, 1, 2)),
    ]


def test_what_is_one_path_after_compacting_is_a_chain_again():
    tree = TokenTree([(7, 8)])
    tree.extend([(0, (1,)), (0, (2,))])
    tree.extend([(0, (2, 3))])
    assert not tree.is_chain(len(tree))
    tree.compact()
    assert (len(tree), tree.is_chain(4)) == (4, True)
    tree.extend([(0, (2, 3, 4))])
    assert tree.is_chain(5)


paths = st.lists(st.integers(0, 2), max_size=4).map(tuple)
asked = st.lists(st.tuples(st.integers(0, 2), paths), min_size=1, max_size=5, unique=True)


@given(st.lists(st.tuples(asked, st.booleans()), max_size=6))
def test_every_new_slot_sees_exactly_its_own_text_in_order(calls):
    tree = TokenTree(PROMPTS)
    for prefixes, compact in calls:
        ends = tree.extend(prefixes)
        texts = seen_texts(tree)
        for (prompt, tokens), end in zip(prefixes, ends, strict=True):
            whole = (*PROMPTS[prompt], *tokens)
            assert texts[end] == (whole, tuple(range(len(whole))))
        if compact:
            before = seen_texts(tree)
            assert seen_texts_of(tree, tree.compact(), before)


def seen_texts_of(tree, kept, before):
    """Whether the slots that were kept see what they saw."""
    return seen_texts(tree) == [before[slot] for slot in kept]
