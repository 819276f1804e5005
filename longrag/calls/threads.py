"""Work of a thread that is waited for to its end, for callers in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from itertools import islice
from threading import Event
from typing import TypeVar

T = TypeVar("T")


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
