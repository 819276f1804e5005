"""What the searches share: hypotheses, and the questions they put to a language model.

A search is a generator. It yields the questions of one step, is sent their answers, and returns its
hypotheses: whoever runs it owns the model, may stop it between any two steps, and may answer the
questions of several searches with one call of the model.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from longrag.decoding.constraint import Constraint, Moves
from longrag.decoding.generation import FinishReason
from longrag.decoding.place import Closed, Place
from longrag.models.language_model import Next, Scores

LOOK_AHEAD: Final = 8
"""How many tokens that cannot but follow are asked about in one call of the model."""


class Hypothesis(NamedTuple):
    """One output so far. ``totals`` are the sums of log-probabilities after each of its tokens."""

    tokens: tuple[int, ...]
    totals: tuple[float, ...]
    place: Place
    reason: FinishReason = "length"
    proved: frozenset[Closed] = frozenset()
    """The spans that no other key could have beaten."""

    @property
    def score(self) -> float:
        """The sum of the log-probabilities of the tokens, and of the end if there is one."""
        return self.totals[-1] if self.totals else 0.0

    def after(self, token: int, logprob: float, place: Place) -> Hypothesis:
        """Return the hypothesis one token further."""
        total = self.score + logprob
        tokens, totals = (*self.tokens, token), (*self.totals, total)
        reason: FinishReason = "stop" if place.finished else "length"
        return Hypothesis(tokens, totals, place, reason, self.proved)

    def ended(self, logprob: float) -> Hypothesis:
        """Return the hypothesis ended by the model; the end itself is no token of the output."""
        totals = (*self.totals, self.score + logprob)
        return Hypothesis(self.tokens, totals, self.place, "stop", self.proved)


class Step(NamedTuple):
    """The questions of one step, and what is certain before they are answered.

    Every outcome of the search begins with the first ``certain`` tokens of ``leader``. ``found``
    are hypotheses that no other can come before.
    """

    asked: list[Next]
    leader: Hypothesis
    certain: int
    found: tuple[Hypothesis, ...] = ()


Search: TypeAlias = Generator[Step, Sequence[Scores], list[Hypothesis]]


@dataclass(slots=True)
class _Link:
    """One question of a chain, where the grammar stands in it, and the answer once it is known."""

    asked: Next
    place: Place
    moves: Moves
    answer: Scores | None = None


@dataclass(slots=True)
class Questions:
    """The questions of one search, each put once, about outputs of less than ``length`` tokens.

    Where only one token may follow, the tokens that cannot but follow it are asked about with it: a
    model answers for a whole chain in one call, and the steps along it need none.
    """

    constraint: Constraint
    prompt: int
    end_ids: frozenset[int]
    length: int
    _chains: dict[tuple[int, ...], Sequence[_Link]] = field(default_factory=dict)
    _open: list[_Link] = field(default_factory=list)

    def about(self, hypotheses: Sequence[Hypothesis], *, free: int, inside: int) -> list[Next]:
        """Return what must be asked to go on with some hypotheses.

        Args:
            hypotheses: those to go on with, shorter than ``length``.
            free: how many of the best tokens are wanted in free text.
            inside: how many are wanted in a span.
        """
        for own in hypotheses:
            if own.tokens not in self._chains:
                chain = self._chains[own.tokens] = list(self._chain(own, free, inside))
                self._open += chain
        return [link.asked for link in self._open]

    def _chain(self, own: Hypothesis, free: int, inside: int) -> Iterator[_Link]:
        tokens, place = own.tokens, own.place
        for _ in range(min(LOOK_AHEAD, self.length - len(tokens))):
            moves = self.constraint.moves(place)
            if moves.allowed is None:
                yield _Link(Next(self.prompt, tokens, free, banned=moves.banned), place, moves)
                return
            if not len(moves.allowed):
                return
            wanted = min(inside + len(moves.closers), len(moves.allowed))
            yield _Link(Next(self.prompt, tokens, wanted, allowed=moves.allowed), place, moves)
            if len(moves.allowed) > 1:
                return
            token = int(moves.allowed[0])
            tokens, place = (*tokens, token), self.constraint.advance(place, token)

    def free(self, own: Hypothesis) -> bool:
        """Tell whether a hypothesis stands in free text, or was ended there by a stop string."""
        if own.place.finished:
            return True
        chain = self._chains.get(own.tokens)
        moves = chain[0].moves if chain else self.constraint.moves(own.place)
        return moves.allowed is None

    def learn(self, answers: Sequence[Scores]) -> None:
        """Keep the answers to what was asked last."""
        for link, answer in zip(self._open, answers, strict=True):
            link.answer = answer
        self._open.clear()

    def candidates(self, own: Hypothesis) -> Iterator[tuple[float, int]]:
        """Yield the log-probabilities and tokens that may follow, best first; none when stuck."""
        chain = self._chains.get(own.tokens)
        answer = chain[0].answer if chain else None
        if not chain or answer is None:
            return
        closers = chain[0].moves.closers
        closed = False
        for token, logprob in zip(answer.ids.tolist(), answer.logprobs.tolist(), strict=True):
            if token in closers:
                # Ways to close differ in white space: the best stands for all.
                if closed:
                    continue
                closed = True
            yield logprob, token

    def best_child(self, own: Hypothesis) -> Hypothesis | None:
        """Return a hypothesis one token further, by the best there is; None when stuck."""
        for logprob, token in self.candidates(own):
            return self.child(own, token, logprob)
        return None

    def child(self, own: Hypothesis, token: int, logprob: float) -> Hypothesis:
        """Return a hypothesis one token further, or ended."""
        rest = self._chains.get(own.tokens, ())[1:]
        if rest:
            # In a chain one token alone may follow: this one.
            further = own.after(token, logprob, rest[0].place)
            self._chains[further.tokens] = rest
            return further
        if token in self.end_ids and self.free(own):
            return own.ended(logprob)
        return own.after(token, logprob, self.constraint.advance(own.place, token))

    def forget(self, own: Hypothesis) -> None:
        """Forget the answers about a hypothesis that is not gone on with again."""
        self._chains.pop(own.tokens, None)


def certain(outcomes: Sequence[Hypothesis]) -> int:
    """Count the tokens that all hypotheses begin with."""
    first, last = min(own.tokens for own in outcomes), max(own.tokens for own in outcomes)
    pairs = enumerate(zip(first, last, strict=False))
    return next((place for place, (one, other) in pairs if one != other), len(first))
