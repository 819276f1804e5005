"""The calls of models that parts of the framework make by themselves, seen by its events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.event_handlers import (
    BaseEventHandler,
)
from llama_index.core.instrumentation.events.embedding import EmbeddingEndEvent
from llama_index.core.instrumentation.events.llm import (
    LLMChatEndEvent,
    LLMChatStartEvent,
    LLMCompletionEndEvent,
    LLMCompletionStartEvent,
    LLMPredictEndEvent,
    LLMPredictStartEvent,
)

from longrag.integration.answering import Calls, MethodCall
from longrag.recipes.trace import Observed


@dataclass(slots=True)
class ModelCalls:
    """The calls of models inside ``counting``, with their texts.

    A language model sends an event when it is asked for a prediction, and another when its chat or
    completion is called, if its class is decorated as the framework wants it. The second has the
    whole prompt; the first is used where there is no second.
    """

    _predicted: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    _called: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    _embedded: list[tuple[str, ...]] = field(default_factory=list)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the calls made inside, in this context and in those copied from it."""
        _watch_events()
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def observed(self, outcome: object = None) -> Observed:
        """Return the calls so far, beside the outcome of what made them."""
        whole = len(self._called[0]) >= len(self._predicted[0])
        prompts, replies = self._called if whole else self._predicted
        return Observed(outcome, tuple(prompts), tuple(replies), tuple(self._embedded))

    def add(self, event: object) -> None:
        """Note what an event tells of a call."""
        match event:
            case LLMPredictStartEvent(template=template, template_args=args):
                self._predicted[0].append(template.format(**(args or {})))
            case LLMPredictEndEvent(output=output):
                self._predicted[1].append(str(output))
            case LLMCompletionStartEvent(prompt=prompt):
                self._called[0].append(prompt)
            case LLMCompletionEndEvent(response=response) if response is not None:
                self._called[1].append(response.text)
            case LLMChatStartEvent(messages=messages):
                self._called[0].append("\n".join(str(one.content or "") for one in messages))
            case LLMChatEndEvent(response=response) if response is not None:
                self._called[1].append(str(response.message.content or ""))
            case EmbeddingEndEvent(chunks=chunks):
                self._embedded.append(tuple(chunks))
            case _:
                pass


_current: ContextVar[ModelCalls | None] = ContextVar("longrag_model_calls", default=None)


class _ModelCallHandler(BaseEventHandler):
    """Passes events on to the ``ModelCalls`` that counts in the present context."""

    @classmethod
    def class_name(cls) -> str:
        return "LongragModelCallHandler"

    def handle(self, event: Any, **kwargs: Any) -> None:
        calls = _current.get()
        if calls is not None:
            calls.add(event)


@cache
def _watch_events() -> None:
    get_dispatcher().add_event_handler(_ModelCallHandler())


def observe(call: MethodCall) -> Calls[Observed]:
    """Make a call, and return its value or its error with the calls of models inside it."""
    calls = ModelCalls()
    with calls.counting():
        try:
            outcome: Any = yield call
        except Exception as error:  # noqa: BLE001 - an outcome is a value or an exception
            outcome = error
    return calls.observed(outcome)
