"""Locks of objects that are sent to other processes: a copy has a lock that nobody holds."""

from __future__ import annotations

import threading
from types import TracebackType


class Lock:
    """A lock that is pickled, and copied, as one that nobody holds.

    Args:
        reentrant: whether the thread that holds it may take it once more.
    """

    def __init__(self, *, reentrant: bool = False) -> None:
        self._reentrant = reentrant
        self._lock = threading.RLock() if reentrant else threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    def __getstate__(self) -> bool:
        """Return what a copy is made from."""
        return self._reentrant

    def __setstate__(self, reentrant: bool) -> None:
        """Make the copy."""
        Lock.__init__(self, reentrant=reentrant)
