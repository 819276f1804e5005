"""Several flows as one queue of calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar, cast

from longrag.calls.flows import check_in_flight
from longrag.calls.requests import CallResult, Flow, Generate, Request

T = TypeVar("T")

CLAIMED_BY_OTHER_RUN: Final = object()
"""The outcome of a call that another run on the same journal is making."""


@dataclass(slots=True, eq=False)
class Call:
    """One open request and the places (flow, slot) that wait for its outcome."""

    request: Request
    places: list[tuple[int, int]] = field(default_factory=list)


class MergedFlows(Generic[T]):
    """Several flows as one queue of calls: which call to open next, and who gets its outcome."""

    def __init__(self, flows: Sequence[Flow[T]], max_in_flight: int) -> None:
        check_in_flight(max_in_flight)
        self.max_in_flight = max_in_flight
        self._flows = list(flows)
        self._results: dict[int, T] = {}
        self._ready: deque[tuple[int, list[CallResult] | None]] = deque(
            (index, None) for index in range(len(self._flows))
        )
        self._outcomes: dict[int, list[CallResult]] = {}
        self._missing: dict[int, int] = {}
        self._queue: deque[Call] = deque()
        self._open: dict[Generate, Call] = {}

    def next_call(self) -> Call | None:
        """Advance the flows that can go on until there is a call to open; None when all wait."""
        while not self._queue and self._ready:
            self._advance(*self._ready.popleft())
        return self._queue.popleft() if self._queue else None

    def settle(self, call: Call, outcome: CallResult) -> None:
        """Pass an outcome to the flows that wait for it; requeue a call that another run makes."""
        if outcome is CLAIMED_BY_OTHER_RUN:
            self._queue.append(call)
            return
        if isinstance(call.request, Generate):
            del self._open[call.request]
        for index, slot in call.places:
            self._outcomes[index][slot] = outcome
            self._missing[index] -= 1
            if not self._missing[index]:
                self._ready.append((index, self._outcomes.pop(index)))

    def results(self) -> list[T]:
        """The flows' results, in the order of the flows."""
        return [self._results[index] for index in range(len(self._flows))]

    def close(self) -> None:
        """Close every flow; those that ended are not touched by it."""
        for flow in self._flows:
            flow.close()

    def _advance(self, index: int, outcomes: list[CallResult] | None) -> None:
        try:
            flow = self._flows[index]
            requests = next(flow) if outcomes is None else flow.send(outcomes)
        except StopIteration as stop:
            self._results[index] = cast("T", stop.value)
            return
        if not requests:
            self._ready.append((index, []))
            return
        self._outcomes[index] = [None] * len(requests)
        self._missing[index] = len(requests)
        for slot, request in enumerate(requests):
            self._enqueue(request, (index, slot))

    def _enqueue(self, request: Request, place: tuple[int, int]) -> None:
        call = self._open.get(request) if isinstance(request, Generate) else None
        if call is None:
            call = Call(request)
            self._queue.append(call)
            if isinstance(request, Generate):
                self._open[request] = call
        call.places.append(place)
