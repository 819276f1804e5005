"""Progress of long work on a terminal: one line that is written over, with the time left."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, TextIO

from longrag.index_file.progress import Progress

_WIDTH: Final = 24
_SECONDS_BETWEEN: Final = 0.1
_ERASE: Final = "\r\x1b[K"


@dataclass(slots=True)
class _Step:
    label: str
    total: int | None
    work: int | None
    started: float
    done: int = 0
    worked: int = 0

    def line(self) -> str:
        seconds = time.monotonic() - self.started
        if not self.total:
            done = f" {self.done:,}" if self.done else ""
            return f"{self.label}{done}  {_clock(seconds)}"
        share = min(self.worked / self.work if self.work else self.done / self.total, 1)
        bar = "#" * round(share * _WIDTH)
        left = f"  {_clock(seconds / share - seconds)} left" if share else ""
        return (
            f"{self.label}  [{bar:.<{_WIDTH}}] {self.done:,} of {self.total:,}  {share:.0%}{left}"
        )


class TerminalProgress(Progress):
    """Draws the innermost step of the work; steps may lie within others.

    Args:
        stream: the terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._steps: list[_Step] = []
        self._drawn = 0.0

    def start(self, label: str, total: int | None = None, work: int | None = None) -> None:
        """Begin a step, and draw it."""
        self._steps.append(_Step(label, total, work, time.monotonic()))
        self._draw()

    def advance(self, parts: int = 1, work: int = 0) -> None:
        """Draw the step, though not more often than can be read."""
        if self._steps:
            self._steps[-1].done += parts
            self._steps[-1].worked += work
        if time.monotonic() - self._drawn >= _SECONDS_BETWEEN:
            self._draw()

    def finish(self) -> None:
        """Erase the step, and draw the one around it."""
        self._steps.pop()
        self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        self._stream.write(_ERASE + (self._steps[-1].line() if self._steps else ""))
        self._stream.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
