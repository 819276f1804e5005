"""From the texts of a cluster to one summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from longrag.calls import Flow


@dataclass(frozen=True, slots=True)
class Passage:
    """One text of a cluster, with the title of its document where that is known."""

    text: str
    title: str = ""


class Summarizer(Protocol):
    """Writes the summary of one cluster."""

    def __call__(self, passages: Sequence[Passage], *, sources: tuple[str, ...]) -> Flow[str]:
        """Return a summary; ``sources`` are passed on to every request that is made for it."""
