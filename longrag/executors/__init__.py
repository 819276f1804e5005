"""Work in parts, in this process or in a caller's executor, with the same result in the same order.

Any ``concurrent.futures.Executor`` will do: threads, processes, Dask's (``Client.get_executor()``),
or a cluster behind ``longrag.executors.ray``. Workers return values; only the calling
process writes journals, databases and files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

from longrag.errors import InvalidParameterError, LongragError, WorkerError

Item = TypeVar("Item")
Result = TypeVar("Result")

# Parts that are submitted before the first of them is taken, so that a corpus of any size is not
# held twice, and a cluster of some hundred cores is still kept busy.
_AHEAD = 256

# How often a part is tried. A worker may be killed for what another part did.
_TRIES = 3


def check_executor(executor: Executor | None) -> None:
    """Raise ``InvalidParameterError`` unless a value is None or can be submitted work."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise InvalidParameterError(
            "executor", executor, "a concurrent.futures.Executor or None", "See docs/scaling.md."
        )


def map_items(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    executor: Executor | None,
    *,
    part_size: int,
) -> Iterator[Result]:
    """Yield ``work(item)`` for each item, in order, ``part_size`` items a task; see ``map_parts``.

    Without an executor one item is done at a time, when it is taken.
    """
    if executor is None:
        yield from map(work, items)
        return
    parts = (items[first : first + part_size] for first in range(0, len(items), part_size))
    for results in map_parts(partial(_do_each, work), parts, executor):
        yield from results


def _do_each(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [work(item) for item in items]


def map_parts(
    work: Callable[[Item], Result], parts: Iterable[Item], executor: Executor | None
) -> Iterator[Result]:
    """Yield ``work(part)`` for each part, in order.

    A part that fails is tried again, three times in all; then its last error is raised. Errors that
    the package raises on purpose are not tried again, since they would be the same. When a process
    pool is broken by the death of a worker, what it leaves undone is done in another process, so
    that a part which cannot be done, for instance for want of memory, never ends this one.

    Args:
        work: does a part; it and the parts are pickled for other processes.
        parts: what is worked on; some hundred are read ahead.
        executor: where the work is done; None is here, one part after the other.

    Raises:
        WorkerError: the process that did a part died, each time.
        InvalidParameterError: the work cannot be sent to the executor's processes.
        Exception: whatever the work raises.
    """
    if executor is None:
        yield from map(work, parts)
        return
    waiting = iter(parts)
    runner = _Runner(work, executor)
    running: deque[tuple[Item, Future[Result] | None]] = deque()
    try:
        for part in islice(waiting, _AHEAD):
            running.append((part, runner.submit(part)))
        while running:
            part, future = running.popleft()
            yield runner.result(part, future)
            running.extend((next_, runner.submit(next_)) for next_ in islice(waiting, 1))
    finally:
        for _, future in running:
            if future is not None:
                future.cancel()
        runner.close()


class Started(Generic[Result]):
    """Work that was started in an executor; called, it gives the result. See ``map_parts``.

    Args:
        work: what is done; it is pickled for other processes.
        executor: where it is done.
    """

    def __init__(self, work: Callable[[], Result], executor: Executor) -> None:
        self._work = work
        self._runner: _Runner[Callable[[], Result], Result] = _Runner(_do, executor)
        self._future = self._runner.submit(work)

    def __call__(self) -> Result:
        """Wait for the result, trying again where that can help."""
        try:
            return self._runner.result(self._work, self._future)
        finally:
            self._runner.close()

    def cancel(self) -> None:
        """Do not do the work, if it was not begun."""
        if self._future is not None:
            self._future.cancel()


def _do(work: Callable[[], Result]) -> Result:
    return work()


class _Runner(Generic[Item, Result]):
    """Submits parts to an executor, and to a process started for it once the executor is broken."""

    def __init__(self, work: Callable[[Item], Result], executor: Executor) -> None:
        self._work = work
        self._executor = executor
        self._rescue: ProcessPoolExecutor | None = None

    def submit(self, part: Item) -> Future[Result] | None:
        """Submit a part; None where the executor is broken, which ``result`` then finds out."""
        try:
            return self._executor.submit(self._work, part)
        except BrokenProcessPool:
            return None

    def result(self, part: Item, future: Future[Result] | None) -> Result:
        """Return the result of a part, trying again where that can help."""
        broken: Exception | None = None
        for tries in range(1, _TRIES + 1):
            try:
                if future is None:
                    return self._do_in_other_process(part)
                return future.result()
            except LongragError:
                raise
            except BrokenProcessPool as error:
                broken, future = error, None
            except Exception as error:
                if _cannot_be_sent(error):
                    raise InvalidParameterError.because(
                        "The executor cannot send the work to a process: use functions of a"
                        f" module, or threads ({error})."
                    ) from error
                if tries == _TRIES:
                    raise
                future = self.submit(part)
        raise WorkerError(
            f"the process that did a part of the work died {_TRIES} times: {_TRIES} different"
            " processes could not do it. Is there enough memory? Smaller documents, or fewer"
            " workers, need less. Or its error output says what could not be loaded there."
        ) from broken

    def _do_in_other_process(self, part: Item) -> Result:
        if self._rescue is None:
            context = getattr(self._executor, "_mp_context", None)
            self._rescue = ProcessPoolExecutor(max_workers=1, mp_context=context)
        try:
            return self._rescue.submit(self._work, part).result()
        except BrokenProcessPool:
            self.close()
            raise

    def close(self) -> None:
        """End the process that was started."""
        if self._rescue is not None:
            self._rescue.shutdown()
            self._rescue = None


def _cannot_be_sent(error: Exception) -> bool:
    # Some are a PicklingError, others an AttributeError which says that it cannot be pickled.
    return "pickl" in f"{type(error).__name__} {error}".lower()
