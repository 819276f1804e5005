"""The protocol of models that score next tokens, between a token search and the model.

A search asks for the probabilities of the tokens that may come next. It knows neither tensors nor
caches nor servers; a model knows neither corpora nor beams.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from longrag.models.tokenizer import Tokenizer

TokenArray = NDArray[np.int64]
"""Token ids, rising and distinct; shape (tokens)."""

NO_TOKENS: TokenArray = np.zeros(0, np.int64)
NO_TOKENS.setflags(write=False)


@dataclass(frozen=True, slots=True, eq=False)
class Next:
    """One question to a language model: which tokens follow, among those that may.

    ``prompt`` is the number of a prompt of the session and ``tokens`` what was generated after it.
    ``allowed`` are the ids that may follow, all of the vocabulary where it is None; ``banned`` are
    those that may not. The best ``k`` are wanted.
    """

    prompt: int
    tokens: tuple[int, ...]
    k: int
    allowed: TokenArray | None = None
    banned: TokenArray = field(default_factory=lambda: NO_TOKENS)


class Scores(NamedTuple):
    """The best tokens that may follow, best first; the lower id first where two are equal.

    ``ids`` and ``logprobs`` have shape (min(k, tokens that may follow)). The natural logarithms of
    probability are the model's over its whole vocabulary at temperature 1, never renormalised over
    those that may follow (RICHES, Equation 2).
    """

    ids: NDArray[np.int64]
    logprobs: NDArray[np.float64]


class Session(Protocol):
    """Some prompts that are being continued; made for one thread at a time."""

    def score(self, asked: Sequence[Next], /) -> Sequence[Scores]:
        """Answer each question; the tokens asked about may be any, in any order, repeatedly.

        A question whose tokens extend those of an earlier one is cheap, and so are several that
        extend one another: a whole chain of tokens may be asked about at once.

        Raises:
            GenerationError: the model gave no finite probability for a token that may follow.
        """


class LanguageModel(Protocol):
    """A language model that gives the probability of any next token.

    Attributes:
        name: names the model and its weights, if they have a name.
        tokenizer: its tokenizer.
        end_ids: the tokens that end its output, rising.
        context_window: the tokens that prompt and output may have together; None if not known.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def tokenizer(self) -> Tokenizer: ...  # noqa: D102

    @property
    def end_ids(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def context_window(self) -> int | None: ...  # noqa: D102

    def prompt_ids(self, prompt: str, /) -> Sequence[int]:
        """Return the ids of a prompt as the model wants them: with what must precede it."""

    def session(self, prompts: Sequence[Sequence[int]], /) -> AbstractContextManager[Session]:
        """Begin to continue prompts; leaving the context frees what was kept for them.

        Sessions of one model are independent: each may run in a separate thread.
        """


def best(ids: TokenArray, logprobs: NDArray[np.float64], k: int) -> Scores:
    """Return the best k of some scored tokens, whose ids rise, so that the lower one wins a tie."""
    order = np.argsort(-logprobs, kind="stable")[:k]
    return Scores(ids[order], logprobs[order])
