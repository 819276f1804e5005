"""What flows are written with: to ask for one thing, to tell something, to go on together."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any, TypeVar

from longrag.calls.requests import Announce, Flow, Outcome, Request

T = TypeVar("T")


def ask(request: Request) -> Flow[Any]:
    """Yield one request from inside a flow and return its value, raising what the call raised."""
    (outcome,) = yield (request,)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def announce(event: object) -> Flow[None]:
    """Yield an ``Announce`` from inside a flow.

    Whoever shows progress must not end what it shows, so that errors are passed over, but for
    warnings that the caller turned into errors.
    """
    (outcome,) = yield (Announce(event),)
    if isinstance(outcome, Warning):
        raise outcome


def together(flows: Iterable[Flow[T]]) -> Flow[list[T]]:
    """Advance several flows in step as one, with the calls of all of them open at the same time.

    Returns their results in order. A flow that raises ends the others.
    """
    running = list(flows)
    results: dict[int, T] = {}
    outcomes: list[list[Outcome] | None] = [None] * len(running)
    try:
        while True:
            requests: list[tuple[Request, ...]] = []
            for index, flow in enumerate(running):
                asked: tuple[Request, ...] = ()
                if index not in results:
                    try:
                        sent = outcomes[index]
                        asked = next(flow) if sent is None else flow.send(sent)
                    except StopIteration as stop:
                        results[index] = stop.value
                requests.append(asked)
            if len(results) == len(running):
                return [results[index] for index in range(len(running))]
            answers = iter((yield tuple(chain.from_iterable(requests))))
            outcomes = [list(islice(answers, len(asked))) for asked in requests]
    finally:
        for flow in running:
            flow.close()
