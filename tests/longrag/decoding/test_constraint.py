"""The grammar of an output against a naive reading of its text, and by hand."""

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from longrag.decoding.constraint import Constraint
from longrag.errors import InvalidParameterError, TokenizerError
from longrag.indexing import KeyIndex
from longrag.ingestion.sentences import split_sentences

MODES = ("keys", "substring", "fm")
BASE = ["a", " ", "<", ">"]
NASTY = ["<<", " <<", "<<a", "<<<", ".<<", "(<<", "<< ", "a<", "<a", "a<<"]
NASTY += [">>", " >>", ">>\n", "> ", ">>>", " >", " >> ", ">>a", "b", "\n", ""]

AMID = [" >>", ">>", " >> <<", " >>a"]
STOPS = ["b", "\n", "<a", "> ", "a a", "<", ".", "a<"]


class Pieces:
    """A tokenizer of given pieces; the longest that fits is taken."""

    def __init__(self, pieces):
        self.pieces = tuple(pieces)
        self.vocab_size = len(pieces)
        self.fingerprint = repr(pieces)

    def encode(self, text):
        ids = []
        while text:
            fitting = [piece for piece in self.pieces if piece and text.startswith(piece)]
            ids.append(self.pieces.index(max(fitting, key=len)))
            text = text[len(self.pieces[ids[-1]]) :]
        return ids

    def decode(self, ids):
        return "".join(self.pieces[id_] for id_ in ids)


class Bytes:
    """A byte-level tokenizer with an end token; markers are two tokens, or three."""

    vocab_size = 257
    fingerprint = "bytes"
    end = 256

    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(id_ for id_ in ids if id_ < 256).decode("utf-8", "replace")


class Naive:
    """The same grammar, by whole texts and lists of keys; readings are plain tuples."""

    def __init__(self, tokenizer, keys, ends, mode, markers, **own):
        self.texts, self.end, self.mode = tokenizer.pieces, tokenizer.vocab_size - 1, mode
        self.keys, self.ends = [tuple(key) for key in keys], ends
        self.opening, self.closing = markers
        self.canonical = tokenizer.encode(f" {self.closing}")
        self.own = own

    def start(self, inside):
        return [("in", (), 0, (), 0)] if inside else [("free", (), "", False)]

    def goes_on(self, path):
        if self.mode == "keys":
            return any(key[: len(path)] == path for key in self.keys)
        return any(key[at : at + len(path)] == path for key in self.keys for at in range(len(key)))

    def whole(self, path):
        if self.mode == "keys":
            return path in self.keys
        return any(
            key[at : at + len(path)] == path
            and (at + len(path) == len(key) or (at + len(path) in ends and len(path) >= 2))
            for key, ends in zip(self.keys, self.ends, strict=True)
            for at in range(len(key))
        )

    def inner(self, spans, path, used):
        """Return the tokens that go on a key, and whether it may be closed."""
        cap = self.own["max_span_tokens"]
        tokens = {
            token
            for token in range(self.end)
            if (cap is None or len(path) < cap)
            and self.goes_on((*path, token))
            and (
                self.mode != "keys"
                or any(
                    key[: len(path) + 1] == (*path, token) and key not in used for key in self.keys
                )
            )
        }
        return tokens, bool(path) and self.whole(path) and path not in used

    def inside(self, spans, path):
        used = () if self.own["repeat_keys"] else tuple(span[3] for span in spans)
        tokens, closes = self.inner(spans, path, used)
        return (tokens, closes) if tokens or closes else self.inner(spans, path, ())

    def may_open(self, spans):
        most = self.own["max_spans"]
        if most is not None and len(spans) >= most:
            return False
        if self.mode != "keys" or self.own["repeat_keys"] or len(spans) < self.own["min_spans"]:
            return bool(self.keys)
        return any(key not in [span[3] for span in spans] for key in self.keys)

    def step(self, reading, token, length):
        """Return the readings one token further, each with whether it is written by closing."""
        return list(
            self.free_step(reading, token, length)
            if reading[0] == "free"
            else self.inside_step(reading, token, length)
        )

    def free_step(self, reading, token, length):
        _, spans, before, finished = reading
        if finished:
            return
        if token == self.end:
            if len(spans) >= self.own["min_spans"]:
                yield "end", False
            return
        text = before + self.texts[token]
        at = text.find(self.opening)
        if at >= 0 and (at + len(self.opening) < len(text) or not self.may_open(spans)):
            return
        stopped = any(stop in (text[:-1] if at >= 0 else text) for stop in self.own["stop"])
        if at >= 0 and not stopped:
            yield ("in", spans, length, (), 0), False
        else:
            yield ("free", spans, text, stopped), False

    def inside_step(self, reading, token, length):
        _, spans, start, path, closing = reading
        closed = (start, start + len(path), length, path)
        if closing:
            if token == self.canonical[closing]:
                if closing + 1 == len(self.canonical):
                    yield ("free", (*spans, closed), "", False), True
                else:
                    yield ("in", spans, start, path, closing + 1), True
            return
        if token == self.end:
            return
        tokens, closes = self.inside(spans, path)
        if closes and self.texts[token].strip() == self.closing:
            after = self.texts[token].partition(self.closing)[2]
            stopped = any(stop in after for stop in self.own["stop"])
            yield ("free", (*spans, closed), after, stopped), True
        elif closes and len(self.canonical) > 1 and token == self.canonical[0]:
            yield ("in", spans, start, path, 1), True
        if token in tokens:
            yield ("in", spans, start, (*path, token), 0), False

    def moves(self, readings, length):
        """Return for each token that may follow the readings behind it, and the closers."""
        found = {}
        for token in range(self.end + 1):
            behind = [own for reading in readings for own in self.step(reading, token, length + 1)]
            if behind:
                found[token] = behind
        free = any(reading[0] == "free" and not reading[3] for reading in readings)
        closers = {token for token, behind in found.items() if all(own[1] for own in behind)}
        return {t: [own[0] for own in b] for t, b in found.items()}, set() if free else closers

    def settle(self, readings):
        free = [reading for reading in readings if reading[0] == "free"]
        others = [reading for reading in readings if reading[0] == "in"]
        free.sort(key=lambda own: (own[3], own[1] and (own[1][-1][2], -own[1][-1][0])))
        return [free[-1]] if free and free[-1][3] else free[-1:] + others


def may_follow(moves, vocab_size):
    for tokens in (moves.banned, *([] if moves.allowed is None else [moves.allowed])):
        assert tokens.dtype == np.int64
        assert not tokens.flags.writeable
        assert (np.diff(tokens) > 0).all()
    if moves.allowed is None:
        return set(range(vocab_size)) - set(moves.banned.tolist())
    assert moves.closers <= set(moves.allowed.tolist())
    return set(moves.allowed.tolist())


@st.composite
def grammars(draw, largest):
    nasty = draw(st.lists(st.sampled_from(NASTY), unique=True, max_size=largest))
    tokenizer = Pieces([*BASE, *nasty, draw(st.sampled_from(["", "<e>", ">>"]))])
    assume(tokenizer.pieces[-1] not in nasty)
    end, mode = tokenizer.vocab_size - 1, draw(st.sampled_from(MODES))
    few = draw(st.lists(st.integers(0, end - 1), min_size=1, max_size=3))
    inner = st.lists(st.sampled_from(few), min_size=1, max_size=3)
    keys = draw(st.lists(inner, max_size=4))
    if keys and draw(st.booleans()):
        # Keys that begin one another, and go on with a marker.
        keys.append([*keys[0], *tokenizer.encode(draw(st.sampled_from(AMID))), *draw(inner)])
    ends = [draw(st.lists(st.integers(1, len(key)), max_size=2)) for key in keys]
    least = draw(st.integers(0, 2)) if keys else 0
    own = {
        "min_spans": least,
        "max_spans": draw(st.none() | st.integers(least, 3)),
        "max_span_tokens": draw(st.none() | st.integers(1, 4)),
        "repeat_keys": draw(st.booleans()),
        "stop": tuple(draw(st.lists(st.sampled_from(STOPS), max_size=2))),
    }
    index = KeyIndex.from_token_ids(
        keys,
        vocab_size=tokenizer.vocab_size,
        mode=mode,
        min_length=2,
        sentence_ends=None if mode == "keys" else ends,
    )
    constraint = Constraint(index, tokenizer, end_ids=[end], **own)
    return constraint, index, Naive(tokenizer, keys, ends, mode, ("<<", ">>"), **own)


def advances(constraint, place, token):
    try:
        constraint.advance(place, token)
    except InvalidParameterError as error:
        return error.parameter != "token"
    return True


def agree(constraint, index, naive, place, readings):
    """Compare one place with the naive readings; return the naive ones one token further."""
    free = all(reading[0] == "free" for reading in readings)
    expected, closers = naive.moves(readings, place.length)
    moves = constraint.moves(place)
    assert may_follow(moves, naive.end + 1) == set(expected)
    assert moves.closers == closers
    assert (place.free, place.finished) == (free, free and readings[0][3])
    spans = [(*span[:3], index.find(span[3])) for span in readings[0][1]]
    assert [tuple(span) for span in place.spans] == spans
    refused = [token for token in range(naive.end) if not advances(constraint, place, token)]
    assert refused == [token for token in range(naive.end) if token not in expected]
    return {token: naive.settle(own) for token, own in expected.items() if token != naive.end}


@settings(max_examples=25, deadline=None)
@given(grammars(largest=4), st.booleans())
def test_every_short_output_may_go_on_as_a_naive_reading_of_its_text_says(made, inside):
    constraint, index, naive = made
    level = [(constraint.start(inside=inside), naive.start(inside))]
    for _ in range(4):
        level = [
            (constraint.advance(place, token), further)
            for place, readings in level
            for token, further in agree(constraint, index, naive, place, readings).items()
        ][:80]


@settings(max_examples=300, deadline=None)
@given(grammars(largest=9), st.lists(st.integers(0, 10**6), max_size=24))
def test_long_outputs_may_go_on_as_a_naive_reading_of_their_text_says(made, choices):
    constraint, index, naive = made
    place, readings = constraint.start(), naive.start(False)
    for choice in choices:
        further = agree(constraint, index, naive, place, readings)
        # Spans and their ends are what is to be reached: free text is easy to stay in.
        modes = {reading[0] for reading in readings}
        rare = [t for t, own in further.items() if {one[0] for one in own} != modes or own[1:]]
        tokens = rare if rare and choice % 3 else list(further)
        if not tokens:
            break
        token = tokens[choice // 3 % len(tokens)]
        place, readings = constraint.advance(place, token), further[token]
    else:
        agree(constraint, index, naive, place, readings)


def over(keys, tokenizer, *, mode="keys", markers=("<<", ">>"), **own):
    """Return a constraint over an index of texts."""
    index = KeyIndex.from_keys(keys, tokenizer=tokenizer, mode=mode, markers=markers)
    return Constraint(index, tokenizer, markers=markers, **own)


def written(constraint, text, *, tokenizer=None, inside=False):
    """Return the place behind a text, checking that each token may follow."""
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
    with pytest.raises(InvalidParameterError, match="min_spans must be 0 where the index has no"):
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
    assert constraint.moves(written(constraint, "<< x >><< y >>")).banned.tolist() == [256]
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


def test_a_span_that_is_too_long_is_stuck_and_one_at_the_limit_only_closes():
    constraint = over(["abc", "ab", "xyz"], Bytes(), max_span_tokens=3)
    place = written(constraint, "<< ab")
    assert follows(constraint, place) == {" "}
    assert constraint.moves(place).closers == {ord(" ")}
    assert constraint.moves(written(constraint, "<< xy")).allowed.tolist() == []


def test_spans_are_counted_and_ends_wait_for_them():
    constraint = over(["a", "b", "c"], Bytes(), min_spans=1, max_spans=2, end_ids=[256])
    assert constraint.moves(constraint.start()).banned.tolist() == [256]
    assert constraint.moves(written(constraint, "<< a")).allowed.tolist() == [ord(" ")]
    assert constraint.moves(written(constraint, "<< a >> <")).banned.tolist() == []
    assert constraint.moves(written(constraint, "<< a >><< c >> <")).banned.tolist() == [ord("<")]


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
        ({"stop": ["so <<"]}, "without the opening marker"),
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


def test_every_ids_sequence_of_a_small_alphabet_has_the_spans_that_its_text_shows():
    tokenizer = Pieces(["a", "<<", " >>", " a", "b", " "])
    index = KeyIndex.from_keys(["a", "ab"], tokenizer=tokenizer)
    constraint = Constraint(index, tokenizer, repeat_keys=True)
    shown = {}
    for tokens in product(range(6), repeat=4):
        place = constraint.start()
        try:
            for token in tokens:
                place = constraint.advance(place, token)
        except InvalidParameterError:
            continue
        shown[tokenizer.decode(tokens)] = [span[:3] for span in place.spans]
    assert shown["<< ab >>"] == [(1, 3, 4)]
    assert shown["b<< a >>"] == [(2, 3, 4)]
    assert shown["<< a >>b"] == [(1, 2, 3)]
    assert shown["ab >> >>"] == []
    assert not any(text.startswith(("<<<<", "<<a", "<< >>")) for text in shown)


@pytest.mark.parametrize("scheme", ["never", "always"])
def test_a_unigram_tokenizer_writes_and_closes_keys(scheme):
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
