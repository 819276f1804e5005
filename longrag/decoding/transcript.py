"""The text of an output's tokens, and the characters of its spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from longrag.decoding.place import Closed
from longrag.models.tokenizer import Tokenizer


class Quoted(NamedTuple):
    """The characters ``[start, end)`` of a key; its closing marker ends before ``closed``."""

    start: int
    end: int
    closed: int


class Transcript(NamedTuple):
    """The text of some tokens, with the place of each span in it."""

    text: str
    spans: tuple[Quoted, ...]

    @property
    def tail(self) -> int:
        """Where the last closed span ends: free text or an open span follows."""
        return self.spans[-1].closed if self.spans else 0


def transcribe(tokenizer: Tokenizer, tokens: Sequence[int], spans: Sequence[Closed]) -> Transcript:
    """Return the text of an output's tokens; white space around a key is not part of it."""
    text, quoted, done = "", [], 0
    for span in spans:
        text += _decode(tokenizer, tokens, done, span.start)
        key = _decode(tokenizer, tokens, span.start, span.end)
        start = len(text) + len(key) - len(key.lstrip())
        text += key
        end = max(start, len(text.rstrip()))
        text += _decode(tokenizer, tokens, span.end, span.closed)
        # White space after the marker, in the same closing token, is free text.
        quoted.append(Quoted(start, end, len(text.rstrip())))
        done = span.closed
    return Transcript(text + _decode(tokenizer, tokens, done, len(tokens)), tuple(quoted))


_BEFORE = 4
"""How many tokens before a piece are decoded with it, as a tokenizer may drop the space before the
first word of a text."""


def _decode(tokenizer: Tokenizer, tokens: Sequence[int], start: int, end: int) -> str:
    first = max(0, start - _BEFORE)
    before, whole = tokenizer.decode(tokens[first:start]), tokenizer.decode(tokens[first:end])
    if whole.startswith(before):
        return whole[len(before) :]
    return tokenizer.decode(tokens[start:end])


def held_back(script: Transcript, stop: Sequence[str]) -> int:
    """Count the last characters that may still change or be cut off.

    These are a character with missing bytes, and what may be the beginning of a stop string.
    """
    whole = len(script.text.rstrip("\ufffd"))
    open_ = (
        length
        for string in stop
        for length in range(1, min(len(string), whole - script.tail + 1))
        if script.text.endswith(string[:length], script.tail, whole)
    )
    return len(script.text) - whole + max(open_, default=0)


def cut(script: Transcript, stop: Sequence[str]) -> str:
    """Return the text up to the first stop string in the free text at its end."""
    found = (script.text.find(string, script.tail) for string in stop)
    return script.text[: min((place for place in found if place >= 0), default=None)]
