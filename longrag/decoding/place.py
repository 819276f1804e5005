"""Where an output stands in the grammar: in free text, inside a span, or in either."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from longrag.decoding.vocabulary import Tail
from longrag.indexing import KeyIndex, KeyState


class Closed(NamedTuple):
    """A span that was closed: the output's tokens ``[start, end)`` are the key's.

    ``closed`` is the token after the closing marker, and ``state`` belongs to ``key_index``.
    """

    start: int
    end: int
    closed: int
    state: KeyState
    key_index: KeyIndex


class Free(NamedTuple):
    """A reading in free text; ``text`` is as much of its end as a stop string may go on."""

    spans: tuple[Closed, ...]
    keys: tuple[tuple[int, ...], ...]
    may_open: bool
    tail: Tail = Tail()
    text: str = ""
    finished: bool = False


class Inside(NamedTuple):
    """A reading inside a span, of whose closing marker ``closing`` tokens are written.

    ``met`` are the keys that may not be retrieved again and begin with ``path``, sorted.
    """

    spans: tuple[Closed, ...]
    keys: tuple[tuple[int, ...], ...]
    start: int
    path: tuple[int, ...]
    state: KeyState
    met: tuple[tuple[int, ...], ...] = ()
    closing: int = 0

    def after(self, token: int, state: KeyState) -> Inside:
        """Return the reading one token of the key further."""
        depth = len(self.path)
        met = self.met and tuple(k for k in self.met if len(k) > depth and k[depth] == token)
        return Inside(self.spans, self.keys, self.start, (*self.path, token), state, met)


Reading = Free | Inside


class Place(NamedTuple):
    """Where an output stands in the grammar; an immutable value.

    A token can be read in two ways, where a key is the beginning of another that goes on with a
    closing marker: then a place holds several ``readings``, and a later token ends those that do
    not allow it. Of two readings in free text the one stays that closed its span last, the longer
    one of two that closed with one token: under the other the marker would be stray text.
    """

    readings: tuple[Reading, ...]
    length: int = 0

    @property
    def free(self) -> bool:
        """Whether the output is in free text by all its readings."""
        return all(isinstance(reading, Free) for reading in self.readings)

    @property
    def just_opened(self) -> bool:
        """Whether a span was opened and nothing of its key is written yet."""
        first = self.readings[0]
        return len(self.readings) == 1 and isinstance(first, Inside) and not first.path

    @property
    def may_be_free(self) -> bool:
        """Whether the output is in free text by one of its readings."""
        return any(isinstance(reading, Free) for reading in self.readings)

    @property
    def finished(self) -> bool:
        """Whether a stop string was written in free text: nothing may follow."""
        first = self.readings[0]
        return isinstance(first, Free) and first.finished

    @property
    def inside(self) -> Place | None:
        """The same place by the readings inside a span alone; None where there are none."""
        readings = tuple(reading for reading in self.readings if isinstance(reading, Inside))
        return self._replace(readings=readings) if readings else None

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


def settle(readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """Return the readings that are kept; see ``Place``."""
    free = [reading for reading in readings if isinstance(reading, Free)]
    others = [reading for reading in readings if isinstance(reading, Inside)]
    if not free:
        return tuple(others)
    chosen = max(free, key=_rank)
    return (chosen,) if chosen.finished else (chosen, *others)


def _rank(reading: Free) -> tuple[bool, int, int]:
    if not reading.spans:
        return reading.finished, -1, 0
    last = reading.spans[-1]
    return reading.finished, last.closed, last.end - last.start
