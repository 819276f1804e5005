"""The grammar of an output, by hand."""

import pytest

from longrag.decoding.constraint import Constraint
from longrag.errors import InvalidParameterError, TokenizerError
from longrag.indexing import KeyIndex
from longrag.ingestion.sentences import split_sentences
from tests.longrag.decoding.grammar import BASE, MODES, Pieces, may_follow


class Bytes:
    """A byte-level tokenizer with an end token; markers are two tokens, or three."""

    vocab_size = 257
    fingerprint = "bytes"
    end = 256

    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(id_ for id_ in ids if id_ < 256).decode("utf-8", "replace")


def over(keys, tokenizer, *, mode="keys", markers=("<<", ">>"), **own):
    """Return a constraint over an index of texts."""
    index = KeyIndex.from_keys(keys, tokenizer=tokenizer, mode=mode, markers=markers)
    return Constraint(index, tokenizer, markers=markers, **own)


def written(constraint, text, *, tokenizer=None, inside=False):
    """Return the place after a text, checking that each token may follow."""
    tokenizer = tokenizer or Bytes()
    place = constraint.start(inside=inside)
    for token in tokenizer.encode(text):
        assert token in may_follow(constraint.moves(place), tokenizer.vocab_size)
        place = constraint.advance(place, token)
    return place


def follows(constraint, place, tokenizer=None):
    """Return the texts of the tokens that may follow inside a span."""
    tokenizer = tokenizer or Bytes()
    allowed = constraint.moves(place).allowed
    return {tokenizer.decode([token]) for token in allowed.tolist()}


def texts_of(text, place):
    """Return the text of each span, in bytes and so in tokens."""
    return [text.encode()[span.start : span.end].decode() for span in place.spans]


@pytest.mark.parametrize(
    ("before", "opening", "banned"),
    [
        ("", {"<<", " <<", ".<<"}, {"<<a", "<<<", "<< "}),
        ("<", {"<", " <<", ".<<"}, {"<<", "<<a", "<<<", "<< ", "<a"}),
        ("a", {"<<", " <<", ".<<"}, {"<<a", "<<<", "<< "}),
        ("< ", {"<<", " <<", ".<<"}, {"<<a", "<<<", "<< "}),
    ],
)
def test_what_opens_and_what_is_banned_depends_on_the_end_of_the_text(before, opening, banned):
    tokenizer = Pieces([*BASE, "<<", " <<", ".<<", "<<a", "<<<", "<< ", "<a", "</s>"])
    constraint = over(["a"], tokenizer, end_ids=[11])
    place = written(constraint, before, tokenizer=tokenizer)
    left = may_follow(constraint.moves(place), 12)
    assert {tokenizer.pieces[token] for token in range(12) if token not in left} == banned
    opens = [t for t in left - {11} if not constraint.advance(place, t).free]
    assert {tokenizer.pieces[token] for token in opens} == opening


def test_banned_tokens_are_one_array_for_all_places_of_a_kind():
    constraint = over(["a"], Bytes())
    first = constraint.moves(constraint.start()).banned
    assert constraint.moves(written(constraint, "a text, << a >> and so on")).banned.tolist() == []
    assert constraint.moves(written(constraint, "another text")).banned is first


def test_a_key_with_markers_in_it_is_written_whole():
    text = "see << cout << x >> y >> ."
    constraint = over(["cout << x >> y"], Bytes())
    place = written(constraint, text)
    assert place.free
    assert texts_of(text, place) == [" cout << x >> y"]
    assert [span[:3] for span in place.spans] == [(6, 21, 24)]


def test_a_key_that_begins_another_closes_at_once_or_goes_on():
    constraint = over(["cat", "cat nap"], Bytes())
    place = written(constraint, "<< cat")
    assert follows(constraint, place) == {" "}
    place = constraint.advance(place, ord(" "))
    assert follows(constraint, place) == {">", "n"}
    assert constraint.moves(place).closers == {ord(">")}
    assert len(place.readings) == 2
    for text, keys in [("<< cat >>", [" cat"]), ("<< cat nap >>", [" cat nap"])]:
        assert texts_of(text, written(constraint, text)) == keys


@pytest.mark.parametrize(
    ("text", "keys", "free"),
    [
        ("<< a >>", [" a"], False),
        ("<< a >> b", [" a"], False),
        ("<< a >> c", [" a"], True),
        ("<< a >> b >", [" a"], False),
        ("<< a >> b >>", [" a >> b"], True),
        ("<< a >> b c", [" a"], True),
    ],
)
def test_where_a_marker_is_read_in_two_ways_the_longer_key_wins_once_it_is_closed(text, keys, free):
    constraint = over(["a", "a >> b"], Bytes())
    place = written(constraint, text)
    assert (texts_of(text, place), place.free) == (keys, free)


def test_of_two_keys_closed_by_one_marker_the_longer_wins():
    text = "<< a >> << b >>"
    constraint = over(["a", "b", "a >> << b"], Bytes())
    assert not written(constraint, text[:-1]).free
    assert texts_of(text, written(constraint, text)) == [" a >> << b"]


def test_free_text_and_a_key_may_both_follow_an_ambiguous_marker():
    tokenizer = Pieces(["a", " a", "<<", " >>", ">>", " ", ">", "<", "<<a", "b", "</s>"])
    index = KeyIndex.from_token_ids([[1], [1, 3, 8]], vocab_size=11)
    constraint = Constraint(index, tokenizer, end_ids=[10])
    place = constraint.start(inside=True)
    for token in (1, 3):
        place = constraint.advance(place, token)
    moves = constraint.moves(place)
    assert (moves.allowed, moves.banned.tolist(), moves.closers) == (None, [], frozenset())
    assert constraint.moves(constraint.start()).banned.tolist() == [8]
    longer = constraint.advance(place, 8)
    assert (longer.free, longer.spans) == (False, ())
    assert constraint.moves(longer).closers == {3, 4}


@pytest.mark.parametrize("mode", MODES)
def test_a_corpus_of_one_key_is_retrieved_once_or_as_often_as_wanted(mode):
    keys = ["rye"]
    once, often = (over(keys, Bytes(), mode=mode, repeat_keys=again) for again in (False, True))
    place = written(often, "<< rye >><< rye >> <")
    assert len(place.spans) == 2
    assert ord("<") in may_follow(often.moves(place), 257)
    if mode == "keys":
        place = written(once, "<< rye >> <")
        assert once.moves(place).banned.tolist() == [ord("<")]


@pytest.mark.parametrize("mode", MODES)
def test_nothing_opens_over_an_index_without_keys(mode):
    tokenizer = Pieces([*BASE, "<<", " <<", "</s>"])
    constraint = over([], tokenizer, mode=mode, end_ids=[6])
    moves = constraint.moves(constraint.start())
    assert [tokenizer.pieces[token] for token in moves.banned] == ["<<", " <<"]
    assert constraint.moves(constraint.start(inside=True)).allowed.tolist() == []
    with pytest.raises(InvalidParameterError, match="no keys to quote: min_spans must be 0, got"):
        over([], tokenizer, mode=mode, min_spans=1)


def test_a_retrieved_key_leaves_those_it_begins_and_those_it_goes_on():
    constraint = over(["ab", "abc", "abd", "x", "x"], Bytes())
    place = written(constraint, "<< ab >><< ab")
    assert follows(constraint, place) == {"c", "d"}
    place = written(constraint, "<< abc >><< ab")
    assert follows(constraint, place) == {"d", " "}
    place = written(constraint, "<< x >><< ")
    assert follows(constraint, place) == {"a"}
    place = written(constraint, "<< abc >><< abd >><< ab >><< x >> <")
    assert constraint.moves(place).banned.tolist() == [ord("<")]


def test_keys_are_repeated_rather_than_fewer_than_wanted_retrieved():
    constraint = over(["x", "y"], Bytes(), min_spans=3, end_ids=[256])
    place = written(constraint, "<< x >><< y >><< ")
    assert follows(constraint, place) == {"x", "y"}
    assert constraint.must_open(written(constraint, "<< x >><< y >>"), 256)
    place = written(constraint, "<< x >><< y >><< y >> <")
    assert constraint.moves(place).banned.tolist() == [ord("<")]


@pytest.mark.parametrize("mode", ["substring", "fm"])
def test_a_stretch_is_not_closed_twice_while_it_can_go_on(mode):
    text = "It grinds rye. It stands by the river."
    constraint = over([text], Bytes(), mode=mode)
    place = written(constraint, "<<grinds rye. >><<grinds rye.")
    assert follows(constraint, place) == {" "}
    assert constraint.moves(place).closers == frozenset()
    place = constraint.advance(place, ord(" "))
    assert follows(constraint, place) == {"I"}
    again = written(constraint, "<<the river. >><<the river.")
    assert follows(constraint, again) == {" "}
    assert constraint.moves(again).closers == {ord(" ")}


@pytest.mark.parametrize("mode", ["substring", "fm"])
def test_stretches_close_where_sentences_end(mode):
    key = "It grinds rye. It stands."
    assert [end for _, end in split_sentences(key)] == [14, 25]
    constraint = over([key], Bytes(), mode=mode)
    assert constraint.moves(written(constraint, "<<grinds rye")).closers == frozenset()
    assert len(written(constraint, "<<grinds rye. >").readings) == 1
    assert texts_of("<<grinds rye. >>", written(constraint, "<<grinds rye. >>")) == ["grinds rye."]
    assert constraint.moves(written(constraint, "<<rye.")).closers == frozenset()


@pytest.mark.parametrize("mode", ["substring", "fm"])
def test_a_stretch_begins_with_a_whole_character(mode):
    text = "漢字は難しい。 Émile 😀"
    constraint = over([text], Bytes(), mode=mode)
    allowed = constraint.moves(constraint.start(inside=True)).allowed.tolist()
    assert allowed == sorted({char.encode()[0] for char in f" {text}"})


def test_a_span_that_is_too_long_is_stuck_and_one_at_the_limit_only_closes():
    constraint = over(["abc", "ab", "xyz"], Bytes(), max_span_tokens=3)
    place = written(constraint, "<< ab")
    assert follows(constraint, place) == {" "}
    assert constraint.moves(place).closers == {ord(" ")}
    assert constraint.moves(written(constraint, "<< xy")).allowed.tolist() == []


def test_spans_are_counted():
    constraint = over(["a", "b", "c"], Bytes(), min_spans=1, max_spans=2, end_ids=[256])
    assert constraint.moves(constraint.start()).banned.tolist() == []
    assert constraint.moves(written(constraint, "<< a")).allowed.tolist() == [ord(" ")]
    assert constraint.moves(written(constraint, "<< a >> <")).banned.tolist() == []
    assert constraint.moves(written(constraint, "<< a >><< c >> <")).banned.tolist() == [ord("<")]


@pytest.mark.parametrize(
    ("text", "token", "expected"),
    [
        ("", 256, True),
        ("so", 256, True),
        ("so", ord("\n"), True),
        ("", ord("\n"), False),
        ("so", ord(" "), False),
        ("so", ord("!"), True),
        ("so far", ord(" "), True),
        ("so <", ord("<"), False),
        ("<< a >> so", 256, True),
        ("<< a >> so far", ord("x"), True),
        ("<< a >><< b >>", 256, False),
        ("<< a >><< b >>", ord("\n"), False),
        ("<< a", 256, False),
    ],
)
def test_a_span_that_is_still_owed_is_opened_where_the_line_or_the_output_would_end(
    text, token, expected
):
    constraint = over(
        ["a", "b", "c"], Bytes(), min_spans=2, max_thought_tokens=6, stop=["!"], end_ids=[256]
    )
    assert constraint.must_open(written(constraint, text), token) is expected


def test_without_keys_left_no_span_is_owed():
    assert not over([], Bytes(), end_ids=[256]).must_open(over([], Bytes()).start(), 256)
    constraint = over(["a"], Bytes(), max_spans=1, min_spans=1, end_ids=[256])
    assert not constraint.must_open(written(constraint, "<< a >>"), 256)


def test_an_end_token_in_a_key_is_never_reached():
    index = KeyIndex.from_token_ids([[97, 256], [98]], vocab_size=257)
    constraint = Constraint(index, Bytes(), end_ids=[256])
    place = constraint.advance(constraint.start(inside=True), 97)
    assert constraint.moves(place).allowed.tolist() == []
    with pytest.raises(InvalidParameterError, match="token must be one of those that may follow"):
        constraint.advance(place, 256)


@pytest.mark.parametrize(
    ("stop", "text", "finished"),
    [
        ("\n\n", "so\n\n", True),
        ("\n\n", "so\n<< a >>\n", False),
        ("\n\n", "so\n<< a >>\n\n", True),
        (" a", "<< a >>", False),
        ("。", "磨坊。", True),
        ("磨坊", "这个磨坊", True),
        ("磨坊", "磨磨", False),
        ("<", "so <", True),
    ],
)
def test_an_output_is_finished_by_a_stop_string_in_free_text(stop, text, finished):
    constraint = over(["a", "b"], Bytes(), stop=[stop])
    before = written(constraint, text[:-1])
    place = written(constraint, text)
    assert (before.finished, place.finished) == (False, finished)
    if finished:
        assert constraint.moves(place).allowed.tolist() == []


def test_a_stop_string_before_the_marker_in_one_token_leaves_the_span_unopened():
    tokenizer = Pieces([*BASE, ".<<", "</s>"])
    constraint = over(["a"], tokenizer, stop=["."], end_ids=[5])
    place = constraint.advance(constraint.start(), 4)
    assert (place.free, place.finished) == (True, True)


def test_the_text_behind_a_marker_in_the_token_that_closes_is_free_text():
    tokenizer = Pieces([*BASE, "<<", ">>\n", "\n", "</s>"])
    constraint = over(["a"], tokenizer, stop=["\n\n"], end_ids=[7])
    place = written(constraint, "<< a>>\n", tokenizer=tokenizer)
    assert (place.free, place.finished) == (True, False)
    assert constraint.advance(place, 6).finished


@pytest.mark.parametrize("markers", [("[[", "]]"), ("⟦", "⟧"), ("<e>", "</e>"), ("《", "》")])
def test_other_markers_do_the_same_in_bytes(markers):
    opening, closing = markers
    keys = ["磨坊", "磨坊的河", "a", f"a {closing} b", f"a{opening}b"]
    constraint = over(keys, Bytes(), markers=markers)
    for key in keys:
        text = f"so {opening} {key} {closing}."
        place = written(constraint, text)
        assert (place.free, texts_of(text, place)) == (True, [f" {key}"])


def test_tokens_that_complete_a_split_marker_and_go_on_are_banned():
    class Split(Bytes):
        vocab_size = 259

        def decode(self, ids):
            wide = {257: b"\x9f\xa6x", 258: b"\x9f\xa6"}
            return b"".join(wide.get(i, bytes([i % 256])) for i in ids).decode("utf-8", "replace")

    constraint = over(["a"], Split(), markers=("⟦", "⟧"))
    place = constraint.advance(constraint.start(), 0xE2)
    assert constraint.moves(place).banned.tolist() == [257]
    assert not constraint.advance(place, 258).free
    with pytest.raises(InvalidParameterError, match="token must be one of those"):
        constraint.advance(place, 257)
    other = constraint.advance(constraint.start(), 0xE3)
    assert constraint.moves(other).banned.tolist() == []


def test_places_are_values():
    constraint = over(["a", "a >> b"], Bytes())
    one, other = (written(constraint, "x << a >>") for _ in range(2))
    assert (one, hash(one)) == (other, hash(other))
    constraint.advance(one, 97)
    assert one == other


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"markers": ("<<", "<<")}, "markers must be a tuple of two strings"),
        ({"markers": ("<<", "<<<")}, "neither of which contains the other"),
        ({"markers": ("< <", ">")}, "without white space"),
        ({"markers": ("", ">")}, "markers must be"),
        ({"markers": ["<<", ">>"]}, "markers must be"),
        ({"stop": "\n"}, "stop must be a sequence of strings"),
        ({"stop": [""]}, "stop must be a sequence of strings"),
        ({"stop": ["so <<"]}, "is never free text: leave it out of stop='so <<'"),
        ({"end_ids": [257]}, "end_ids must be a sequence of ids from 0 to 256"),
        ({"end_ids": ["a"]}, "end_ids must be"),
        ({"min_spans": -1}, "min_spans must be an integer of at least 0"),
        ({"max_spans": True}, "max_spans must be an integer"),
        ({"min_spans": 2, "max_spans": 1}, "max_spans must be at least min_spans = 2"),
        ({"max_span_tokens": 0}, "max_span_tokens must be an integer of at least 1"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(own, message):
    index = KeyIndex.from_keys(["a"], tokenizer=Bytes())
    with pytest.raises(InvalidParameterError, match=message):
        Constraint(index, Bytes(), **own)


def test_a_tokenizer_that_is_not_the_indexs_is_refused():
    index = KeyIndex.from_keys(["a"], tokenizer=Bytes())
    with pytest.raises(TokenizerError, match="Build the index with the language model's tokenizer"):
        Constraint(index, Pieces([*BASE, "</s>"]))


@pytest.mark.parametrize("scheme", ["never", "always"])
def test_a_unigram_tokenizer_writes_and_closes_keys(scheme):
    pytest.importorskip("tokenizers", reason="needs tokenizers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = ["▁", "<", "▁<", "<<", "▁<<", ">>", "▁>>", "a", "▁a", "b", "▁b", "ab", "▁磨", "坊"]
    own = Tokenizer(models.Unigram([("<unk>", 0.0), *((p, -1.0) for p in pieces)], 0, False))
    own.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    own.decoder = decoders.Metaspace(prepend_scheme="always")

    class Metaspace:
        vocab_size, fingerprint = len(pieces) + 1, "metaspace"

        def encode(self, text):
            return own.encode(text).ids

        def decode(self, ids):
            return own.decode(list(ids))

    tokenizer = Metaspace()
    constraint = over(["a b", "ab", "磨坊"], tokenizer)
    text = " a << a b >> b << 磨坊 >> < <"
    place = written(constraint, text, tokenizer=tokenizer)
    ids = tokenizer.encode(text)
    found = [tokenizer.decode(ids[span.start : span.end]) for span in place.spans]
    assert (found, place.free) == (["a b", "磨坊"], True)


def test_a_tokenizer_that_cuts_keys_differently_between_markers_is_refused_by_the_index():
    class Joins(Bytes):
        """It has one token for a full stop and the closing marker."""

        def encode(self, text):
            return list(text.replace(". >>", "\x01").encode())

    with pytest.raises(TokenizerError, match="differently between the markers"):
        over(["It stands."], Joins())
