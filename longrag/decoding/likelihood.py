"""How probable a question is after a text: query likelihood (Ponte and Croft 1998; Sachan 2022).

The language model reads two worked examples, the quotes so far and a key, and is asked only for
the question's own tokens. A key that explains the question makes it probable; how frequent the key
is in any text does not matter.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from longrag.decoding.search import Hypothesis, SearchStep
from longrag.models.language_model import LanguageModel, Next, Scores, TokenArray

Tokens: TypeAlias = tuple[int, ...]

LIKELIHOOD_PROMPT: Final = """\
Passage: Lisbon. Lisbon lies at the mouth of the Tagus and is the capital of Portugal.
Question: which river flows through the capital of portugal

Passage: Penicillin. Alexander Fleming noticed in 1928 that a mould had killed his bacteria.
Question: who discovered penicillin and when

Passage:"""
"""Two texts, each with a question that it answers."""

LABEL: Final = "\nQuestion:"
_ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class Likelihood:
    """What is asked of the model to know how probable a question is after each key.

    Attributes:
        prompt: the number of the prompt with the worked examples.
        rows: for the tokens of each key what is read after that prompt: the quotes so far, the key,
            and the label of a question.
        question: the tokens of the question.
    """

    prompt: int
    rows: Mapping[Tokens, Tokens]
    question: Tokens

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        prompt: int,
        texts: Mapping[Tokens, str],
        question: str,
        quoted: Sequence[str],
    ) -> Likelihood:
        """Return what is asked about keys, given by their texts, after the quotes so far."""
        encode = model.tokenizer.encode
        label = encode(LABEL)
        rows = {
            # A key is one line, so it cannot begin another question.
            tokens: (*encode(f" {' '.join([*quoted, text])}"), *label)
            for tokens, text in texts.items()
        }
        return cls(prompt, rows, tuple(encode(f" {' '.join(question.split())}")))

    def of_keys(
        self, start: Hypothesis, keys: Sequence[Tokens]
    ) -> Generator[SearchStep, Sequence[Scores], dict[Tokens, float]]:
        """Return the log-probability of the question after each key."""
        asked = [
            Next(self.prompt, (*self.rows[key], *self.question[:place]), 1, allowed=_only(token))
            for key in keys
            for place, token in enumerate(self.question)
        ]
        logprobs: list[float] = []
        for first in range(0, len(asked), _ROWS):
            answers = yield SearchStep(asked[first : first + _ROWS], start, len(start.tokens))
            logprobs += [float(answer.logprobs[0]) for answer in answers]
        sums = np.reshape(logprobs, (len(keys), len(self.question))).sum(axis=1)
        return dict(zip(keys, sums.tolist(), strict=True))


def _only(token: int) -> TokenArray:
    return np.array([token], np.int64)
