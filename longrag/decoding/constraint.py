"""The grammar of an output: free text, and between markers nothing but keys of the corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from longrag.indexing import KeyIndex, KeyState
from longrag.models.language_model import NO_TOKENS, TokenArray
from longrag.models.tokenizer import MARKERS, Tokenizer


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


@dataclass(frozen=True, slots=True)
class Place:
    """Where an output stands in the grammar; an immutable value."""

    free: bool
    finished: bool
    spans: tuple[Closed, ...]


class Constraint:
    """What the tokens of an output may be (RICHES §3.1)."""

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
        raise NotImplementedError

    def start(self, *, inside: bool = False) -> Place:
        """Return where an output begins: in free text, or behind an opening marker."""
        raise NotImplementedError

    def moves(self, place: Place) -> Moves:
        """Return the tokens that may follow; none at all where the output is stuck."""
        raise NotImplementedError

    def advance(self, place: Place, token: int) -> Place:
        """Return the place one of these tokens further; end tokens are not for it."""
        raise NotImplementedError
