"""Claims on model calls, so that processes which share a journal do not make one call twice.

A claim is a row of the journal's file. It is valid as long as the process that made it runs and
has the journal open. Where that cannot be checked, for instance from another container, it is valid
for ``CLAIM_SECONDS``. A claim that is not valid any more is taken over. So a call may be made twice
in the worst case, but no process waits for ever.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Final

CLAIM_SECONDS: Final = 300.0
"""Seconds a claim is valid where it cannot be checked that the process that made it still runs."""

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS claims (key BLOB PRIMARY KEY, token TEXT, host TEXT, pid INTEGER,"
    " started TEXT, until REAL) WITHOUT ROWID"
)

# Tokens of the journals that are open in this process.
_here: set[str] = set()


@dataclass(frozen=True, slots=True)
class Claimant:
    """One open journal of one process, which makes claims."""

    token: str = field(default_factory=lambda: token_hex(8))

    def __post_init__(self) -> None:
        _here.add(self.token)

    def claim(self, connection: sqlite3.Connection, keys: Sequence[bytes]) -> bool:
        """Claim all keys, or none if another claimant has one; needs an open write transaction."""
        now, pid = time.time(), os.getpid()
        for key in keys:
            row = connection.execute(
                "SELECT token, host, pid, started, until FROM claims WHERE key = ?", (key,)
            ).fetchone()
            if row is not None and _holds(row, now):
                return False
        owner = (self.token, platform.node(), pid, _read_start(pid), now + CLAIM_SECONDS)
        connection.executemany(
            "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?)",
            [(key, *owner) for key in keys],
        )
        return True

    def release(self, connection: sqlite3.Connection, keys: Sequence[bytes]) -> None:
        """Give up claims on some keys; those of other claimants stay."""
        connection.executemany(
            "DELETE FROM claims WHERE key = ? AND token = ?", [(key, self.token) for key in keys]
        )

    def leave(self, connection: sqlite3.Connection) -> None:
        """Give up all claims of this claimant."""
        connection.execute("DELETE FROM claims WHERE token = ?", (self.token,))

    def forget(self) -> None:
        """Let other claimants of this process take over the claims that could not be given up."""
        _here.discard(self.token)


def _holds(row: Sequence[object], now: float) -> bool:
    """Whether a claim is valid, so that nobody else may make its call."""
    token, host, pid, started, until = row
    # An end that is further away than any claim lasts means that the clock was set back since.
    if not isinstance(until, float) or not 0 < until - now <= CLAIM_SECONDS:
        return False
    if not isinstance(pid, int) or host != platform.node():
        return True
    if pid == os.getpid():
        return token in _here
    return _runs(pid, started)


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
    return _read_start(pid) == started


def _read_start(pid: int) -> str:
    """Return when a process was started, as text; "" if unknown or if it has ended."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The name of the program, in parentheses, may hold spaces.
    fields = line.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]
