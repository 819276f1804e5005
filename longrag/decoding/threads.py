"""Decoding from an event loop: off it, and over as soon as nobody waits for it any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from itertools import islice
from threading import Event
from typing import TypeVar

from longrag.decoding.decoder import RichesDecoder

T = TypeVar("T")


async def in_thread(decoder: RichesDecoder, work: Callable[[RichesDecoder], T]) -> T:
    """Do what takes a decoder in a thread, under the caller's context.

    When the caller is cancelled the decoder's model is not called again; a running call is
    waited for, since nothing can cut it short.
    """
    stopped = Event()
    own = decoder.stopped_by(stopped.is_set)
    running = asyncio.ensure_future(asyncio.to_thread(work, own))
    return await _to_its_end(running, stopped)


async def in_one_thread(steps: Generator[T, None, None]) -> AsyncGenerator[T, None]:
    """Yield what a generator yields, each step in the same thread under the caller's context.

    When the caller is cancelled or goes away the step that is running is waited for, and the
    generator closed: afterwards nothing of it runs any more.
    """
    loop, context, pool = asyncio.get_running_loop(), copy_context(), ThreadPoolExecutor(1)

    def step() -> list[T]:
        return list(islice(steps, 1))

    try:
        while found := await _to_its_end(loop.run_in_executor(pool, context.run, step)):
            yield found[0]
    finally:
        closing = loop.run_in_executor(pool, context.run, steps.close)
        # What the thread was given is done although it is not waited for.
        pool.shutdown(wait=False)
        await _to_its_end(closing)


async def _to_its_end(running: asyncio.Future[T], stopped: Event | None = None) -> T:
    """Wait for what cannot be cancelled, however often this is."""
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if stopped is not None:
            stopped.set()
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        if not running.cancelled():
            # Nobody else will ask what came of it.
            running.exception()
        raise
