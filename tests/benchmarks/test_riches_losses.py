"""A lost question is blamed on the first step at which something was missing."""

import itertools

import pytest

from longrag.errors import InvalidParameterError
from longrag.indexing import KeyIndex

losses = pytest.importorskip("benchmarks.riches_losses", reason="not in a source distribution")
IndexedKeys, loss = losses.IndexedKeys, losses.loss
loss_counts, needs_context = losses.loss_counts, losses.needs_context

A, B, LOST = "Ada was born in Lund.", "Lund is in Sweden.", "It is in Sweden."


class Bytes:
    vocab_size = 256
    fingerprint = "bytes"

    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")


def blame(**given):
    settings = {"correct": False, "entailed": False, "gold_keys": [A, B], "indexed": {A, B, LOST}}
    return loss(**(settings | given))


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"retrieved": [], "indexed": {A}}, "index"),
        ({"retrieved": [A], "indexed": {A}}, "index"),
        ({"retrieved": [], "indexed": set()}, "index"),
        ({"retrieved": [A, LOST], "gold_keys": [A, LOST]}, "index"),
        ({"retrieved": []}, "search"),
        ({"retrieved": [A, "Other."]}, "search"),
        ({"retrieved": ["Lund is in  Sweden."], "gold_keys": [B]}, "attribution"),
        ({"retrieved": [B, "Other.", A]}, "attribution"),
        ({"retrieved": [A, B], "correct": True}, "attribution"),
        ({"retrieved": [A, B], "entailed": True}, "attribution"),
        ({"retrieved": [A], "correct": True}, "search"),
        ({"retrieved": [], "correct": True, "entailed": True}, None),
    ],
)
def test_the_first_step_with_something_missing_is_to_blame(given, what):
    assert blame(**given) == what


def test_every_lost_question_has_exactly_one_class_and_no_other_has_any():
    keys = (A, B)
    sets = [set(c) for n in range(3) for c in itertools.combinations(keys, n)]
    for correct, entailed in itertools.product((False, True), repeat=2):
        for indexed, retrieved in itertools.product(sets, repeat=2):
            found = blame(
                correct=correct, entailed=entailed, indexed=indexed, retrieved=sorted(retrieved)
            )
            missing = "index" if indexed != set(keys) else "search"
            whole = indexed == retrieved == set(keys)
            expected = "attribution" if whole else missing
            assert found == (None if correct and entailed else expected)


def test_documents_are_compared_by_their_ids_alone():
    given = {"gold_keys": (), "gold_docs": ["it.md"], "indexed": ("it.md", "b.md")}
    assert blame(**given, retrieved=["b.md"]) == "search"
    assert blame(**given, retrieved=["it.md"]) == "attribution"
    assert blame(**(given | {"indexed": ["b.md"]}), retrieved=["it.md"]) == "index"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"gold_keys": ()}, "Pass either gold_keys or gold_docs"),
        ({"gold_docs": ["a"]}, "Pass either gold_keys or gold_docs"),
        ({"gold_keys": [" "]}, r"gold_keys\[0\] must be"),
        ({"gold_keys": "abc"}, "gold_keys must be"),
        ({"retrieved": "abc"}, "retrieved must be"),
        ({"retrieved": [None]}, r"retrieved\[0\] must be"),
        ({"indexed": "abc"}, "indexed must be"),
    ],
)
def test_what_is_not_given_as_it_must_be_is_refused(given, name):
    with pytest.raises(InvalidParameterError, match=f"^{name}"):
        blame(**({"retrieved": []} | given))


@pytest.mark.parametrize(
    "text",
    ["It burned.", "he said so.", '"They" left.', "Its wheel turns.", "These are old.",
     "There he lived.", "The former is older.", "他生于北京。", "该系列共有七季。",
     "这座磨坊很旧。"],
)  # fmt: skip
def test_a_key_that_begins_with_a_pointing_word_needs_its_context(text):
    assert needs_context(text)


@pytest.mark.parametrize(
    "text", ["Italy is large.", "Thesis work.", "Theresa left.", "The mill it is.", "", "磨坊"]
)
def test_a_key_that_names_what_it_is_about_does_not(text):
    assert not needs_context(text)


def test_losses_are_counted_in_the_order_of_the_table():
    assert loss_counts(["search", None, "index", "search"]) == {
        "index": 1,
        "search": 2,
        "attribution": 0,
    }
    assert list(loss_counts([])) == ["index", "search", "attribution"]
    with pytest.raises(InvalidParameterError, match="losses must be one of"):
        loss_counts(["other"])


@pytest.mark.parametrize("mode", ["keys", "substring"])
def test_an_index_holds_what_can_be_decoded_from_it(mode):
    index = KeyIndex.from_keys([A, "Lund is in Sweden. It rains."], tokenizer=Bytes(), mode=mode)
    held = IndexedKeys(index, Bytes())
    assert A in held
    assert A.replace(" ", "\n") in held
    assert A[:-1] not in held
    assert (B in held) is (mode == "substring")
    assert "" not in held
    assert 3 not in held
    assert blame(indexed=held, retrieved=[]) == ("search" if mode == "substring" else "index")
