"""Best-first search that proves that no key of the corpus is more probable than the one it found.

The most probable key is not always on a beam. But a total only falls while tokens are added, so a
prefix that is less probable than a whole key cannot become a better one: when no prefix is left
that is more probable than the best whole key, that key is proved (Dijkstra 1959, over the trie of
keys). RICHES §3.1 names best-first search as what its beam approximates.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Final

from longrag.decoding.constraint import Constraint
from longrag.decoding.search import Hypothesis, Questions, Search, Step
from longrag.models.language_model import Scores

_ALL: Final = sys.maxsize


def exact(
    constraint: Constraint,
    *,
    prompt: int,
    end_ids: frozenset[int],
    beam_size: int,
    max_new_tokens: int,
    max_rows: int,
) -> Search:
    """Write free text greedily, and in each span the most probable key there is.

    ``beam_size`` prefixes are scored at once. A span for which ``max_rows`` prefixes did not
    suffice gets the best key of a beam, and is not proved.
    """
    questions = Questions(constraint, prompt, end_ids)
    own = Hypothesis((), (), constraint.start())
    while own.reason == "length" and len(own.tokens) < max_new_tokens:
        after: Hypothesis | None
        if questions.free(own):
            yield from _learn(questions, [own], own)
            after = questions.best_child(own)
        else:
            keys = yield from best_keys(
                questions,
                own,
                wanted=1,
                beam_size=beam_size,
                max_rows=max_rows,
                last=max_new_tokens,
            )
            after = keys[0] if keys else None
        own = after or replace(own, reason="stuck")
    return [own]


def best_keys(
    questions: Questions,
    start: Hypothesis,
    *,
    wanted: int,
    beam_size: int,
    max_rows: int,
    last: int,
) -> Generator[Step, Sequence[Scores], list[Hypothesis]]:
    """Find the most probable ways to close the span in which a hypothesis stands, best first.

    A hypothesis whose key is proved to be the next best names its span in ``proved``. When
    ``max_rows`` prefixes were scored, those of a beam follow, so that the first is no worse than a
    beam's, and then what is found by the best token at each step. None is longer than ``last``
    tokens.
    """
    frontier = _Frontier(questions)
    number = len(start.place.spans)
    found: list[Hypothesis] = []
    too_long: list[Hypothesis] = []
    batch, rows = [start], 0
    while batch:
        rows += yield from _learn(questions, batch, start, found)
        for own in batch:
            frontier.expand(own)
        batch = []
        while len(found) < wanted and len(batch) < beam_size and rows < max_rows:
            best = frontier.pop()
            if best is None:
                break
            if not questions.free(best):
                (batch if len(best.tokens) < last else too_long).append(best)
            elif not batch:
                found.append(replace(best, proved=best.proved | {number}))
            else:
                # The batch is more probable so far, and some of it may stay so.
                frontier.put_back(best)
                break
    if len(found) < wanted and rows >= max_rows:
        yield from _without_proof(questions, frontier, start, found, wanted, beam_size, last)
    return found or too_long[:1]


def _without_proof(  # noqa: PLR0917
    questions: Questions,
    frontier: _Frontier,
    start: Hypothesis,
    found: list[Hypothesis],
    wanted: int,
    beam_size: int,
    last: int,
) -> Generator[Step, Sequence[Scores], None]:
    """Add further keys to those found, until there are as many as are wanted."""
    seen = {own.tokens for own in found}
    closed = yield from _beam(questions, start, found, beam_size, last)
    while len(found) < wanted:
        if closed:
            own: Hypothesis | None = closed.pop(0)
        else:
            own = yield from _dive(questions, frontier, start, found, last)
        if own is None:
            return
        if own.tokens not in seen:
            seen.add(own.tokens)
            found.append(own)


def _learn(
    questions: Questions,
    wanted: Sequence[Hypothesis],
    leader: Hypothesis,
    found: Sequence[Hypothesis] = (),
) -> Generator[Step, Sequence[Scores], int]:
    asked = questions.about(wanted, free=1, inside=_ALL)
    if asked:
        step = Step(asked, leader, len(leader.tokens), tuple(found))
        questions.learn(asked, (yield step))
    return len(asked)


def _beam(
    questions: Questions,
    start: Hypothesis,
    found: Sequence[Hypothesis],
    beam_size: int,
    last: int,
) -> Generator[Step, Sequence[Scores], list[Hypothesis]]:
    """Return the ways to close the span that stay on a beam, best first."""
    live, closed = [start], list[Hypothesis]()
    while live and not (closed and max(own.score for own in closed) >= live[0].score):
        yield from _learn(questions, live, start, found)
        grown = [
            (own.score + logprob, own, token, logprob)
            for own in live
            for logprob, token in questions.candidates(own)
        ]
        grown.sort(key=lambda one: -one[0])
        children = [
            questions.child(own, token, logprob) for _, own, token, logprob in grown[:beam_size]
        ]
        closed += [own for own in children if questions.free(own)]
        live = [own for own in children if not questions.free(own) and len(own.tokens) < last]
    return sorted(closed, key=lambda own: -own.score)


def _dive(
    questions: Questions,
    frontier: _Frontier,
    start: Hypothesis,
    found: Sequence[Hypothesis],
    last: int,
) -> Generator[Step, Sequence[Scores], Hypothesis | None]:
    """Close the span by the best token at each step, from the best prefix there is."""
    own = frontier.pop()
    while own is not None and not questions.free(own):
        if len(own.tokens) < last:
            yield from _learn(questions, [own], start, found)
            own = frontier.descend(own)
        else:
            own = frontier.pop()
    return own


class _Frontier:
    """The prefixes that are not expanded yet, of which the most probable is taken first.

    Of the children of a prefix only the best that was not taken yet is in the heap: the others are
    no more probable, and most are never needed.
    """

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._heap: list[tuple[float, int, Hypothesis, Iterator[tuple[float, int]], Hypothesis]]
        self._heap = []
        self._count = 0

    def expand(self, own: Hypothesis) -> None:
        """Put the children of a prefix on the frontier; their probabilities are known."""
        self._push_next(own, self._questions.candidates(own))

    def pop(self) -> Hypothesis | None:
        """Take the most probable prefix; the first found where several are."""
        if not self._heap:
            return None
        _, _, own, siblings, parent = heapq.heappop(self._heap)
        self._push_next(parent, siblings)
        return own

    def put_back(self, own: Hypothesis) -> None:
        """Return a prefix that was taken."""
        self._push(own, iter(()), own)

    def descend(self, own: Hypothesis) -> Hypothesis | None:
        """Return the best child of a prefix, leaving the others on the frontier."""
        candidates = self._questions.candidates(own)
        for logprob, token in candidates:
            self._push_next(own, candidates)
            return self._questions.child(own, token, logprob)
        return self.pop()

    def _push_next(self, parent: Hypothesis, candidates: Iterator[tuple[float, int]]) -> None:
        for logprob, token in candidates:
            self._push(self._questions.child(parent, token, logprob), candidates, parent)
            return

    def _push(
        self, own: Hypothesis, siblings: Iterator[tuple[float, int]], parent: Hypothesis
    ) -> None:
        self._count += 1
        heapq.heappush(self._heap, (-own.score, self._count, own, siblings, parent))
