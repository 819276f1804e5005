"""Models that write text for a prompt, shown as it comes, with the tokens that they used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias

Show: TypeAlias = Callable[[str], None]
"""Is given each piece of a reply as it comes."""


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What calls of a model used.

    Attributes:
        calls: the replies.
        prompt_tokens: the tokens of all prompts.
        reply_tokens: the tokens of all replies.
        estimated: whether any of these is our own count, where the model gives none.
        notes: what a reader of the replies should know, each once.
    """

    calls: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    estimated: bool = False
    notes: tuple[str, ...] = ()

    def __add__(self, other: ModelUsage) -> ModelUsage:
        """Return what both used."""
        return ModelUsage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.reply_tokens + other.reply_tokens,
            self.estimated or other.estimated,
            tuple(dict.fromkeys((*self.notes, *other.notes))),
        )

    def record(self) -> dict[str, int | bool]:
        """Return the counts as JSON values."""
        return {
            "calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "reply_tokens": self.reply_tokens,
            "estimated": self.estimated,
        }


class TextModel(ABC):
    """A model that answers a prompt with text, and adds up what that used; thread-safe.

    Args:
        name: names the model and whatever else changes its answers.
        label: names it to a person; None takes the name.
    """

    def __init__(self, name: str, *, label: str | None = None) -> None:
        self.name = name
        self.label = name if label is None else label
        self._used = ModelUsage()
        self._lock = Lock()

    @abstractmethod
    def write(self, prompt: str, show: Show) -> str:
        """Return the reply to a prompt, after ``show`` was given all of it, piece by piece.

        Raises:
            GenerationError: the reply holds no text.
            ModelCallError: the model could not be called, or broke off. What was shown until then
                is the beginning of a reply.
        """

    def __call__(self, prompt: str) -> str:
        """Return the reply to a prompt."""
        return self.write(prompt, lambda piece: None)

    def take_usage(self) -> ModelUsage:
        """Return what was used since this was asked last."""
        with self._lock:
            used, self._used = self._used, ModelUsage()
        return used

    def _count(self, used: ModelUsage) -> None:
        with self._lock:
            self._used = self._used + used
