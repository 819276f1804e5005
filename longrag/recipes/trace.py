"""What each module of a recipe did: time, calls, tokens, input and output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from itertools import chain
from math import isfinite
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

import numpy as np

from longrag.calls import Embed, Flow, Generate, Request
from longrag.calls.requests import CallResult
from longrag.recipes.passages import Passage
from longrag.retrieval.queries import QueryTexts
from longrag.retrieval.query_classifier import Decision
from longrag.types import TokenCounter

T = TypeVar("T")

MODULES: Final = (
    "classification",
    "transform",
    "retrieval",
    "hybrid",
    "reranking",
    "repacking",
    "compression",
    "generation",
)
"""The names of the modules, in the order in which they come."""

_REQUESTS: Final = ("longrag.calls.requests", "longrag.recipes.modules")
_ITEMS: Final = 10
_CHARACTERS: Final = 200
_COUNTED_ONCE: Final = 1024


@dataclass(frozen=True, slots=True)
class Preview:
    """A text as a trace shows it: its first 200 characters.

    ``id`` and ``score`` are a passage's; a query or an answer has none.
    """

    text: str
    id: str | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class StepData:
    """What goes into a module or comes out of it: how many texts, their tokens, and the first 10.

    ``decision`` is what the query gate decided and ``reason`` why; both are None elsewhere, and
    ``reason`` also where the gate does not say it.
    """

    count: int = 0
    tokens: int = 0
    first: tuple[Preview, ...] = ()
    decision: bool | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One module of one run.

    Attributes:
        name: one of ``MODULES``.
        skipped: why the module did nothing; None when it ran.
        fallback: what was done in place of a module that failed; None when it did not. The error
            is in ``errors``.
        finished: whether the module came to its end. The generation of a stream has not until the
            stream ends, and keeps what was written when the stream breaks off or is left.
        seconds: from the start of the module to its result, including the time it waits for calls
            of other flows that run at the same time.
        calls: how many requests went out, by their names, and how many calls of models a
            framework's part made to answer them. Work done in this process, by a scorer for
            instance, is not a call.
        sent_tokens: of the texts in these requests.
        received_tokens: of the texts that a language model answered.
        input: the module's input.
        output: the module's output.
        errors: those that calls raised, and those after which the recipe continued.
    """

    name: str
    skipped: str | None = None
    fallback: str | None = None
    finished: bool = True
    seconds: float = 0.0
    calls: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    sent_tokens: int = 0
    received_tokens: int = 0
    input: StepData = StepData()
    output: StepData = StepData()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModuleBegan:
    """Announced before a module works, by its name; ``input`` is what it is given."""

    name: str
    input: StepData


@dataclass(frozen=True, slots=True)
class ModuleEnded:
    """Announced when a module has worked; ``error`` is what it raised, None if it did not."""

    step: Step
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """The modules of one run, in the order in which they came."""

    steps: tuple[Step, ...] = ()

    def __getitem__(self, name: str) -> Step:
        """Return a module's step.

        Raises:
            KeyError: no module of this name came yet.
        """
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)

    @property
    def seconds(self) -> float:
        """The time of all modules together."""
        return sum(step.seconds for step in self.steps)

    @property
    def ran(self) -> tuple[str, ...]:
        """The names of the modules that were not skipped."""
        return tuple(step.name for step in self.steps if step.skipped is None)

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return a dictionary for each step, of values that JSON can hold.

        A score that is not finite becomes None, since JSON has no such number.
        """
        return [_plain(step) for step in self.steps]


@dataclass(frozen=True, slots=True)
class Observed:
    """The outcome of a request, with the calls of models that a framework's part made for it.

    ``Tracer.watch`` counts the calls and passes on ``outcome``: a value, or the exception raised.

    Attributes:
        outcome: what the flow is sent.
        prompts: the prompts that a language model was asked.
        replies: the texts that it answered.
        embedded: the texts of each call of an embedding model.
    """

    outcome: CallResult
    prompts: tuple[str, ...] = ()
    replies: tuple[str, ...] = ()
    embedded: tuple[tuple[str, ...], ...] = ()


class Tracer:
    """Records the modules of one run. Each flow has its tracer, so merged flows do not mix."""

    def __init__(self, count_tokens: TokenCounter) -> None:
        self._steps: list[Step] = []
        # The same texts pass through several modules.
        self._count = lru_cache(_COUNTED_ONCE)(count_tokens)

    @property
    def trace(self) -> Trace:
        """The steps recorded so far."""
        return Trace(tuple(self._steps))

    def skip(self, name: str, why: str) -> None:
        """Record a module that did nothing, and why."""
        self._steps.append(Step(name, skipped=why))

    def note(self, step: Step) -> None:
        """Record a step that was measured elsewhere."""
        self._steps.append(step)

    def fall_back(self, error: Exception, fallback: str, kept: object) -> None:
        """Add to the last step an error after which the recipe continues with ``kept``."""
        step = self._steps[-1]
        errors = tuple(dict.fromkeys((*step.errors, error_text(error))))
        self._steps[-1] = replace(
            step, fallback=fallback, errors=errors, output=self.describe(kept)
        )

    def watch(
        self, name: str, given: Sequence[str | Passage], work: Callable[[], Flow[T]]
    ) -> Flow[T]:
        """Run a module's flow, record it even if it raises, and return its result."""
        record, began = _ModuleRecord(self, name, given), perf_counter()
        flow = work()
        outcomes: list[CallResult] | None = None
        try:
            while True:
                requests = next(flow) if outcomes is None else flow.send(outcomes)
                record.add_requests(requests)
                outcomes = record.add_outcomes((yield requests))
        except StopIteration as stop:
            record.result = stop.value
            return cast("T", stop.value)
        finally:
            flow.close()
            self._steps.append(record.as_step(perf_counter() - began))

    def count(self, texts: Iterable[str]) -> int:
        """Count the tokens of texts."""
        return sum(map(self._count, texts))

    def describe(self, value: object) -> StepData:
        """Describe a decision, a text, or texts and passages."""
        if isinstance(value, Decision):
            return StepData(decision=value.needs_retrieval, reason=value.reason)
        if isinstance(value, QueryTexts):
            value = value.texts
        elif isinstance(value, str):
            value = (value,)
        elif not isinstance(value, Sequence):
            return StepData()
        texts = [one.text if isinstance(one, Passage) else str(one) for one in value]
        first = tuple(map(_to_preview, value[:_ITEMS]))
        return StepData(len(texts), self.count(texts), first)


class _ModuleRecord:
    """Collects what one module does while it runs."""

    def __init__(self, tracer: Tracer, name: str, given: Sequence[str | Passage]) -> None:
        self.result: object = None
        self._tracer = tracer
        self._name = name
        self._given = given
        self._calls: Counter[str] = Counter()
        self._sent = self._received = 0
        self._errors: list[str] = []

    def add_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._calls[_request_name(request)] += 1
            self._sent += self._tracer.count(_texts(request))

    def add_outcomes(self, outcomes: Iterable[CallResult]) -> list[CallResult]:
        """Record outcomes, and return them as the module is sent them."""
        return [self._add_outcome(outcome) for outcome in outcomes]

    def _add_outcome(self, outcome: CallResult) -> CallResult:
        if isinstance(outcome, Observed):
            self._calls.update(nested_calls(outcome))
            self._sent += self._tracer.count([*outcome.prompts, *chain(*outcome.embedded)])
            self._received += self._tracer.count(outcome.replies)
            outcome = outcome.outcome
        elif isinstance(outcome, str):
            self._received += self._tracer.count([outcome])
        if isinstance(outcome, Exception):
            self._errors.append(error_text(outcome))
        return outcome

    def as_step(self, seconds: float) -> Step:
        return Step(
            self._name,
            seconds=seconds,
            calls=MappingProxyType(dict(sorted(self._calls.items()))),
            sent_tokens=self._sent,
            received_tokens=self._received,
            input=self._tracer.describe(self._given),
            output=self._tracer.describe(self.result),
            errors=tuple(dict.fromkeys(self._errors)),
        )


def nested_calls(observed: Observed) -> dict[str, int]:
    """Return how many calls of models were observed, by the names of requests."""
    counts = {"Generate": len(observed.prompts), "Embed": len(observed.embedded)}
    return {name: count for name, count in counts.items() if count}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):  # Many rerankers give NumPy scores.
        value = value.item()
    return None if isinstance(value, float) and not isfinite(value) else value


def _to_preview(one: str | Passage) -> Preview:
    if isinstance(one, Passage):
        return Preview(one.text[:_CHARACTERS], one.id, one.score)
    return Preview(one[:_CHARACTERS])


def error_text(error: BaseException) -> str:
    """Return an error as a trace shows it: its class and the first characters of its message."""
    return f"{type(error).__name__}: {error}"[:_CHARACTERS]


def _request_name(request: object) -> str:
    """Return a request's class name; for an adapter's subclass, that of its base in the core."""
    own = (kind for kind in type(request).__mro__ if kind.__module__ in _REQUESTS)
    return next(own, type(request)).__name__


def _texts(request: Request) -> Sequence[str]:
    match request:
        case Generate(prompt=prompt):
            return (prompt,)
        case Embed(texts=texts):
            return texts
    return ()
