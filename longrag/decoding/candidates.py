"""Which keys may be quoted, and by which score one of them is chosen.

A retriever's few documents have some dozens of keys. These can be scored one by one, each from its
first token to the closing marker, and by other scores than the sum of the log-probabilities. The
sum favours what is frequent in any text, which is why RICHES needs a large model to find rare
facts. The prior of a key, its sum after a prompt without a question, is what the sum owes to that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from longrag.decoding.constraint import Constraint
from longrag.decoding.likelihood import Likelihood, Tokens
from longrag.decoding.place import Inside
from longrag.decoding.relevance import relevance, standard
from longrag.decoding.search import MAX_RIVALS, Hypothesis, SearchStep
from longrag.errors import InvalidParameterError
from longrag.indexing import KeyIndex
from longrag.models.language_model import Next, Scores
from longrag.models.rerankers.scorers import Scorer, finite_scores

KeyScore: TypeAlias = Literal["hybrid", "likelihood", "pmi", "prior", "mean", "sum"]
"""What the candidates' keys are ranked by: the question's words with the retriever's and the key
scorer's scores ("hybrid", no call of the model); the probability of the question after the key,
with the same scores ("likelihood"); the sum of the log-probabilities of a key's tokens
and its closing marker less its prior, with the retriever's and the key scorer's scores ("pmi") or
without ("prior"); their mean; or their sum."""

COMPARED: Final = ("hybrid", "likelihood", "pmi", "prior")
"""The scores with which every first quote among candidates is compared with its prior."""

Candidates: TypeAlias = Iterable[str] | Mapping[str, float]
"""The ids of documents or passages, or a mapping from these ids to a retriever's scores."""

CandidatesFor: TypeAlias = Callable[[str], Candidates]
"""Returns the candidates of a span, given the question and the thought before the span."""

MAX_RANKED_KEYS: Final = 512
"""Up to this number, keys are scored one by one; among more, the best sum is searched for."""

RETRIEVER_WEIGHT: Final = 10.0
"""What one standard deviation of the retriever's scores counts, in natural logarithms."""

KEY_WEIGHT: Final = 20.0
"""What one standard deviation of the keys' own scores counts, in natural logarithms."""

_ROWS: Final = 1024
_REMEMBERED: Final = 100_000
_EQUAL: Final = 1e-9

Texts: TypeAlias = Mapping[Tokens, str]
"""The text of each key, by its tokens."""

Prior: TypeAlias = dict[tuple[int, ...], float]
"""The log-probability of each key after a prompt without a question, by the key's tokens."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """How the keys of a small index are ranked at a span.

    Attributes:
        score: the score that ranks them.
        keys: for the tokens of each key, its relevance ("hybrid"), or what the scores of retriever
            and key scorer add, in natural logarithms; 0 without such scores.
        prior_prompt: the number of the prompt without a question, which ends with the opening
            marker.
        prior: the priors computed so far, shared by searches with the same prompt.
        rivals: how many of the keys that lost are wanted.
        likelihood: what is asked about the question after each key; None where nothing is.
    """

    score: KeyScore
    keys: Mapping[tuple[int, ...], float]
    prior_prompt: int
    prior: Prior
    rivals: int = MAX_RIVALS
    likelihood: Likelihood | None = None

    def split(
        self, keys: Sequence[Tokens], likely: Mapping[Tokens, float]
    ) -> tuple[list[Tokens], list[Tokens]]:
        """Return the keys among which the sums decide, and those ranked behind them.

        By relevance and by likelihood these are the best key and its equals.
        """
        if self.score not in ("hybrid", "likelihood"):
            return list(keys), []
        values = {tokens: self.keys[tokens] + likely.get(tokens, 0.0) for tokens in keys}
        ranked = sorted(keys, key=lambda tokens: -values[tokens])
        best = values[ranked[0]]
        equal = [tokens for tokens in ranked if values[tokens] >= best - _EQUAL]
        return equal, ranked[len(equal) : max(len(equal), 1 + self.rivals)]

    def needs_prior(self, keys: Sequence[Tokens]) -> bool:
        """Whether the keys among which the sums decide are scored without a question too."""
        if self.score in ("hybrid", "likelihood"):
            return len(keys) > 1
        return self.score in ("prior", "pmi")

    def value(self, tokens: tuple[int, ...], total: float) -> float:
        """Return the score of a key by the model, given the sum of its log-probabilities."""
        if self.score == "sum":
            return total
        if self.score == "mean":
            return total / (len(tokens) + 1)
        gain = total - self.prior.get(tokens, 0.0)
        return gain + self.keys[tokens] if self.score == "pmi" else gain


@dataclass(frozen=True, slots=True)
class Weighing:
    """What the scores of a retriever and of a key scorer add to the score of a key.

    Attributes:
        retriever_weight: what one standard deviation of the retriever's scores counts.
        key_scorer: scores the texts of keys against the question and the thought before the span;
            None for no such scores.
        key_weight: what one standard deviation of its scores counts.
    """

    retriever_weight: float
    key_scorer: Scorer | None
    key_weight: float

    def of_keys(
        self, keys: Texts, passages: Mapping[Tokens, float], query: str
    ) -> dict[Tokens, float]:
        """Return for the tokens of each key what is added to the model's score.

        The scores of the key scorer are standardised over the keys, as those of the retriever are
        over its results.

        Args:
            keys: the texts of the candidates' keys.
            passages: of ``standard_passages``.
            query: what the keys are scored against.

        Raises:
            RerankError: the key scorer failed, or did not return one number for each key.
        """
        added = {tokens: self.retriever_weight * value for tokens, value in passages.items()}
        if self.key_scorer is None or not keys or not query:
            return added
        found = finite_scores(self.key_scorer(query, list(keys.values())), len(keys))
        for tokens, value in zip(keys, standard(found.tolist()).tolist(), strict=True):
            added[tokens] += self.key_weight * value
        return added

    def relevance(
        self, keys: Texts, passages: Mapping[Tokens, float], question: str, quoted: Sequence[str]
    ) -> dict[Tokens, float]:
        """Return how well each key serves as the next quote; see ``longrag.decoding.relevance``."""
        return relevance(keys, passages, question, quoted=quoted, key_scorer=self.key_scorer)


def standard_passages(
    index: KeyIndex, scores: Mapping[str, float]
) -> tuple[dict[Tokens, str], dict[Tokens, float]]:
    """Return the text of each key of an index, and the standard score of its passage.

    A retriever's scores are standardised over its results (mean 0, standard deviation 1). A key
    with several sources gets the best score; one whose passage has none gets the least.

    Args:
        index: the keys of the candidates.
        scores: the retriever's, by the ids of documents or passages.
    """
    known = dict(zip(scores, standard(list(scores.values())).tolist(), strict=True))
    least = min(known.values(), default=0.0)
    texts: dict[Tokens, str] = {}
    found: dict[Tokens, float] = {}
    for tokens, key in index.entries():
        own = [known[id_] for id_ in (key.doc_id, key.passage_id) if id_ in known]
        value = max(own, default=least)
        found[tokens] = max(value, found.get(tokens, value))
        texts[tokens] = key.text
    return texts, found


def split_candidates(candidates: Candidates) -> tuple[list[str], dict[str, float]]:
    """Return the ids of candidates, and the scores of those that have one.

    Raises:
        InvalidParameterError: ``candidates`` is neither ids nor a mapping from ids to finite
            numbers.
    """
    if isinstance(candidates, str) or not isinstance(candidates, Iterable):
        raise InvalidParameterError(
            "candidates", candidates, "a list of ids, or a mapping from ids to scores"
        )
    if not isinstance(candidates, Mapping):
        return list(candidates), {}
    for id_, value in candidates.items():
        number = isinstance(value, int | float | np.floating) and not isinstance(value, bool)
        if not number or not np.isfinite(value):
            raise InvalidParameterError(f"candidates[{id_!r}]", value, "a finite number")
    return list(candidates), {id_: float(value) for id_, value in candidates.items()}


def rank_keys(
    constraint: Constraint, start: Hypothesis, ranking: Ranking, *, prompt: int, length: int
) -> Generator[SearchStep, Sequence[Scores], Hypothesis | None]:
    """Return a hypothesis whose open span is closed with the best key of the index.

    Every key that may be the best is scored to its end, so the span is proved: no other key has a
    better score. Keys of equal relevance are distinguished by their gain over the prior, and other
    equal ones by their tokens. None if no key fits into ``length`` tokens.
    """
    keys = sorted(_open_keys(constraint, start, ranking, length))
    if not keys:
        return None
    likely: dict[Tokens, float] = {}
    if ranking.likelihood is not None:
        likely = yield from ranking.likelihood.of_keys(start, keys)
    keys, others = ranking.split(keys, likely)
    if ranking.needs_prior(keys):
        missing = [tokens for tokens in keys if tokens not in ranking.prior]
        found = yield from _score(constraint, start, ranking.prior_prompt, (), missing)
        while len(ranking.prior) > _REMEMBERED:
            ranking.prior.pop(next(iter(ranking.prior)))
        ranking.prior.update((tokens, sum(row)) for tokens, (_, row) in found.items())
    scored = yield from _score(constraint, start, prompt, start.tokens, [*keys, *others])
    ranked = sorted(keys, key=lambda tokens: -ranking.value(tokens, sum(scored[tokens][1])))
    own, *rivals = (
        _write(constraint, start, *scored[tokens])
        for tokens in [*ranked, *others][: ranking.rivals + 1]
    )
    own = own.against(len(own.place.spans) - 1, rivals)
    return own._replace(proved=own.proved | {own.place.spans[-1]})


def _write(
    constraint: Constraint, own: Hypothesis, tokens: Sequence[int], logprobs: Sequence[float]
) -> Hypothesis:
    for token, logprob in zip(tokens, logprobs, strict=True):
        own = own.after(token, logprob, constraint.advance(own.place, token))
    return own


def _open_keys(
    constraint: Constraint, start: Hypothesis, ranking: Ranking, length: int
) -> list[tuple[int, ...]]:
    """Return the keys that fit and were not quoted before; all that fit if every key was."""
    reading = start.place.readings[0]
    assert isinstance(reading, Inside)
    room = length - len(start.tokens) - constraint.closing_length
    if constraint.max_span_tokens is not None:
        room = min(room, constraint.max_span_tokens)
    fitting = [tokens for tokens in ranking.keys if len(tokens) <= room]
    ends = set(constraint.end_ids)
    fitting = [tokens for tokens in fitting if ends.isdisjoint(tokens)]
    if set(ranking.keys) <= set(reading.met):
        return fitting
    # A key that was not quoted yet, even one that is too long, keeps the constraint from repeats.
    return [tokens for tokens in fitting if tokens not in reading.met]


def _score(
    constraint: Constraint,
    start: Hypothesis,
    prompt: int,
    before: tuple[int, ...],
    keys: Sequence[tuple[int, ...]],
) -> Generator[
    SearchStep, Sequence[Scores], dict[tuple[int, ...], tuple[tuple[int, ...], list[float]]]
]:
    """Return for each key its tokens with the best closing, and their log-probabilities."""
    asked = [one for key in keys for one in _questions(constraint, prompt, before, key)]
    answers: list[Scores] = []
    for first in range(0, len(asked), _ROWS):
        step = SearchStep(asked[first : first + _ROWS], start, len(start.tokens))
        answers += yield step
    found, done = {}, 0
    for key in keys:
        count = len(key) + constraint.closing_length
        own = answers[done : done + count]
        written = tuple(int(answer.ids[0]) for answer in own)
        found[key] = written, [float(answer.logprobs[0]) for answer in own]
        done += count
    return found


def _questions(
    constraint: Constraint, prompt: int, before: tuple[int, ...], key: tuple[int, ...]
) -> Iterator[Next]:
    choices = [np.array([token], np.int64) for token in key] + constraint.closing_choices
    written = (*key, *(int(choice[0]) for choice in constraint.closing_choices))
    for place, allowed in enumerate(choices):
        yield Next(prompt, (*before, *written[:place]), 1, allowed=allowed)
