"""Random histories of one index, told to workers one thing after another, and what they must see.

Everything that happens is one step, so that what each worker must see is known exactly: the pages
of every change that was acknowledged, unless a restore has discarded it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from tests.faults.indexes import opened
from tests.faults.restores import Way
from tests.faults.workers import Crew, Worker, call, forget, keep

INDEX = "index"
NAMES = [f"page{number}" for number in range(12)]
MOST_WORKERS = 4


class History:
    """One index, its workers, and the truth about it.

    Args:
        crew: starts the workers.
        kind: the framework, the kind of index, and "sync" or "async".
        place: the database.
        rng: draws what happens.
        way: backs the index up and restores it.
        settings: of the index.
    """

    def __init__(
        self,
        crew: Crew,
        kind: tuple[str, str, str],
        place: Any,
        rng: random.Random,
        *,
        way: Way | None = None,
        **settings: Any,
    ) -> None:
        self.crew = crew
        self.rng = rng
        self.way = way
        self.truth: dict[str, int] = {}
        self.version = 0
        self.steps: list[str] = []
        self.kind, self.place, self.settings = kind, place, settings
        self._joined: set[int] = set()
        self._kept: dict[str, int] = {}
        self.workers = [self.open()]

    def open(self) -> Worker:
        worker = self.crew.start()
        worker.do(keep, INDEX, make, self.kind, self.place, self.settings)
        return worker

    def run(self, steps: Mapping[Callable[[History], None], int], count: int) -> None:
        """Take random steps, each as often as its weight says, and look at all at the end."""
        chosen = self.rng.choices(list(steps), list(steps.values()), k=count)
        for step in chosen:
            self.steps.append(step.__name__)
            step(self)
        self.check()

    def check(self) -> None:
        """Let every worker and a process that opens the index now tell all of the index."""
        fresh = self.open()
        found = {self.look(worker) for worker in [*self.workers, fresh]}
        fresh.end("exit")
        assert len(found) == 1, self.told()

    def look(self, worker: Worker) -> str:
        """Let a worker ask for everything, and compare it with the truth."""
        pages, answer = worker.do(look)
        assert pages == self.truth, self.told(f"{worker.pid} saw {pages}")
        return answer

    def put(self, worker: Worker, names: list[str]) -> None:
        worker.do(call, INDEX, "put", self.next_pages(names))
        self.truth |= dict.fromkeys(names, self.version)

    def drop(self, worker: Worker, name: str) -> None:
        worker.do(call, INDEX, "drop", name)
        del self.truth[name]

    def next_pages(self, names: list[str]) -> dict[str, int]:
        self.version += 1
        return dict.fromkeys(names, self.version)

    def end(self, worker: Worker, way: str) -> None:
        # A process waits for its children of ``multiprocessing`` when its interpreter ends.
        worker.end("_exit" if way == "exit" and worker.pid in self._joined else way)
        self.workers.remove(worker)

    def fork(self, worker: Worker, way: str) -> Worker:
        if way == "multiprocessing":
            self._joined.add(worker.pid)
        child = worker.fork(way)
        self.workers.append(child)
        return child

    def back_up(self) -> None:
        if self.way is not None:
            self.way.back_up()
        self._kept = dict(self.truth)

    def restore(self) -> None:
        """Bring the last backup back, which discards every change since."""
        if self.way is not None:
            self.way.restore()
        self.truth = dict(self._kept)

    def told(self, what: str = "the workers differ") -> str:
        return f"{what}\ntruth: {self.truth}\nsteps: {' '.join(self.steps)}"


def make(kind: tuple[str, str, str], place: Any, settings: dict[str, Any]) -> Any:
    framework, index, manner = kind
    return opened(framework, index, place, manner, **settings)


def look(held: dict[str, Any]) -> tuple[dict[str, int], str]:
    index = held[INDEX]
    return index.pages(), repr(index.answer())


# Steps. Each is drawn by its weight and draws the rest.


def asks(history: History) -> None:
    history.look(history.rng.choice(history.workers))


def changes(history: History) -> None:
    rng = history.rng
    worker = rng.choice(history.workers)
    if history.truth and rng.random() < 0.3:
        history.drop(worker, rng.choice(sorted(history.truth)))
    else:
        history.put(worker, rng.sample(NAMES, rng.randint(1, 3)))


def change_together(history: History) -> None:
    """Several workers change different pages at the same time."""
    names = history.rng.sample(NAMES, len(NAMES))
    told = []
    for worker in history.workers:
        own = [names.pop(), names.pop()]
        pages = history.next_pages(own)
        worker.begin(call, INDEX, "put", pages)
        told.append((worker, pages))
    for worker, pages in told:
        worker.result()
        history.truth |= pages


def forks(history: History) -> None:
    if len(history.workers) >= MOST_WORKERS:
        return ends(history)
    way = history.rng.choice(("os", "os", "multiprocessing"))
    history.fork(history.rng.choice(history.workers), way)
    return None


def ends(history: History) -> None:
    if len(history.workers) > 1:
        worker = history.rng.choice(history.workers)
        history.end(worker, history.rng.choice(("exit", "_exit", "kill")))


def opens(history: History) -> None:
    if len(history.workers) < MOST_WORKERS:
        history.workers.append(history.open())


def opens_again(history: History) -> None:
    """A worker lets its index go, perhaps one that it has inherited, and opens it again."""
    worker = history.rng.choice(history.workers)
    worker.do(forget, INDEX)
    worker.do(keep, INDEX, make, history.kind, history.place, history.settings)


def visits(history: History) -> None:
    """Another process opens the index, perhaps changes it, and closes it."""
    visitor = history.open()
    history.look(visitor)
    if history.rng.random() < 0.7:
        history.put(visitor, [history.rng.choice(NAMES)])
    visitor.end(history.rng.choice(("exit", "exit", "kill")))


def backs_up(history: History) -> None:
    history.back_up()


def restores(history: History) -> None:
    history.restore()


FORKS = {
    asks: 4,
    changes: 6,
    change_together: 1,
    forks: 4,
    ends: 3,
    opens: 1,
    opens_again: 1,
    visits: 3,
}
RESTORES = {**FORKS, forks: 2, ends: 2, backs_up: 2, restores: 4}
