"""What each module of a recipe did: time, calls, tokens, input and output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from math import isfinite
from time import perf_counter
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

import numpy as np

from longrag.calls import Embed, Flow, Generate, Outcome, Request
from longrag.recipes.passages import Passage
from longrag.retrieval.queries import QueryTexts
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

_REQUESTS: Final = ("longrag.calls", "longrag.recipes.modules")
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

    ``decision`` is what the query gate decided, None elsewhere.
    """

    count: int = 0
    tokens: int = 0
    first: tuple[Preview, ...] = ()
    decision: bool | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One module of one run.

    Attributes:
        name: one of ``MODULES``.
        skipped: why the module did nothing; None when it ran.
        seconds: from the start of the module to its result, including the time it waits for calls
            of other flows that run at the same time.
        calls: how many requests went out, by their names. Work done in this process,
            by a scorer for instance, is not a call.
        sent_tokens: of the texts in these requests.
        received_tokens: of the texts that a language model answered.
        input: the module's input.
        output: the module's output.
        errors: those that calls raised, and those after which the recipe continued.
    """

    name: str
    skipped: str | None = None
    seconds: float = 0.0
    calls: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    sent_tokens: int = 0
    received_tokens: int = 0
    input: StepData = StepData()
    output: StepData = StepData()
    errors: tuple[str, ...] = ()


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
        self._steps.append(Step(name, why))

    def note(self, step: Step) -> None:
        """Record a step that was measured elsewhere."""
        self._steps.append(step)

    def fail(self, error: Exception, kept: Sequence[Passage]) -> None:
        """Add to the last step an error after which the recipe continues with ``kept``."""
        step = self._steps[-1]
        errors = tuple(dict.fromkeys((*step.errors, _error_text(error))))
        self._steps[-1] = replace(step, errors=errors, output=self.describe(kept))

    def watch(
        self, name: str, given: Sequence[str | Passage], work: Callable[[], Flow[T]]
    ) -> Flow[T]:
        """Run a module's flow, record it even if it raises, and return its result."""
        record, began = _ModuleRecord(self, name, given), perf_counter()
        flow = work()
        outcomes: list[Outcome] | None = None
        try:
            while True:
                requests = next(flow) if outcomes is None else flow.send(outcomes)
                record.add_requests(requests)
                outcomes = yield requests
                record.add_outcomes(outcomes)
        except StopIteration as stop:
            record.result = stop.value
            return cast("T", stop.value)
        finally:
            flow.close()
            self._steps.append(record.as_step(perf_counter() - began))

    def measure(self, name: str, given: Sequence[Passage], work: Callable[[], T]) -> T:
        """Do a module's work that makes no request, record it, and return its result."""
        record, began = _ModuleRecord(self, name, given), perf_counter()
        record.result = result = work()
        self._steps.append(record.as_step(perf_counter() - began))
        return result

    def count(self, texts: Iterable[str]) -> int:
        """Count the tokens of texts."""
        return sum(map(self._count, texts))

    def describe(self, value: object) -> StepData:
        """Describe a decision, a text, or texts and passages."""
        if isinstance(value, bool):
            return StepData(decision=value)
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

    def add_outcomes(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                self._errors.append(_error_text(outcome))
            elif isinstance(outcome, str):
                self._received += self._tracer.count([outcome])

    def as_step(self, seconds: float) -> Step:
        return Step(
            self._name,
            None,
            seconds,
            MappingProxyType(dict(sorted(self._calls.items()))),
            self._sent,
            self._received,
            self._tracer.describe(self._given),
            self._tracer.describe(self.result),
            tuple(dict.fromkeys(self._errors)),
        )


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


def _error_text(error: Exception) -> str:
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
