"""Processes that hold what a test makes in them, fork when they are told, and end in every way.

``python -m tests.faults.workers ADDRESS`` imports the packages once and forks a process for each
worker, before anything is opened. A worker calls the functions that it is sent, each with the
worker's own dictionary, which a fork of it inherits. A fork is a worker like any other.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
"""Seconds after which a worker that says nothing is given up: it decides nothing else."""

_FORK, _EXIT = "fork", "exit"


class Failed(Exception):
    """What a worker was told to do raised an error; the message begins with the error's class."""


class Worker:
    """A process that does what it is told."""

    def __init__(self, crew: Crew, connection: Connection, pid: int) -> None:
        self._crew = crew
        self._connection = connection
        self.pid = pid

    def do(self, function: Callable[..., Any], *given: Any) -> Any:
        """Let the worker call a function with its dictionary, and return the result."""
        self.begin(function, *given)
        return self.result()

    def begin(self, function: Callable[..., Any], *given: Any) -> None:
        self._connection.send((function, given))

    def result(self, patience: float = PATIENCE) -> Any:
        assert self._connection.poll(patience), f"worker {self.pid} does not answer"
        failed, result = self._connection.recv()
        if failed:
            raise Failed(result)
        return result

    def fork(self, way: str = "os") -> Worker:
        """Fork the worker by ``os.fork`` or by ``multiprocessing``; return the child."""
        self.begin(_FORK, way)
        child = self._crew.meet()
        self.result()
        return child

    def end(self, way: str) -> None:
        """End it: "exit" as an interpreter ends, "_exit" without any of that, or "kill"."""
        if way == "kill":
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        else:
            with suppress(BrokenPipeError):
                self.begin(_EXIT, way)
        self.wait()
        self._connection.close()
        self._crew.workers.remove(self)

    def wait(self) -> None:
        """Wait until the process has ended."""
        given_up = time.monotonic() + PATIENCE
        while runs(self.pid):
            assert time.monotonic() < given_up, f"worker {self.pid} does not end"
            time.sleep(0.002)


class Crew:
    """The workers of a test, or of all tests of a module."""

    def __init__(self) -> None:
        # A socket's path has at most 108 characters, which those of pytest's folders may exceed.
        self._folder = tempfile.TemporaryDirectory()
        self._listener = Listener(str(Path(self._folder.name) / "s"), family="AF_UNIX", backlog=64)
        self._listener._listener._socket.settimeout(PATIENCE)
        self.workers: list[Worker] = []
        self._first = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.workers", self._listener.address], cwd=ROOT
        )
        self._template = self.meet()
        self.workers.clear()

    def start(self) -> Worker:
        """Start a worker that holds nothing."""
        return self._template.fork()

    def meet(self) -> Worker:
        connection = self._listener.accept()
        worker = Worker(self, connection, connection.recv())
        self.workers.append(worker)
        return worker

    def dismiss(self) -> None:
        """End all workers at once, those that are stopped too."""
        for worker in list(self.workers):
            worker.end("kill")

    def close(self) -> None:
        self.dismiss()
        self._template._connection.close()
        self._first.wait()
        self._listener.close()
        self._folder.cleanup()


def runs(pid: int) -> bool:
    """Whether a process runs: one that has ended and was not waited for does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    # The name of the program, in parentheses, may hold spaces.
    return status.rpartition(")")[2].split()[0] != "Z"


def keep(held: dict[str, Any], name: str, make: Callable[..., Any], *given: Any) -> None:
    """Make something that the worker keeps under a name."""
    held[name] = make(*given)


def call(held: dict[str, Any], name: str, method: str, *given: Any) -> Any:
    """Call a method of what the worker keeps."""
    return getattr(held[name], method)(*given)


def forget(held: dict[str, Any], name: str) -> None:
    """Let go of what the worker keeps, as a program does that needs it no longer."""
    del held[name]
    gc.collect()


def serve(address: str, connection: Connection | None = None, held: Any = None) -> None:
    """Do what one is told until the other end of the connection is closed."""
    if connection is not None:
        connection.close()
    connection = Client(address, family="AF_UNIX")
    connection.send(os.getpid())
    held = {} if held is None else held
    while True:
        try:
            function, given = connection.recv()
        except EOFError:
            return
        if function == _EXIT:
            if given == ("_exit",):
                os._exit(0)
            return
        try:
            if function == _FORK:
                result = None
                if not _fork(*given, (address, connection, held)):
                    connection.close()
                    connection = Client(address, family="AF_UNIX")
                    connection.send(os.getpid())
                    continue
            else:
                result = function(held, *given)
        except Exception as error:  # noqa: BLE001 - the test is told of every error
            said = "".join(traceback.format_exception(error))
            connection.send((True, f"{type(error).__name__}: {error}\n{said}"))
        else:
            connection.send((False, result))


def _fork(way: str, inherited: tuple[Any, ...]) -> int:
    """Fork; return the child's number in the parent, and 0 in a child that is to go on here."""
    if way == "os":
        return os.fork()
    process = multiprocessing.get_context("fork").Process(target=serve, args=inherited)
    process.start()
    return process.pid or 0


def main(address: str) -> None:
    """Import what workers need, and be the worker that all others are forked from."""
    for name in _used_modules():
        with suppress(ImportError):
            importlib.import_module(name)
    # A collection in a fork would copy every page of what was imported.
    gc.collect()
    gc.freeze()
    # Children that end are not waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    serve(address)


def _used_modules() -> list[str]:
    """Return what is imported while indexes are used, of which this process must open none."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_use_indexes)


def _use_indexes() -> list[str]:
    from tests.faults.indexes import EVERY_KIND, opened

    with tempfile.TemporaryDirectory() as folder:
        for framework, kind in EVERY_KIND:
            index = opened(framework, kind, Path(folder) / "index.db", name=f"{framework} {kind}")
            index.put({"page": 0})
            index.pages()
    with suppress(ImportError):
        importlib.import_module("sqlalchemy.dialects.postgresql.psycopg")
        importlib.import_module("psycopg")
    return list(sys.modules)


if __name__ == "__main__":
    main(sys.argv[1])
