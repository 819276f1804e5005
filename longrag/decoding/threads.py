"""Decoding in a thread for callers in an event loop; cancelling them stops the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from longrag.calls.flows import to_its_end
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
    return await to_its_end(running, stopped)
