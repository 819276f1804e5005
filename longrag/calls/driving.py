"""The drivers of several flows, or of one with a journal: with threads and with an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from longrag.calls.flows import own_threads, shielded
from longrag.calls.merging import CLAIMED_BY_OTHER_RUN, Call, MergedFlows
from longrag.calls.recalling import RunJournal
from longrag.calls.requests import Answer, AsyncAnswer, CallResult, Compute, Flow, Request
from longrag.errors import JournalError

if TYPE_CHECKING:
    from longrag.journal import Journal

T = TypeVar("T")

# Seconds until the journal is read again for a call that another run is making.
_PAUSE: Final = 0.05


def run_all(
    flows: Sequence[Flow[T]],
    answer: Answer,
    *,
    max_in_flight: int = 1,
    journal: Journal | None = None,
    on_interrupt: Callable[[], None] | None = None,
) -> list[T]:
    """Drive flows to their results, in the order given.

    With ``max_in_flight=1`` every call runs in the caller's thread, otherwise in that many
    threads, each under a copy of the caller's context. Answers to ``Generate`` and ``Compute``, and
    vectors of an ``Embed`` with sources, are committed to the journal before a flow sees them, and
    read from it when they are there; equal ``Generate`` requests that are open at the same time are
    asked once. So are those of several runs and processes that share a journal: what one of them
    is asking for is not asked by the others, who take its answer when it is there. ``Compute`` is
    never passed to ``answer``. A run that ends early calls ``on_interrupt`` before it waits for the
    calls in flight, so that those which wait for something can end.

    Raises:
        InvalidParameterError: ``max_in_flight`` is below 1.
        JournalError: an answer could not be written or read; nothing more is asked.
        Exception: whatever a flow raises; the other flows are closed first.
    """
    merged = MergedFlows(flows, max_in_flight)
    run_journal = RunJournal(journal)
    outcome = partial(_outcome, answer, run_journal)
    try:
        if max_in_flight == 1:
            while (opened := merged.next_call()) is not None:
                merged.settle(opened, outcome(opened.request))
        else:
            _run_threaded(merged, outcome, on_interrupt)
    finally:
        run_journal.close()
        merged.close()
    return merged.results()


def _run_threaded(
    merged: MergedFlows[T],
    outcome: Callable[[Request], CallResult],
    on_interrupt: Callable[[], None] | None,
) -> None:
    with ThreadPoolExecutor(max_workers=merged.max_in_flight) as pool:
        pending: dict[Future[CallResult], Call] = {}
        try:
            while True:
                while len(pending) < merged.max_in_flight and (opened := merged.next_call()):
                    context = copy_context()
                    pending[pool.submit(context.run, outcome, opened.request)] = opened
                if not pending:
                    return
                for done in wait(pending, return_when=FIRST_COMPLETED).done:
                    merged.settle(pending.pop(done), done.result())
        finally:
            if on_interrupt is not None and pending:
                on_interrupt()
            pool.shutdown(wait=True, cancel_futures=True)


async def arun_all(
    flows: Sequence[Flow[T]],
    answer: AsyncAnswer,
    *,
    max_in_flight: int = 1,
    journal: Journal | None = None,
) -> list[T]:
    """Drive flows to their results, in the order given, from an event loop.

    Flows advance in a worker thread under a copy of the caller's context, so that their own work
    (a search, a clustering) never blocks the loop. On cancellation the calls in flight are
    cancelled and every flow is closed before this returns. Otherwise as ``run_all``.
    """
    merged = MergedFlows(flows, max_in_flight)
    run_journal = RunJournal(journal)
    pending: dict[asyncio.Task[CallResult], Call] = {}
    with own_threads(max_in_flight):
        try:
            while True:
                while len(pending) < max_in_flight:
                    opened = await shielded(merged.next_call)
                    if opened is None:
                        break
                    task = asyncio.create_task(_aoutcome(answer, run_journal, opened.request))
                    pending[task] = opened
                if not pending:
                    return merged.results()
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for finished in done:
                    merged.settle(pending.pop(finished), finished.result())
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            await shielded(run_journal.close)
            merged.close()


def _outcome(answer: Answer, run_journal: RunJournal, request: Request) -> CallResult:
    try:
        recalled = run_journal.recall(request)
        if recalled is None:
            time.sleep(_PAUSE)
            return CLAIMED_BY_OTHER_RUN
        with run_journal.holding(recalled):
            asked = recalled.asked
            if asked is None:
                return recalled.finish(None)
            return recalled.finish(asked.work() if isinstance(asked, Compute) else answer(asked))
    except JournalError:
        # Calls made after it would be paid for and lost.
        raise
    except Exception as error:  # noqa: BLE001 - an outcome is a value or an exception
        return error


async def _aoutcome(answer: AsyncAnswer, run_journal: RunJournal, request: Request) -> CallResult:
    try:
        if isinstance(request, Compute):
            return await asyncio.to_thread(_outcome, _refuse, run_journal, request)
        if not run_journal.keeps(request):
            return await answer(request)
        recalled = await shielded(partial(run_journal.recall, request))
        if recalled is None:
            await asyncio.sleep(_PAUSE)
            return CLAIMED_BY_OTHER_RUN
        with run_journal.holding(recalled):
            value = None if recalled.asked is None else await answer(recalled.asked)
            # What was paid for is written even when the build is cancelled meanwhile.
            return await shielded(partial(recalled.finish, value))
    except JournalError:
        # Calls made after it would be paid for and lost.
        raise
    except Exception as error:  # noqa: BLE001 - an outcome is a value or an exception
        return error


def _refuse(request: Request) -> Any:
    raise NotImplementedError(type(request).__name__)
