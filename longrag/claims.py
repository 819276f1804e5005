"""Claims on model calls, so that processes which share a journal do not make one call twice.

A claim is a row of the journal's file. It holds for as long as the process that made it runs and
its journal is open, and for ``CLAIM_SECONDS`` where that cannot be seen, as from another container.
A claim that no longer holds is taken over: in doubt a call is made twice, and no wait is endless.
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
"""How long a claim holds where it cannot be seen whether the process that made it still runs."""

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS claims (key BLOB PRIMARY KEY, token TEXT, host TEXT, pid INTEGER,"
    " started TEXT, until REAL) WITHOUT ROWID"
)

# The claimants of this process.
_here: set[str] = set()


@dataclass(frozen=True, slots=True)
class Claimant:
    """One open journal of one process, which makes claims."""

    token: str = field(default_factory=lambda: token_hex(8))

    def __post_init__(self) -> None:
        _here.add(self.token)

    def claim(self, connection: sqlite3.Connection, keys: Sequence[bytes]) -> bool:
        """Claim all keys inside a transaction that is open for writing, or none of them."""
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
        """Give up every claim."""
        connection.execute("DELETE FROM claims WHERE token = ?", (self.token,))

    def forget(self) -> None:
        """Mark the claims that are left as abandoned."""
        _here.discard(self.token)


def _holds(row: Sequence[object], now: float) -> bool:
    """Whether a claim still keeps others from making its call."""
    token, host, pid, started, until = row
    # A claim that ends later than any can was made before the clock was set back.
    if not isinstance(until, float) or not 0 < until - now <= CLAIM_SECONDS:
        return False
    if not isinstance(pid, int) or host != platform.node():
        return True
    if pid == os.getpid():
        return token in _here
    return _runs(pid, started)


def _runs(pid: int, started: object) -> bool:
    """Whether a process of this machine is still there, as far as can be seen."""
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
