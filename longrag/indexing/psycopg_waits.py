"""Waits of psycopg that come to an end where the network swallows what is sent.

Without them a wait ends only when the operating system learns that the other side is gone, which a
proxy that accepts everything never tells.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg

Value = TypeVar("Value")

# Time for the server to say itself what was waited for.
_GRACE = 0.5

_SILENCE = threading.local()


@contextmanager
def counting() -> Iterator[None]:
    """Count all waits of this thread in which nothing is heard as one, until something is."""
    _SILENCE.seconds = 0.0
    try:
        yield
    finally:
        del _SILENCE.seconds


def connect(
    timeout: float, dialect: object, record: object, args: Any, settings: dict[str, Any]
) -> psycopg.Connection[Any]:
    """Connect to a server, for SQLAlchemy's event ``do_connect``.

    Args:
        timeout: seconds in which something must be heard of the server.
        dialect: not used.
        record: not used.
        args: the positional arguments of ``psycopg.connect``.
        settings: its keyword arguments.
    """
    left = timeout - getattr(_SILENCE, "seconds", 0.0)
    if left <= 0:
        raise psycopg.errors.ConnectionTimeout("connection timeout expired")
    seconds = min(int(settings.get("connect_timeout", math.ceil(timeout))), math.ceil(left))
    connection = _Connection.connect(*args, **{**settings, "connect_timeout": seconds})
    connection.timeout = timeout
    return connection


class _Connection(psycopg.Connection[Any]):
    timeout: float = math.inf

    def wait(self, gen: Generator[Any, Any, Value], *args: Any, **settings: Any) -> Value:
        """Drive a generator of psycopg, which waits again and again for a tenth of a second."""
        return super().wait(self._until_silent(gen), *args, **settings)

    def _until_silent(self, gen: Generator[Any, Any, Value]) -> Generator[Any, Any, Value]:
        before = getattr(_SILENCE, "seconds", 0.0)
        heard = time.monotonic() - before
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    heard = time.monotonic()
                elif time.monotonic() - heard > self.timeout + _GRACE:
                    self.close()
                    raise psycopg.OperationalError("the server did not answer: timed out")
                wanted = gen.send(ready)
        except StopIteration as done:
            heard = time.monotonic()
            return done.value  # type: ignore[no-any-return]
        finally:
            if hasattr(_SILENCE, "seconds"):
                _SILENCE.seconds = time.monotonic() - heard
