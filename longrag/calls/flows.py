"""What flows are written with, and the two loops that drive one of them."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from threading import Event
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from longrag.calls.requests import (
    Announce,
    Answer,
    AsyncAnswer,
    CallResult,
    Compute,
    Flow,
    Generate,
    Request,
)
from longrag.errors import InvalidParameterError

if TYPE_CHECKING:
    from longrag.journal import Journal

T = TypeVar("T")

_threads: ContextVar[Executor | None] = ContextVar("longrag_threads", default=None)


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
    outcomes: list[list[CallResult] | None] = [None] * len(running)
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


def run(
    flow: Flow[T],
    answer: Answer,
    *,
    max_in_flight: int = 1,
    journal: Journal | None = None,
    on_interrupt: Callable[[], None] | None = None,
) -> T:
    """Drive a flow to its result.

    All requests of one ``yield`` are answered before the flow goes on, equal ``Generate`` requests
    once: in the caller's thread, or up to ``max_in_flight`` at a time in threads, each under a copy
    of the caller's context. ``Compute`` is never passed to ``answer``. With a journal, see
    ``run_all``. A run that ends early calls ``on_interrupt`` before it waits for the calls in
    flight, so that those which wait for something can end.

    Raises:
        InvalidParameterError: ``max_in_flight`` is below 1.
        JournalError: an answer could not be written or read; nothing more is asked.
        Exception: whatever the flow raises.
    """
    if journal is not None:
        from longrag.calls.driving import run_all

        settings: dict[str, Any] = {"journal": journal, "on_interrupt": on_interrupt}
        return run_all([flow], answer, max_in_flight=max_in_flight, **settings)[0]
    check_in_flight(max_in_flight)
    pool = ThreadPoolExecutor(max_in_flight) if max_in_flight > 1 else None
    outcomes: list[CallResult] | None = None
    try:
        while True:
            requests = next(flow) if outcomes is None else flow.send(outcomes)
            asked = _distinct(requests)
            if pool is None or len(asked) == 1:
                answered = [_outcome(answer, request) for request in asked.values()]
            else:
                answered = _outcomes(answer, asked.values(), pool, on_interrupt)
            outcomes = _in_place(requests, asked, answered)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        flow.close()


async def arun(
    flow: Flow[T], answer: AsyncAnswer, *, max_in_flight: int = 1, journal: Journal | None = None
) -> T:
    """Drive a flow to its result from an event loop, as ``run`` does.

    The flow advances in a worker thread under a copy of the caller's context, so that its own work
    (a search, a clustering) never blocks the loop. On cancellation the calls in flight are
    cancelled and the flow is closed before this returns.
    """
    if journal is not None:
        from longrag.calls.driving import arun_all

        return (await arun_all([flow], answer, max_in_flight=max_in_flight, journal=journal))[0]
    check_in_flight(max_in_flight)
    outcomes: list[CallResult] | None = None
    with own_threads(max_in_flight):
        try:
            while True:
                requests = await shielded(partial(_advance, flow, outcomes))
                if isinstance(requests, _Result):
                    return requests.value
                asked = _distinct(requests)
                if len(asked) == 1:
                    answered = [await _aoutcome(answer, one) for one in asked.values()]
                else:
                    answered = await _aoutcomes(answer, asked.values(), max_in_flight)
                outcomes = _in_place(requests, asked, answered)
        finally:
            flow.close()


def check_in_flight(max_in_flight: int) -> None:
    """Raise ``InvalidParameterError`` unless a call may be in flight."""
    if max_in_flight < 1:
        raise InvalidParameterError("max_in_flight", max_in_flight, "at least 1")


async def in_thread(work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Do work that would hold up the event loop in a thread, under a copy of the context.

    Within ``arun`` there are as many threads as calls in flight; the event loop's own are few.
    """
    context = copy_context()
    # Work that drives flows itself would wait for threads that wait for it.
    context.run(_threads.set, None)
    call = partial(context.run, work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads.get(), call)


def async_method(target: object, name: str) -> Callable[..., Awaitable[Any]]:
    """Return the async form of an object's method, which has an ``a`` before its name.

    A method that has none is called in a thread.
    """
    found: Callable[..., Awaitable[Any]] | None = getattr(target, f"a{name}", None)
    return partial(in_thread, getattr(target, name)) if found is None else found


@contextmanager
def own_threads(max_in_flight: int) -> Iterator[None]:
    """Let ``in_thread`` have as many threads as there are calls in flight."""
    pool = ThreadPoolExecutor(max_in_flight) if max_in_flight > 1 else None
    token = _threads.set(pool)
    try:
        yield
    finally:
        _threads.reset(token)
        if pool is not None:
            # A cancelled run does not wait for calls that cannot be cancelled.
            pool.shutdown(wait=False, cancel_futures=True)


async def shielded(step: Callable[[], T]) -> T:
    """Run a step in a thread; a cancellation waits for it, since a running flow cannot close."""
    running = asyncio.ensure_future(asyncio.to_thread(step))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


async def in_one_thread(steps: Generator[T, None, None]) -> AsyncGenerator[T, None]:
    """Yield what a generator yields, each step in the same thread with the caller's context.

    When the caller is cancelled or closes this generator, the running step is waited for and the
    inner generator closed: nothing of it runs afterwards.
    """
    loop, context, pool = asyncio.get_running_loop(), copy_context(), ThreadPoolExecutor(1)

    def step() -> list[T]:
        return list(islice(steps, 1))

    try:
        while found := await to_its_end(loop.run_in_executor(pool, context.run, step)):
            yield found[0]
    finally:
        closing = loop.run_in_executor(pool, context.run, steps.close)
        # The pool still runs what was submitted to it.
        pool.shutdown(wait=False)
        await to_its_end(closing)


async def to_its_end(running: asyncio.Future[T], stopped: Event | None = None) -> T:
    """Wait for a future to end, even if this coroutine is cancelled several times."""
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if stopped is not None:
            stopped.set()
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        if not running.cancelled():
            # Reading the exception keeps asyncio from logging that it was never retrieved.
            running.exception()
        raise


@dataclass(frozen=True, slots=True)
class _Result(Generic[T]):
    """What a flow returned; a future cannot hold a ``StopIteration``."""

    value: T


def _advance(flow: Flow[T], outcomes: list[CallResult] | None) -> tuple[Request, ...] | _Result[T]:
    try:
        return next(flow) if outcomes is None else flow.send(outcomes)
    except StopIteration as stop:
        return _Result(stop.value)


def _key(at: int, request: Request) -> Hashable:
    return request if isinstance(request, Generate) else at


def _distinct(requests: Sequence[Request]) -> dict[Hashable, Request]:
    """Return the requests to be answered: equal prompts once."""
    asked: dict[Hashable, Request] = {}
    for at, request in enumerate(requests):
        asked.setdefault(_key(at, request), request)
    return asked


def _in_place(
    requests: Sequence[Request], asked: Iterable[Hashable], answered: Iterable[CallResult]
) -> list[CallResult]:
    known = dict(zip(asked, answered, strict=True))
    return [known[_key(at, request)] for at, request in enumerate(requests)]


def _outcome(answer: Answer, request: Request) -> CallResult:
    try:
        return request.work() if isinstance(request, Compute) else answer(request)
    except Exception as error:  # noqa: BLE001 - an outcome is a value or an exception
        return error


async def _aoutcome(answer: AsyncAnswer, request: Request) -> CallResult:
    try:
        if isinstance(request, Compute):
            return await asyncio.to_thread(request.work)
        return await answer(request)
    except Exception as error:  # noqa: BLE001 - an outcome is a value or an exception
        return error


def _outcomes(
    answer: Answer,
    requests: Iterable[Request],
    pool: Executor,
    on_interrupt: Callable[[], None] | None,
) -> list[CallResult]:
    running: list[Future[CallResult]] = [
        pool.submit(copy_context().run, _outcome, answer, request) for request in requests
    ]
    try:
        for one in as_completed(running):
            one.result()
    except BaseException:
        if on_interrupt is not None:
            on_interrupt()
        raise
    return [one.result() for one in running]


async def _aoutcomes(
    answer: AsyncAnswer, requests: Iterable[Request], max_in_flight: int
) -> list[CallResult]:
    places = asyncio.Semaphore(max_in_flight)

    async def wait_and_answer(request: Request) -> CallResult:
        async with places:
            return await _aoutcome(answer, request)

    running = [asyncio.ensure_future(wait_and_answer(request)) for request in requests]
    try:
        return list(await asyncio.gather(*running))
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
