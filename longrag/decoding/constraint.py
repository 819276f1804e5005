"""The grammar of an output: free text, and between markers nothing but keys of the corpus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from operator import index as as_index
from typing import NamedTuple

import numpy as np

from longrag.decoding.vocabulary import (
    Decode,
    Tail,
    decoder_in_context,
    read_vocabulary,
    rising,
)
from longrag.errors import InvalidParameterError, TokenizerError
from longrag.indexing import KeyIndex, KeyState
from longrag.models.language_model import NO_TOKENS, TokenArray
from longrag.models.tokenizer import MARKERS, Tokenizer

# States whose moves are kept, and of those that spans written before make differ from the others:
# these may hold all first tokens of the corpus each.
_KEPT, _KEPT_MET = 4096, 32


class Moves(NamedTuple):
    """The tokens that may follow.

    In free text ``allowed`` is None and all may but ``banned``. In a span only ``allowed`` may; of
    ``closers``, those among them that can do nothing but close the span, the best alone is worth
    following, since they differ in white space.
    """

    allowed: TokenArray | None
    banned: TokenArray = NO_TOKENS
    closers: frozenset[int] = frozenset()


class Closed(NamedTuple):
    """A span that was closed: the output's tokens ``[start, end)`` are the key's, of ``state``.

    ``closed`` is the token after the closing marker.
    """

    start: int
    end: int
    closed: int
    state: KeyState


class _Free(NamedTuple):
    """A reading in free text; ``text`` is as much of its end as a stop string may go on."""

    spans: tuple[Closed, ...]
    keys: tuple[tuple[int, ...], ...]
    may_open: bool
    tail: Tail = Tail()
    text: str = ""
    finished: bool = False


class _Inside(NamedTuple):
    """A reading inside a span, of whose closing marker ``closing`` tokens are written."""

    spans: tuple[Closed, ...]
    keys: tuple[tuple[int, ...], ...]
    start: int
    path: tuple[int, ...]
    state: KeyState
    closing: int = 0


_Reading = _Free | _Inside


class _Ahead(NamedTuple):
    """What may follow in a span, and which of the corpus' continuations are left out."""

    moves: Moves
    may_close: bool
    may_go_on: bool
    left_out: frozenset[int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an output stands in the grammar; an immutable value.

    A token can be read in two ways, where a key is the beginning of another that goes on with a
    closing marker: then a place holds several ``readings``, and a later token ends those that do
    not allow it. Of two readings in free text the one stays that closed its span last, the longer
    one of two that closed with one token: under the other the marker would be stray text.
    """

    readings: tuple[_Reading, ...]
    length: int = 0

    @property
    def free(self) -> bool:
        """Whether the output is in free text by all its readings."""
        return all(isinstance(reading, _Free) for reading in self.readings)

    @property
    def may_be_free(self) -> bool:
        """Whether the output is in free text by one of its readings."""
        return any(isinstance(reading, _Free) for reading in self.readings)

    @property
    def finished(self) -> bool:
        """Whether a stop string was written in free text: nothing may follow."""
        first = self.readings[0]
        return isinstance(first, _Free) and first.finished

    @property
    def inside(self) -> Place | None:
        """The same place by the readings inside a span alone; None where there are none."""
        readings = tuple(reading for reading in self.readings if isinstance(reading, _Inside))
        return replace(self, readings=readings) if readings else None

    @property
    def spans(self) -> tuple[Closed, ...]:
        """The spans closed so far, by the reading in free text if there is one.

        Those that are not among ``settled`` may still become others.
        """
        return self.readings[0].spans

    @property
    def settled(self) -> tuple[Closed, ...]:
        """The spans that are closed by all readings: nothing that follows can change them."""
        if len(self.readings) == 1:
            return self.spans
        same = takewhile(
            lambda spans: len(set(spans)) == 1,
            zip(*(reading.spans for reading in self.readings), strict=False),
        )
        return tuple(spans[0] for spans in same)


class Constraint:
    """What the tokens of an output may be (RICHES §3.1).

    In free text an opening marker is recognised however it is cut into tokens; a token in which
    other text would follow the marker is banned. A span is closed by the marker as the tokenizer
    writes it behind a key, or by any single token that is the marker and white space.

    Immutable but for what it remembers; any threads may share one.

    Args:
        index: the keys that may be retrieved.
        tokenizer: the language model's, with which the keys were tokenised.
        markers: what opens and what closes a span.
        end_ids: the tokens that end an output: banned inside spans and before ``min_spans``.
        stop: strings at which free text ends, however few spans there are.
        min_spans: the fewest spans before the model may end its output.
        max_spans: the most spans; None for any number.
        max_span_tokens: the most tokens of a key; a longer key leaves the output stuck.
        repeat_keys: whether a key that was retrieved may be retrieved again in the same output.
            Without it a token that only leads to such keys is left out (in the substring modes: the
            same stretch is not closed again), unless nothing else could follow or ``min_spans``
            asks for more keys than there are.

    Raises:
        InvalidParameterError: a setting that is not allowed.
        TokenizerError: the index was made with another tokenizer, or a marker cannot be written.
    """

    def __init__(
        self,
        index: KeyIndex,
        tokenizer: Tokenizer,
        *,
        markers: tuple[str, str] = MARKERS,
        end_ids: Sequence[int] = (),
        stop: Sequence[str] = (),
        min_spans: int = 0,
        max_spans: int | None = None,
        max_span_tokens: int | None = None,
        repeat_keys: bool = False,
    ) -> None:
        _check_tokenizer(index, tokenizer)
        opening, closing = _check_markers(markers)
        self.index, self.markers = index, (opening, closing)
        self.end_ids = _check_ends(end_ids, tokenizer.vocab_size)
        self.stop = _check_stop(stop, opening)
        self.min_spans = _check_count("min_spans", min_spans, 0)
        self.max_spans = None if max_spans is None else _check_count("max_spans", max_spans, 0)
        if max_spans is not None and max_spans < min_spans:
            raise InvalidParameterError("max_spans", max_spans, f"at least min_spans = {min_spans}")
        if min_spans and not len(index):
            raise InvalidParameterError("min_spans", min_spans, "0 where the index has no keys")
        self.max_span_tokens = (
            None if max_span_tokens is None else _check_count("max_span_tokens", max_span_tokens, 1)
        )
        self.repeat_keys = bool(repeat_keys)
        self._vocabulary = read_vocabulary(tokenizer, self.markers)
        self.vocab_size = len(self._vocabulary.texts)
        self._prepare(decoder_in_context(tokenizer, closing))

    def _prepare(self, decode: Decode) -> None:
        known, ends = self._vocabulary, np.array(self.end_ids, np.int64)
        self._marker_splits = not self.markers[0].isascii()
        splits = self._marker_splits or not all(text.isascii() for text in self.stop)
        self._decode = decode if splits else None
        self._closes = _frozen(np.setdiff1d(known.closes, ends))
        self._close_set = frozenset(self._closes.tolist())
        rest = known.closing_ids
        self._closing = () if rest[0] in self._close_set else rest
        first = np.array(self._closing[:1], np.int64)
        self._first_closes = _frozen(np.union1d(self._closes, first))
        self._forced = [Moves(*_forced(token)) for token in self._closing]
        self._keep = max(map(len, self.stop), default=1) - 1
        self._free_moves = lru_cache(_KEPT)(self._make_free_moves)
        self._ahead = lru_cache(_KEPT)(self._make_ahead)
        self._ahead_met = lru_cache(_KEPT_MET)(self._make_ahead)
        self._same = lru_cache(_KEPT)(self._count_same)

    def start(self, *, inside: bool = False) -> Place:
        """Return where an output begins: in free text, or behind an opening marker.

        What stands in the prompt is not looked at: a marker that began there is none.
        """
        if inside:
            return Place((_Inside((), (), 0, (), self.index.root),))
        return Place((_Free((), (), self._may_open((), ())),))

    def moves(self, place: Place) -> Moves:
        """Return the tokens that may follow; none at all where the output is stuck or finished."""
        found = [self._moves_of(reading) for reading in place.readings]
        return found[0] if len(found) == 1 else _joined(found)

    def advance(self, place: Place, token: int) -> Place:
        """Return the place one of these tokens further; end tokens are not for it.

        Raises:
            InvalidParameterError: a token that may not follow.
        """
        wanted, length = as_index(token), place.length + 1
        found = [
            further
            for reading in place.readings
            for further in (
                self._read_free(reading, wanted, length)
                if isinstance(reading, _Free)
                else self._read_inside(reading, wanted, length)
            )
        ]
        if not found:
            raise InvalidParameterError("token", token, "one of those that may follow")
        return Place(tuple(found) if len(found) == 1 else _settled(found), length)

    def _moves_of(self, reading: _Reading) -> Moves:
        if isinstance(reading, _Inside):
            if reading.closing:
                return self._forced[reading.closing]
            return self._look(reading).moves
        if reading.finished:
            return _NOTHING
        may_end = len(reading.spans) >= self.min_spans
        return self._free_moves(reading.tail, reading.may_open, may_end)

    def _make_free_moves(self, tail: Tail, may_open: bool, may_end: bool) -> Moves:
        known, matched = self._vocabulary, 0 if tail.pending else tail.matched
        opens, overruns = known.opens[matched], known.overruns[matched]
        if tail.pending and self._marker_splits:
            steps = [
                (t, known.read(tail, t, self._decode)[0].matched) for t in known.broken.tolist()
            ]
            ending = rising(t for t, step in steps if step == known.opened)
            beyond = rising(t for t, step in steps if step > known.opened)
            opens = np.union1d(np.setdiff1d(opens, known.broken), ending)
            overruns = np.union1d(np.setdiff1d(overruns, known.broken), beyond)
        ends = np.array(self.end_ids, np.int64)
        banned = np.setdiff1d(overruns if may_open else np.union1d(opens, overruns), ends)
        return Moves(None, _frozen(banned if may_end else np.union1d(banned, ends)))

    def _read_free(self, reading: _Free, token: int, length: int) -> Iterator[_Reading]:
        known = self._vocabulary
        if reading.finished or not 0 <= token < len(known.texts) or token in self.end_ids:
            return
        tail, text = known.read(reading.tail, token, self._decode)
        opened = tail.matched == known.opened
        if tail.matched > known.opened or (opened and not reading.may_open):
            return
        seen = reading.text + (text[:-1] if opened else text)
        finished = any(stop in seen for stop in self.stop)
        if opened and not finished:
            yield _Inside(reading.spans, reading.keys, length, (), self.index.root)
        else:
            left = seen[max(0, len(seen) - self._keep) :]
            yield reading._replace(tail=tail, text=left, finished=finished)

    def _look(self, reading: _Inside) -> _Ahead:
        """Return what may follow in a span, given the keys that were retrieved before it."""
        if self.repeat_keys or not reading.keys:
            return self._ahead(reading.state, ())
        depth = reading.state.depth
        met = {key: None for key in reading.keys if key[:depth] == reading.path}
        look = self._ahead_met if met else self._ahead
        return look(reading.state, tuple(sorted(met)))

    def _make_ahead(self, state: KeyState, met: tuple[tuple[int, ...], ...]) -> _Ahead:
        capped = self.max_span_tokens is not None and state.depth >= self.max_span_tokens
        tokens = NO_TOKENS if capped else self.index.continuations(state)
        closing = state.depth > 0 and self.index.may_close(state)
        # A key may hold an end token, but an output cannot end in a span.
        barred = _shared(tokens, self.end_ids)
        spent = barred.union(self._spent(state, met))
        fresh = closing and all(len(key) > state.depth for key in met)
        if len(spent) == len(tokens) and not fresh:
            # Rather the same again than no way on.
            spent, fresh = barred, closing
        if spent:
            tokens = np.setdiff1d(tokens, np.array(sorted(spent), np.int64))
        return _Ahead(self._moves_inside(tokens, fresh), fresh, not capped, spent)

    def _moves_inside(self, tokens: TokenArray, closing: bool) -> Moves:
        if not closing:
            return Moves(_frozen(tokens))
        closers = self._first_closes
        both = _shared(tokens, closers.tolist())
        allowed = np.union1d(tokens, closers) if len(tokens) else closers
        return Moves(_frozen(allowed), NO_TOKENS, frozenset(closers.tolist()) - both)

    def _spent(self, state: KeyState, met: tuple[tuple[int, ...], ...]) -> Iterator[int]:
        """Yield the tokens behind which there are only keys that were retrieved before."""
        if self.index.mode != "keys":
            return
        below: dict[int, int] = {}
        for key in met:
            if len(key) > state.depth:
                token = key[state.depth]
                below[token] = below.get(token, 0) + self._same(key)
        for token, count in below.items():
            further = self.index.advance(state, token)
            if further is not None and self.index.count(further) == count:
                yield token

    def _count_same(self, key: tuple[int, ...]) -> int:
        """Count the keys of just these tokens."""
        state = self.index.find(key)
        if state is None:
            return 0
        below = (self.index.advance(state, t) for t in self.index.continuations(state).tolist())
        return self.index.count(state) - sum(self.index.count(s) for s in below if s is not None)

    def _read_inside(self, reading: _Inside, token: int, length: int) -> Iterator[_Reading]:
        if reading.closing:
            if token == self._closing[reading.closing]:
                yield self._written(reading, token, length)
            return
        ahead = self._look(reading)
        if ahead.may_close and token in self._close_set:
            yield self._closed(reading, length, self._vocabulary.after_closing(token))
        elif ahead.may_close and self._closing and token == self._closing[0]:
            yield self._written(reading, token, length)
        inner = ahead.may_go_on and 0 <= token < self.index.vocab_size
        if inner and token not in ahead.left_out:
            state = self.index.advance(reading.state, token)
            if state is not None:
                yield reading._replace(path=(*reading.path, token), state=state)

    def _written(self, reading: _Inside, token: int, length: int) -> _Reading:
        """Return a reading that has written one more token of the closing marker."""
        closing = reading.closing + 1
        if closing == len(self._closing):
            return self._closed(reading, length, "")
        return reading._replace(closing=closing)

    def _closed(self, reading: _Inside, length: int, after: str) -> _Free:
        end = reading.start + reading.state.depth
        spans = (*reading.spans, Closed(reading.start, end, length, reading.state))
        keys = (*reading.keys, reading.path)
        finished = any(stop in after for stop in self.stop)
        left = after[max(0, len(after) - self._keep) :]
        return _Free(spans, keys, self._may_open(spans, keys), Tail(), left, finished)

    def _may_open(self, spans: tuple[Closed, ...], keys: tuple[tuple[int, ...], ...]) -> bool:
        if self.max_spans is not None and len(spans) >= self.max_spans:
            return False
        count = self.index.count(self.index.root)
        if self.repeat_keys or self.index.mode != "keys" or len(spans) < self.min_spans:
            return count > 0
        return count > sum(self._same(key) for key in dict.fromkeys(keys))


def _settled(readings: Sequence[_Reading]) -> tuple[_Reading, ...]:
    """Return the readings that are kept; see ``Place``."""
    free = [reading for reading in readings if isinstance(reading, _Free)]
    others = [reading for reading in readings if isinstance(reading, _Inside)]
    if not free:
        return tuple(others)
    chosen = max(free, key=_rank)
    return (chosen,) if chosen.finished else (chosen, *others)


def _rank(reading: _Free) -> tuple[bool, int, int]:
    if not reading.spans:
        return reading.finished, -1, 0
    last = reading.spans[-1]
    return reading.finished, last.closed, last.end - last.start


def _joined(found: Sequence[Moves]) -> Moves:
    """Return what at least one of several readings allows."""
    inside = [moves for moves in found if moves.allowed is not None]
    allowed = np.unique(np.concatenate([_allowed(moves) for moves in inside]))
    free = next((moves for moves in found if moves.allowed is None), None)
    if free is not None:
        return Moves(None, _frozen(np.setdiff1d(free.banned, allowed)))
    closers: frozenset[int] = frozenset().union(*(moves.closers for moves in inside))
    more = [
        token for moves in inside for token in _shared(_allowed(moves), closers) - moves.closers
    ]
    return Moves(_frozen(allowed), NO_TOKENS, closers.difference(more))


def _allowed(moves: Moves) -> TokenArray:
    return NO_TOKENS if moves.allowed is None else moves.allowed


def _shared(tokens: TokenArray, wanted: Iterable[int]) -> frozenset[int]:
    """Return those of some ids that are among rising ones."""
    if len(tokens) <= 1:
        # One token follows another in most of a key.
        return frozenset(wanted).intersection(tokens.tolist())
    ids = np.array(sorted(wanted), np.int64)
    places = np.minimum(tokens.searchsorted(ids), len(tokens) - 1)
    return frozenset(ids[tokens[places] == ids].tolist())


def _frozen(tokens: TokenArray) -> TokenArray:
    tokens.setflags(write=False)
    return tokens


def _forced(token: int) -> Moves:
    return Moves(_frozen(np.array([token], np.int64)), NO_TOKENS, frozenset([token]))


_NOTHING = Moves(NO_TOKENS)


def _check_tokenizer(index: KeyIndex, tokenizer: Tokenizer) -> None:
    made, given = index.tokenizer_fingerprint, tokenizer.fingerprint
    if made and (made != given or index.vocab_size != tokenizer.vocab_size):
        raise TokenizerError(
            f"the index was made with the tokenizer {made!r} of {index.vocab_size} ids, and the "
            f"language model's is {given!r} of {tokenizer.vocab_size}. Build the index with the "
            "language model's tokenizer."
        )


def _check_markers(markers: tuple[str, str]) -> tuple[str, str]:
    strings = (
        isinstance(markers, tuple)
        and len(markers) == 2
        and all(isinstance(marker, str) and marker.split() == [marker] for marker in markers)
    )
    if not strings or markers[0] in markers[1] or markers[1] in markers[0]:
        allowed = "a tuple of two strings without white space, neither of which contains the other"
        raise InvalidParameterError("markers", markers, allowed)
    return markers


def _check_ends(end_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    try:
        found = tuple(sorted({as_index(id_) for id_ in end_ids}))
    except TypeError:
        found = (-1,)
    if any(not 0 <= id_ < vocab_size for id_ in found):
        allowed = f"a sequence of ids from 0 to {vocab_size - 1}"
        raise InvalidParameterError("end_ids", end_ids, allowed)
    return found


def _check_stop(stop: Sequence[str], opening: str) -> tuple[str, ...]:
    if isinstance(stop, str) or not all(isinstance(text, str) and text for text in stop):
        raise InvalidParameterError("stop", stop, "a sequence of strings that are not empty")
    for text in stop:
        if opening in text:
            allowed = f"strings without the opening marker {opening!r}, which is never free text"
            raise InvalidParameterError("stop", text, allowed)
    return tuple(stop)


def _check_count(parameter: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidParameterError(parameter, value, f"an integer of at least {least}")
    return value
