"""Calls to the outside as data, and the two drivers that answer them.

An algorithm that needs a model or a store is a generator, a *flow*: it yields a tuple of requests
and is sent the list of their outcomes in the same order, each a value or the exception that the
call raised. It never awaits, so the same flow serves sync and async callers and both frameworks;
what answers a request is handed to the driver.

``run`` and ``arun`` drive one flow, ``run_all`` and ``arun_all`` several at once: the calls of all
of them share one bound on calls in flight, and each flow goes on as soon as its own answers are in.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast

from longrag.errors import CallLimitError, InvalidParameterError, JournalError

if TYPE_CHECKING:
    from longrag.journal import Journal

T = TypeVar("T")

# The outcome of a call that another run on the same journal is making, and the seconds until the
# journal is read again.
_ELSEWHERE = object()
_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Generate:
    """Ask the language model; answered with its text.

    ``sources`` are the ids of the documents the prompt was made from: a journal purges the answer
    when one of them is deleted.
    """

    prompt: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Embed:
    """Embed texts in a role; answered with float32 vectors of shape (texts, width).

    ``sources``, when given, are the ids of the documents each text was made from: a journal then
    keeps the vectors, as it does answers.
    """

    texts: tuple[str, ...]
    role: Literal["query", "document"]
    sources: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Search:
    """Rank stored chunks against a query; answered with hits, best first.

    ``vector`` is the query's embedding when the flow has it. At most ``top_k`` hits, none of a unit
    in ``exclude``. A ``depth`` above 0 asks a store with an approximate ranking to search more of
    its rows. An answerer whose store cannot exclude, or cannot search deeper, raises
    ``NotImplementedError``.
    """

    query: str
    top_k: int
    vector: Sequence[float] | None = None
    exclude: tuple[str, ...] = ()
    depth: int = 0


@dataclass(frozen=True, slots=True)
class ListChunks:
    """List the stored chunks of units; answered with their chunks and whether these are all.

    An answerer whose store cannot list chunks raises ``NotImplementedError``.
    """

    unit_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HasOther:
    """Find out whether a store holds a chunk of any unit but these; answered with a bool.

    An answerer whose store cannot tell for certain raises ``NotImplementedError``.
    """

    unit_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Get whole units by id; answered with a mapping from id to unit, without those not found."""

    unit_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compute:
    """Do work in this process whose result must survive it; answered by the driver with a string.

    ``key`` names all that the result depends on: a journal that has it gives the result without
    the work; with an empty key the result is not stored. The work runs in the driver's threads, so
    that it never blocks an event loop.
    """

    key: str
    work: Callable[[], str]
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell what a flow is about to do; whether anybody answers makes no difference to the flow."""

    event: object


Request: TypeAlias = Generate | Embed | Search | ListChunks | HasOther | Fetch | Compute | Announce
Outcome: TypeAlias = Any
"""What a request came to: the value its class names, or the exception the call raised."""

Flow: TypeAlias = Generator[tuple[Request, ...], list[Outcome], T]
Answer: TypeAlias = Callable[[Request], Any]
AsyncAnswer: TypeAlias = Callable[[Request], Awaitable[Any]]


class CallLimit:
    """Counts calls and refuses those beyond ``max_calls``; None refuses none.

    An answerer spends one before each call it pays for; what a journal answers costs nothing.
    """

    def __init__(self, max_calls: int | None = None) -> None:
        if max_calls is not None and (
            isinstance(max_calls, bool) or not isinstance(max_calls, int) or max_calls < 0
        ):
            raise InvalidParameterError(
                "max_llm_calls", max_calls, "None or an integer of at least 0"
            )
        self._max_calls = max_calls
        self._lock = Lock()
        self.spent = 0

    def spend(self) -> None:
        """Count one call, or raise ``CallLimitError`` when the limit is reached."""
        with self._lock:
            if self.spent == self._max_calls:
                raise CallLimitError(
                    f"max_llm_calls={self._max_calls} is reached. A journal keeps what was paid"
                    " for: with one, run the build again with the same journal to go on."
                )
            self.spent += 1


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


def run(
    flow: Flow[T],
    answer: Answer,
    *,
    max_in_flight: int = 1,
    journal: Journal | None = None,
    on_interrupt: Callable[[], None] | None = None,
) -> T:
    """Drive one flow to its result; see ``run_all``."""
    (result,) = run_all(
        [flow],
        answer,
        max_in_flight=max_in_flight,
        journal=journal,
        on_interrupt=on_interrupt,
    )
    return result


async def arun(
    flow: Flow[T], answer: AsyncAnswer, *, max_in_flight: int = 1, journal: Journal | None = None
) -> T:
    """Drive one flow to its result; see ``arun_all``."""
    return (await arun_all([flow], answer, max_in_flight=max_in_flight, journal=journal))[0]


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
    merged = _MergedFlows(flows, max_in_flight)
    run_journal = _RunJournal(journal)
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
    merged: _MergedFlows[T],
    outcome: Callable[[Request], Outcome],
    on_interrupt: Callable[[], None] | None,
) -> None:
    with ThreadPoolExecutor(max_workers=merged.max_in_flight) as pool:
        pending: dict[Future[Outcome], _Call] = {}
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
    merged = _MergedFlows(flows, max_in_flight)
    run_journal = _RunJournal(journal)
    pending: dict[asyncio.Task[Outcome], _Call] = {}
    try:
        while True:
            while len(pending) < merged.max_in_flight:
                opened = await _in_thread(merged.next_call)
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
        await _in_thread(run_journal.close)
        merged.close()


async def _in_thread(step: Callable[[], T]) -> T:
    """Run a step in a thread; a cancellation waits for it, since a running flow cannot close."""
    running = asyncio.ensure_future(asyncio.to_thread(step))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def _outcome(answer: Answer, run_journal: _RunJournal, request: Request) -> Outcome:
    try:
        recalled = run_journal.recall(request)
        if recalled is None:
            time.sleep(_PAUSE)
            return _ELSEWHERE
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


async def _aoutcome(answer: AsyncAnswer, run_journal: _RunJournal, request: Request) -> Outcome:
    try:
        if isinstance(request, Compute):
            return await asyncio.to_thread(_outcome, _refuse, run_journal, request)
        if not run_journal.keeps(request):
            return await answer(request)
        recalled = await _in_thread(partial(run_journal.recall, request))
        if recalled is None:
            await asyncio.sleep(_PAUSE)
            return _ELSEWHERE
        with run_journal.holding(recalled):
            value = None if recalled.asked is None else await answer(recalled.asked)
            # What was paid for is written even when the build is cancelled meanwhile.
            return await _in_thread(partial(recalled.finish, value))
    except JournalError:
        # Calls made after it would be paid for and lost.
        raise
    except Exception as error:  # noqa: BLE001 - an outcome is a value or an exception
        return error


def _refuse(request: Request) -> Any:
    raise NotImplementedError(type(request).__name__)


@dataclass(frozen=True, slots=True)
class _Recall:
    """The part of a request still to be asked, and how its outcome is made from the answer.

    ``keys`` are the claims on the calls that are still to be made.
    """

    asked: Request | None
    finish: Callable[[Any], Outcome]
    keys: tuple[bytes, ...] = ()


class _RunJournal:
    """A run's journal, if any, and the claims that the run has made in it."""

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._claimed: set[bytes] = set()

    def keeps(self, request: Request) -> bool:
        """Whether the journal is consulted before a request is answered."""
        match request:
            case _ if self._journal is None:
                return False
            case Embed(sources=sources):
                return bool(sources)
            case Compute(key=key):
                return bool(key)
            case _:
                return isinstance(request, Generate)

    def recall(self, request: Request) -> _Recall | None:
        """Look a request up and claim what is missing; None while another run asks for it."""
        journal = self._journal
        if journal is None or not self.keeps(request):
            return _Recall(request, _unchanged)
        recalled = _recall(request, journal)
        if not recalled.keys:
            return recalled
        if not journal.claim(recalled.keys):
            return None
        self._claimed.update(recalled.keys)
        # The run that claimed it may have ended since.
        again = _recall(request, journal)
        self.release(tuple(set(recalled.keys).difference(again.keys)))
        return again

    @contextmanager
    def holding(self, recalled: _Recall) -> Iterator[None]:
        """Release the claims of a request that failed; writing an answer releases its claim."""
        try:
            yield
        except BaseException:
            self.release(recalled.keys)
            raise
        self._claimed.difference_update(recalled.keys)

    def release(self, keys: tuple[bytes, ...]) -> None:
        """Release claims of this run."""
        held = self._claimed.intersection(keys)
        if held and self._journal is not None:
            # A claim that cannot be removed expires.
            with suppress(JournalError):
                self._journal.release(tuple(held))
            self._claimed.difference_update(held)

    def close(self) -> None:
        """Release the claims of calls that were interrupted."""
        self.release(tuple(self._claimed))


def _recall(request: Request, journal: Journal) -> _Recall:
    match request:
        case Generate(prompt=prompt):
            known = journal.get(prompt)
            return _Recall(
                request if known is None else None,
                lambda answer: (
                    journal.put(prompt, answer, sources=request.sources) if known is None else known
                ),
                (journal.answer_key(prompt),) if known is None else (),
            )
        case Compute(key=key):
            # Work that costs nothing is not waited for.
            result = journal.get(key)
            return _Recall(
                request if result is None else None,
                lambda made: (
                    journal.put(key, made, sources=request.sources) if result is None else result
                ),
            )
        case Embed():
            return _recall_vectors(request, journal)
        case _:
            return _Recall(request, _unchanged)


def _recall_vectors(request: Embed, journal: Journal) -> _Recall:
    known = journal.get_vectors(request.texts, role=request.role)
    missing = [index for index, vector in enumerate(known) if vector is None]
    texts = tuple(request.texts[index] for index in missing)
    sources = tuple(request.sources[index] for index in missing)

    def finish(answer: Any) -> Outcome:
        if missing:
            paid = journal.put_vectors(texts, answer, role=request.role, sources=sources)
            for index, vector in zip(missing, paid, strict=True):
                known[index] = vector
        return known

    asked = replace(request, texts=texts, sources=sources) if missing else None
    keys = dict.fromkeys(journal.vector_key(text, request.role) for text in texts)
    return _Recall(asked, finish, tuple(keys))


def _unchanged(answer: Any) -> Outcome:
    return answer


@dataclass(slots=True, eq=False)
class _Call:
    """One open request and the places (flow, slot) that wait for its outcome."""

    request: Request
    places: list[tuple[int, int]] = field(default_factory=list)


class _MergedFlows(Generic[T]):
    """Several flows as one queue of calls: which call to open next, and who gets its outcome."""

    def __init__(self, flows: Sequence[Flow[T]], max_in_flight: int) -> None:
        if max_in_flight < 1:
            raise InvalidParameterError("max_in_flight", max_in_flight, "at least 1")
        self.max_in_flight = max_in_flight
        self._flows = list(flows)
        self._results: dict[int, T] = {}
        self._ready: deque[tuple[int, list[Outcome] | None]] = deque(
            (index, None) for index in range(len(self._flows))
        )
        self._outcomes: dict[int, list[Outcome]] = {}
        self._missing: dict[int, int] = {}
        self._queue: deque[_Call] = deque()
        self._open: dict[Generate, _Call] = {}

    def next_call(self) -> _Call | None:
        """Advance the flows that can go on until there is a call to open; None when all wait."""
        while not self._queue and self._ready:
            self._advance(*self._ready.popleft())
        return self._queue.popleft() if self._queue else None

    def settle(self, call: _Call, outcome: Outcome) -> None:
        """Pass an outcome to the flows that wait for it; requeue a call that another run makes."""
        if outcome is _ELSEWHERE:
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

    def _advance(self, index: int, outcomes: list[Outcome] | None) -> None:
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
            call = _Call(request)
            self._queue.append(call)
            if isinstance(request, Generate):
                self._open[request] = call
        call.places.append(place)
