"""What the searches share: hypotheses, and the questions they put to a language model.

A search is a generator. It yields the questions of one step, is sent their answers, and returns its
hypotheses: whoever runs it owns the model, may stop it between any two steps, and may answer the
questions of several searches with one call of the model.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from longrag.decoding.constraint import Constraint, Moves, Place
from longrag.decoding.generation import FinishReason
from longrag.models.language_model import Next, Scores

LOOK_AHEAD: Final = 8
"""How many tokens that cannot but follow are asked about in one call of the model."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One output so far. ``totals`` are the sums of log-probabilities after each of its tokens."""

    tokens: tuple[int, ...]
    totals: tuple[float, ...]
    place: Place
    reason: FinishReason = "length"
    proved: frozenset[int] = frozenset()
    """The spans, by number, that no other key could have beaten."""

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
class Questions:
    """The questions of one search, each put once.

    Where only one token may follow, the tokens that cannot but follow it are asked about with it: a
    model answers for a whole chain in one call, and the steps along it need none.
    """

    constraint: Constraint
    prompt: int
    end_ids: frozenset[int]
    known: dict[tuple[int, ...], Scores] = field(default_factory=dict)
    _moves: dict[tuple[int, ...], Moves] = field(default_factory=dict)
    _places: dict[tuple[int, ...], Place] = field(default_factory=dict)

    def about(self, hypotheses: Sequence[Hypothesis], *, free: int, inside: int) -> list[Next]:
        """Return what must be asked to go on with some hypotheses, one token at least.

        Args:
            hypotheses: those to go on with.
            free: how many of the best tokens are wanted in free text.
            inside: how many are wanted in a span.
        """
        return [
            question
            for own in hypotheses
            if own.tokens not in self.known
            for question in self._chain(own, free, inside)
        ]

    def _chain(self, own: Hypothesis, free: int, inside: int) -> Iterator[Next]:
        tokens, place = own.tokens, own.place
        for _ in range(LOOK_AHEAD):
            moves = self._moves[tokens] = self.constraint.moves(place)
            if moves.allowed is None:
                yield Next(self.prompt, tokens, free, banned=moves.banned)
                return
            if not len(moves.allowed):
                return
            wanted = min(inside + len(moves.closers), len(moves.allowed))
            yield Next(self.prompt, tokens, wanted, allowed=moves.allowed)
            if len(moves.allowed) > 1:
                return
            token = int(moves.allowed[0])
            tokens, place = (*tokens, token), self.constraint.advance(place, token)
            self._places[tokens] = place

    def free(self, own: Hypothesis) -> bool:
        """Tell whether free text may follow."""
        moves = self._moves.get(own.tokens) or self.constraint.moves(own.place)
        return moves.allowed is None

    def learn(self, asked: Sequence[Next], answers: Sequence[Scores]) -> None:
        """Keep the answers."""
        for question, answer in zip(asked, answers, strict=True):
            self.known[question.tokens] = answer

    def candidates(self, own: Hypothesis) -> Iterator[tuple[float, int]]:
        """Yield the log-probabilities and tokens that may follow, best first; none when stuck."""
        answer = self.known.get(own.tokens)
        if answer is None:
            return
        closers = self._moves[own.tokens].closers
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
        if token in self.end_ids and self.free(own):
            return own.ended(logprob)
        place = self._places.pop((*own.tokens, token), None)
        return own.after(token, logprob, place or self.constraint.advance(own.place, token))

    def forget(self, own: Hypothesis) -> None:
        """Forget the answers about a hypothesis that is not gone on with again."""
        self.known.pop(own.tokens, None)
        self._moves.pop(own.tokens, None)


def certain(outcomes: Sequence[Hypothesis]) -> int:
    """Count the tokens that all hypotheses begin with."""
    first, last = min(own.tokens for own in outcomes), max(own.tokens for own in outcomes)
    pairs = enumerate(zip(first, last, strict=False))
    return next((place for place, (one, other) in pairs if one != other), len(first))
