"""Decoding from an event loop: off it, and over as soon as nobody waits for it any more."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from threading import Event
from typing import TypeVar

from longrag.decoding.decoder import RichesDecoder
from longrag.errors import GenerationError
from longrag.models.language_model import LanguageModel, Next, Scores, Session
from longrag.models.tokenizer import Tokenizer

T = TypeVar("T")


async def in_one_thread(steps: Generator[T, None, None]) -> AsyncGenerator[T, None]:
    """Yield what a generator yields, each step in the same thread under the caller's context.

    When the caller is cancelled or goes away the step that is running is waited for, and the
    generator closed: afterwards nothing of it runs any more.
    """
    loop, context, pool = asyncio.get_running_loop(), copy_context(), ThreadPoolExecutor(1)

    def step() -> T | None:
        return next(steps, None)

    try:
        while True:
            value = await _shielded(loop.run_in_executor(pool, context.run, step))
            if value is None:
                return
            yield value
    finally:
        closing = loop.run_in_executor(pool, context.run, steps.close)
        # What the thread was given is done although it is not waited for.
        pool.shutdown(wait=False)
        await asyncio.shield(closing)


async def in_thread(decoder: RichesDecoder, work: Callable[[RichesDecoder], T]) -> T:
    """Do what takes a decoder in a thread.

    When the caller is cancelled, its model is asked no more, and this is waited for.
    """
    stopped, own = Event(), copy.copy(decoder)
    own.language_model = _Stoppable(decoder.language_model, stopped)
    try:
        return await _shielded(asyncio.ensure_future(asyncio.to_thread(work, own)), stopped)
    finally:
        stopped.set()


async def _shielded(running: asyncio.Future[T], stopped: Event | None = None) -> T:
    """Wait for what cannot be cancelled, also when this is cancelled."""
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if stopped is not None:
            stopped.set()
        await asyncio.wait([running])
        if not running.cancelled():
            # Nobody else will ask what came of it.
            running.exception()
        raise


class _Stoppable:
    """A language model that is asked no more when it is stopped."""

    def __init__(self, model: LanguageModel, stopped: Event) -> None:
        self._model = model
        self._stopped = stopped

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def tokenizer(self) -> Tokenizer:
        return self._model.tokenizer

    @property
    def end_ids(self) -> tuple[int, ...]:
        return self._model.end_ids

    @property
    def context_window(self) -> int | None:
        return self._model.context_window

    def prompt_ids(self, prompt: str, /) -> Sequence[int]:
        return self._model.prompt_ids(prompt)

    @contextmanager
    def session(self, prompts: Sequence[Sequence[int]], /) -> Iterator[Session]:
        with self._model.session(prompts) as session:
            yield _StoppableSession(session, self._stopped)


class _StoppableSession:
    def __init__(self, session: Session, stopped: Event) -> None:
        self._session = session
        self._stopped = stopped

    def score(self, asked: Sequence[Next], /) -> Sequence[Scores]:
        if self._stopped.is_set():
            raise GenerationError("nobody waits for this retrieval any more")
        return self._session.score(asked)
