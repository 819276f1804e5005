"""The progress bar over the summaries of a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from llama_index.core.utils import get_tqdm_iterable

from longrag.calls import Flow
from longrag.indexing.tree.summaries import Passage, Summarizer, summarize


class _ProgressBar:
    """The framework's progress bar; its total grows layer by layer, as clusters become known."""

    def __init__(self) -> None:
        self.shown: Any = get_tqdm_iterable([], True, "Summarizing clusters")
        self._ended = 0

    def start(self) -> None:
        self.shown.total += 1
        self.shown.refresh()

    def end(self) -> None:
        # A summary that took a call was counted when the call was answered.
        self._ended += 1
        self.shown.update(max(self._ended - self.shown.n, 0))


_BAR: ContextVar[_ProgressBar | None] = ContextVar("longrag_summaries", default=None)


@contextmanager
def show_progress(show: bool) -> Iterator[None]:
    """Count on a progress bar the summaries that are made within the context."""
    bar = _ProgressBar() if show else None
    token = _BAR.set(bar)
    try:
        yield
    finally:
        _BAR.reset(token)
        if bar is not None:
            bar.shown.close()


def count_call() -> None:
    """Count one summary that a language model wrote."""
    bar = _BAR.get()
    if bar is not None:
        bar.shown.update()


class CountedSummarizer:
    """Another summarizer, whose summaries ``show_progress`` counts."""

    def __init__(self, summarizer: Summarizer) -> None:
        self._summarizer = summarizer
        self.summary_tokens = int(getattr(summarizer, "summary_tokens", 100))

    def __call__(self, passages: Sequence[Passage], *, sources: tuple[str, ...]) -> Flow[str]:
        """Return the other summarizer's summary."""
        bar = _BAR.get()
        if bar is not None:
            bar.start()
        summary = yield from summarize(self._summarizer, passages, sources=sources)
        if bar is not None:
            bar.end()
        return summary
