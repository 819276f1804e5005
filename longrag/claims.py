"""Claims on model calls, so that processes which share a journal do not make one call twice.

A claim is a row of the journal. It is valid as long as the process that made it runs, was not
stopped by a signal, and has the journal open. A journal in PostgreSQL can tell of every machine
whether it is open. Where nothing of this can be checked, for instance of a file from another
container, a claim is valid for ``CLAIM_SECONDS``. A claim that is not valid any more is taken over.
So a call may be made twice in the worst case, but no process waits for ever.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Protocol

CLAIM_SECONDS: Final = 300.0
"""Seconds a claim is valid where it cannot be checked that the process that made it still runs."""

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS longrag_claim (key {bytes} PRIMARY KEY, token TEXT, host TEXT,"
    " pid INTEGER, started TEXT, until DOUBLE PRECISION){options}"
)

# What /proc calls a process that a signal or a debugger has stopped.
_STOPPED: Final = ("T", "t")

# Tokens of the journals that are open in this process.
_here: set[str] = set()


class Rows(Protocol):
    """What runs SQL with question marks for its values, as a connection of ``sqlite3`` does."""

    def execute(self, statement: str, values: Sequence[Any] = ..., /) -> Any:
        """Run a statement, and return its result."""

    def executemany(self, statement: str, rows: Sequence[Sequence[Any]], /) -> Any:
        """Run a statement once for each row of values."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """One open journal of one process, which makes claims."""

    token: str = field(default_factory=lambda: token_hex(8))

    def __post_init__(self) -> None:
        _here.add(self.token)

    def claim(
        self,
        rows: Rows,
        keys: Sequence[bytes],
        *,
        now: float,
        lives: Callable[[Sequence[object]], bool],
    ) -> bool:
        """Claim all keys, or none if another claimant has one; needs an open write transaction.

        Args:
            rows: the tables of the journal.
            keys: the keys.
            now: the time in seconds, by the clock that all users of the journal share.
            lives: tells whether the claimant of a row has its journal open.
        """
        for key in keys:
            row = rows.execute(
                "SELECT token, host, pid, started, until FROM longrag_claim WHERE key = ?", (key,)
            ).fetchone()
            if row is not None and _is_due(row[4], now) and lives(row):
                return False
        pid = os.getpid()
        owner = (self.token, platform.node(), pid, _read_process(pid)[1], now + CLAIM_SECONDS)
        rows.executemany("DELETE FROM longrag_claim WHERE key = ?", [(key,) for key in keys])
        rows.executemany(
            "INSERT INTO longrag_claim (key, token, host, pid, started, until)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [(key, *owner) for key in keys],
        )
        return True

    def release(self, rows: Rows, keys: Sequence[bytes]) -> None:
        """Give up claims on some keys; those of other claimants stay."""
        rows.executemany(
            "DELETE FROM longrag_claim WHERE key = ? AND token = ?",
            [(key, self.token) for key in keys],
        )

    def leave(self, rows: Rows) -> None:
        """Give up all claims of this claimant."""
        rows.execute("DELETE FROM longrag_claim WHERE token = ?", (self.token,))

    def forget(self) -> None:
        """Let other claimants of this process take over the claims that could not be given up."""
        _here.discard(self.token)


def read_clock() -> float:
    """Return the time of this machine in seconds."""
    return time.time()


def _is_due(until: object, now: float) -> bool:
    # An end that is further away than any claim lasts means that the clock was set back since.
    return isinstance(until, float) and 0 < until - now <= CLAIM_SECONDS


def is_running(claim: Sequence[object]) -> bool:
    """Whether the process of a claim has its journal open; True where that cannot be checked."""
    token, host, pid, started = claim[:4]
    if not isinstance(pid, int) or host != platform.node():
        return True
    if pid == os.getpid():
        return token in _here
    return _runs(pid, started) and not is_stopped(claim)


def is_stopped(claim: Sequence[object]) -> bool:
    """Whether a signal has stopped the process of a claim; False where that cannot be checked."""
    _, host, pid, started = claim[:4]
    if not isinstance(pid, int) or host != platform.node():
        return False
    state, start = _read_process(pid)
    return state in _STOPPED and start == started


def _runs(pid: int, started: object) -> bool:
    """Whether a process of this machine still runs; True where that cannot be checked."""
    # On Windows signal 0 would end a process.
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    # Another process may have been given the same number since.
    return _read_process(pid)[1] == started


def _read_process(pid: int) -> tuple[str, str]:
    """Return the state of a process and when it was started; "" if unknown or if it has ended."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    # The name of the program, in parentheses, may hold spaces.
    fields = line.rpartition(")")[2].split()
    return ("", "") if fields[0] == "Z" else (fields[0], fields[19])
