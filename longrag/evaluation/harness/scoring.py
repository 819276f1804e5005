"""The measures of one question: what was retrieved, and what was answered."""

from __future__ import annotations

from typing import Final, TypeAlias

from longrag.evaluation.datasets import Question
from longrag.evaluation.harness.systems import Outcome
from longrag.evaluation.overlap import rouge_l
from longrag.evaluation.ranking import gold_recall, ndcg
from longrag.evaluation.text_metrics import (
    exact_match,
    is_span_question,
    refined_exact_match,
    token_f1,
    tokens,
)
from longrag.types import TokenCounter

Measures: TypeAlias = dict[str, float | None]

MEASURES: Final = {
    "R": "all gold documents are among what is read",
    "recall": "share of the gold documents that are among what is read",
    "nDCG": "gain of the gold documents by their ranks",
    "AR": "an answer is in what is read",
    "EM": "the reader's answer equals an accepted one",
    "refined EM": "or one contains the other (LongRAG 6.2)",
    "F1": "tokens that the reader's answer shares with an accepted one",
    "ROUGE-L": "longest common subsequence with an accepted answer, F-measure",
    "accuracy": "the option nearest to the reader's answer is the right one",
}
"""The measures, in the order of the tables."""

_FREE_WORDS: Final = 8
_KEPT_TEXTS: Final = 200_000


class Scorer:
    """Scores outcomes; what is known of a text is worked out once.

    Args:
        counter: counts the tokens that are read.
    """

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self._known: dict[str, tuple[int, str]] = {}
        self._wanted: dict[tuple[str, ...], list[str]] = {}

    def tokens_of(self, outcome: Outcome) -> int:
        """Return the tokens of all texts that are read."""
        return sum(self._of(one.text)[0] for one in outcome.found)

    def score(self, question: Question, outcome: Outcome) -> Measures:
        """Return the measures that the question and the outcome allow.

        AR is None for questions whose answer is not a span; see ``answer_recall``.
        """
        found: Measures = {}
        if question.gold_ids:
            share = gold_recall(outcome.ranking, question.gold_ids)
            found |= {"R": float(share == 1), "recall": share}
            found["nDCG"] = ndcg(outcome.ranking, question.gold_ids)
        if question.answers:
            found["AR"] = self._answer_recall(question, outcome)
            if outcome.answer is not None:
                found |= _answer_measures(question, outcome.answer)
        return found

    def _answer_recall(self, question: Question, outcome: Outcome) -> float | None:
        if not is_span_question(question.answers, question.type):
            return None
        if question.answers not in self._wanted:
            cut = map(tokens, question.answers)
            self._wanted[question.answers] = [f" {' '.join(one)} " for one in cut if one]
        wanted = self._wanted[question.answers]
        texts = (self._of(one.text)[1] for one in outcome.found)
        return float(any(answer in text for text in texts for answer in wanted))

    def _of(self, text: str) -> tuple[int, str]:
        """Return the number of a text's tokens, and the tokens that answers are looked for in."""
        if text not in self._known:
            if len(self._known) >= _KEPT_TEXTS:
                self._known.clear()
            self._known[text] = self._counter(text), f" {' '.join(tokens(text))} "
        return self._known[text]


def _answer_measures(question: Question, answer: str) -> Measures:
    answers = question.answers
    found: Measures = {
        "EM": float(exact_match(answer, answers)),
        "refined EM": float(refined_exact_match(answer, answers)),
        "F1": token_f1(answer, answers),
    }
    if max(len(one.split()) for one in answers) > _FREE_WORDS:
        found["ROUGE-L"] = rouge_l(answer, answers).f_measure
    if question.options:
        nearest = max(question.options, key=lambda option: token_f1(answer, [option]))
        found["accuracy"] = float(nearest == answers[0])
    return found
