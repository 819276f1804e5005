"""Answers a flow's requests by calls of a framework's objects, sync or async, from one definition.

An adapter says once how its framework embeds, generates or searches: a *handler* is a generator
function that takes a request, yields the ``MethodCall``s the answer needs, one after another, and
returns the answer. An ``Answerer`` is a table from the class of a request to its handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from longrag.calls import CallLimit, Flow, Generate, Request, arun, run

if TYPE_CHECKING:
    from longrag.integration.retries import CallGuard
    from longrag.journal import Journal

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MethodCall:
    """One call of an object's method, named by its sync name; the async name has an ``a`` before.

    Async callers run a method without an async name in a thread. They also do so with ``blocking``,
    which says that the async method would hold up the event loop.
    """

    target: object
    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class Together:
    """Calls of which none depends on another's answer; the answer is the list of theirs.

    Async callers make them at the same time, sync callers one after another.
    """

    calls: tuple[MethodCall, ...]


Calls: TypeAlias = Generator[MethodCall | Together, Any, T]
"""Calls made one after another; the generator is sent what each returned, or thrown its error."""

Handler: TypeAlias = Callable[[Any], Calls[Any]]


def perform(calls: Calls[T]) -> T:
    """Make the calls and return the generator's result. The generator is always closed."""
    try:
        call = next(calls)
        while True:
            try:
                value = _call(call)
            except Exception as error:  # noqa: BLE001 - the generator decides what to do about it
                call = calls.throw(error)
            else:
                call = calls.send(value)
    except StopIteration as stop:
        return cast("T", stop.value)
    finally:
        calls.close()


async def aperform(calls: Calls[T], threads: Executor | None = None) -> T:
    """Make the calls by the objects' async methods; blocking ones run in ``threads``.

    By default these are the event loop's own threads.
    """
    try:
        call = next(calls)
        while True:
            try:
                value = await _acall(call, threads)
            except Exception as error:  # noqa: BLE001 - the generator decides what to do about it
                call = calls.throw(error)
            else:
                call = calls.send(value)
    except StopIteration as stop:
        return cast("T", stop.value)
    finally:
        calls.close()


def _call(call: MethodCall | Together) -> Any:
    if isinstance(call, Together):
        return [_call(one) for one in call.calls]
    return getattr(call.target, call.name)(*call.args, **call.kwargs)


async def _acall(call: MethodCall | Together, threads: Executor | None) -> Any:
    if not isinstance(call, Together):
        return await _async_method(call, threads)(*call.args, **call.kwargs)
    tasks = [asyncio.ensure_future(_acall(one, threads)) for one in call.calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _async_method(call: MethodCall, threads: Executor | None) -> Callable[..., Awaitable[Any]]:
    if not call.blocking:
        method: Callable[..., Awaitable[Any]] | None = getattr(call.target, f"a{call.name}", None)
        if method is not None:
            return method
    blocking = getattr(call.target, call.name)
    return lambda *args, **kwargs: _run_in_thread(partial(blocking, *args, **kwargs), threads)


async def _run_in_thread(call: Callable[[], Any], threads: Executor | None) -> Any:
    context = copy_context()
    return await asyncio.get_running_loop().run_in_executor(threads, context.run, call)


class Answerer:
    """Drives flows to their results, with a handler for each class of request.

    A subclass of a request is answered by the handler of its nearest base class. A request without
    a handler fails with ``NotImplementedError``, which the flow is given like any other error.

    Args:
        handlers: what answers each class of request.
        max_in_flight: the most calls in flight at a time.
        limit: the most ``Generate`` requests that may be answered; what a journal answers costs
            nothing.
        journal: keeps the answers; see ``longrag.integration.journals`` for opening one.
        locks: held while a sync run answers a request of their class, whose handler calls an object
            that several threads cannot call at once.
        guards: say when requests of their class, or of a subclass, are answered, and repeat those
            that failed.
    """

    def __init__(
        self,
        handlers: Mapping[type, Handler],
        *,
        max_in_flight: int = 1,
        limit: CallLimit | None = None,
        journal: Journal | None = None,
        locks: Mapping[type, AbstractContextManager[Any]] | None = None,
        guards: Mapping[type, CallGuard] | None = None,
    ) -> None:
        self._handlers = handlers
        self._max_in_flight = max_in_flight
        self._limit = limit
        self._journal = journal
        self._locks = locks or {}
        self._guards = guards or {}

    def run(self, flow: Flow[T]) -> T:
        """Drive a flow to its result; see ``longrag.calls.run``."""
        return run(
            flow,
            self._answer,
            max_in_flight=self._max_in_flight,
            journal=self._journal,
            on_interrupt=self._wake,
        )

    async def arun(self, flow: Flow[T]) -> T:
        """Drive a flow to its result with async calls; see ``longrag.calls.arun``."""
        with ExitStack() as stack:
            threads = None
            if self._max_in_flight > 1:
                # The event loop's own threads may be fewer than the calls in flight.
                threads = ThreadPoolExecutor(self._max_in_flight)
                # A cancelled run does not wait for calls that cannot be cancelled.
                stack.callback(threads.shutdown, wait=False, cancel_futures=True)
            return await arun(
                flow,
                lambda request: self._aanswer(request, threads),
                max_in_flight=self._max_in_flight,
                journal=self._journal,
            )

    def _answer(self, request: Request) -> Any:
        def attempt() -> Any:
            with self._locks.get(type(request)) or nullcontext():
                return perform(self._calls(request))

        guard = self._guard(request)
        return attempt() if guard is None else guard.call(attempt, request)

    async def _aanswer(self, request: Request, threads: Executor | None) -> Any:
        def attempt() -> Awaitable[Any]:
            return aperform(self._calls(request), threads)

        guard = self._guard(request)
        return await (attempt() if guard is None else guard.acall(attempt, request))

    def _guard(self, request: Request) -> CallGuard | None:
        return next(
            (guard for kind, guard in self._guards.items() if isinstance(request, kind)), None
        )

    def _wake(self) -> None:
        for guard in self._guards.values():
            guard.end()

    def _calls(self, request: Request) -> Calls[Any]:
        for kind in type(request).__mro__:
            if kind in self._handlers:
                if self._limit is not None and isinstance(request, Generate):
                    self._limit.spend()
                return self._handlers[kind](request)
        raise NotImplementedError(type(request).__name__)
