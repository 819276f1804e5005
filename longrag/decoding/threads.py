"""Decoding in a thread for callers in an event loop; cancelling them stops the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from longrag.decoding.decoder import RichesDecoder

T = TypeVar("T")


async def in_thread(decoder: RichesDecoder, work: Callable[[RichesDecoder], T]) -> T:
    """Run a function of a decoder in a thread, with the caller's context variables.

    When the caller is cancelled, the model is not called again; a call that is running is waited
    for, since it cannot be interrupted.
    """
    stopped = Event()
    own = decoder.stopped_by(stopped.is_set)
    running = asyncio.ensure_future(asyncio.to_thread(work, own))
    return await _to_its_end(running, stopped)


async def in_one_thread(steps: Generator[T, None, None]) -> AsyncGenerator[T, None]:
    """Yield what a generator yields, each step in the same thread with the caller's context.

    When the caller is cancelled or closes this generator, the running step is waited for and the
    inner generator closed: nothing of it runs afterwards.
    """
    loop, context, pool = asyncio.get_running_loop(), copy_context(), ThreadPoolExecutor(1)

    def step() -> list[T]:
        return list(islice(steps, 1))

    try:
        while found := await _to_its_end(loop.run_in_executor(pool, context.run, step)):
            yield found[0]
    finally:
        closing = loop.run_in_executor(pool, context.run, steps.close)
        # The pool still runs what was submitted to it.
        pool.shutdown(wait=False)
        await _to_its_end(closing)


async def _to_its_end(running: asyncio.Future[T], stopped: Event | None = None) -> T:
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
