"""What answers a tree's requests: LlamaIndex's models, within limits, and a journal."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms.llm import LLM
from llama_index.core.settings import Settings

from llama_index_longrag.bridge.stores import embed
from llama_index_longrag.bridge.summaries import embed_identity, generate, llm_identity, progress
from llama_index_longrag.indices.raptor_settings import TreeSettings
from longrag.calls import CallLimit, Embed, Flow, Generate, Request, Steps, aperform, perform
from longrag.calls import arun as arun_flow
from longrag.calls import run as run_flow
from longrag.errors import InvalidParameterError
from longrag.ingestion.chunking import check_size
from longrag.journal import Journal

T = TypeVar("T")


class TreeModels:
    """Drives the flows of a tree.

    A journal given by its path is open while a flow runs, and a limit on calls is that of one flow.

    Raises:
        InvalidParameterError: a setting is out of range.
    """

    def __init__(
        self,
        plan: TreeSettings,
        *,
        llm: LLM | None,
        embed_model: BaseEmbedding,
        journal: str | os.PathLike[str] | Journal | None,
        num_workers: int,
        max_llm_calls: int | None,
        show_progress: bool,
    ) -> None:
        check_size("num_workers", num_workers)
        CallLimit(max_llm_calls)
        if not isinstance(journal, str | os.PathLike | Journal | None):
            raise InvalidParameterError("journal", journal, "a path, a Journal or None")
        self.llm = llm
        self._plan = plan
        self._embed_model = embed_model
        self._journal = journal
        self._num_workers = num_workers
        self._max_llm_calls = max_llm_calls
        self._shows = show_progress
        self._embedding = threading.Lock()

    def run(self, flow: Flow[T]) -> T:
        """Drive a flow by the models' sync calls, in as many threads as there are workers."""
        limit = CallLimit(self._max_llm_calls)

        def answer(request: Request) -> Any:
            if not isinstance(request, Embed):
                return perform(self._steps(request, limit, threads))
            # Local models cannot be called from several threads; remote ones take batches.
            with self._embedding:
                return perform(self._steps(request, limit, threads))

        with self._opened() as journal, progress(self._shows), self._threads() as threads:
            return run_flow(flow, answer, max_in_flight=self._num_workers, journal=journal)

    async def arun(self, flow: Flow[T]) -> T:
        """Drive a flow by the models' async calls, as many at a time as there are workers."""
        limit = CallLimit(self._max_llm_calls)
        opened = await asyncio.to_thread(self._opened)
        with opened as journal, progress(self._shows), self._threads() as threads:
            return await arun_flow(
                flow,
                lambda request: aperform(self._steps(request, limit, threads)),
                max_in_flight=self._num_workers,
                journal=journal,
            )

    def forget(self, sources: Sequence[str]) -> None:
        """Purge what a journal keeps of these sources."""
        # It is known by its source, whatever its models: none need be there.
        with self._opened(model="", embed_model="") as journal:
            if journal is not None:
                journal.purge(*dict.fromkeys(sources))

    def _opened(self, **names: str) -> AbstractContextManager[Journal | None]:
        if self._journal is None or isinstance(self._journal, Journal):
            return nullcontext(self._journal)
        named = names or self._names()
        return Journal(self._journal, model=named["model"], embed_model=named["embed_model"])

    def _names(self) -> dict[str, str]:
        llm = self._asked() if self._plan.asks_llm else self.llm
        return {
            "model": "" if llm is None else llm_identity(llm, self._plan.template),
            "embed_model": embed_identity(self._embed_model),
        }

    def _asked(self) -> LLM:
        if self.llm is None and self._journal is not None and not self._plan.asks_llm:
            raise InvalidParameterError(
                "llm", None, "given, since the summarizer asks it and the journal is to know which"
            )
        if self.llm is not None:
            return self.llm
        try:
            return Settings.llm
        except (ImportError, ValueError) as error:
            # The framework's default model is not installed, or has no key.
            raise InvalidParameterError(
                "llm",
                None,
                "given, or set in Settings.llm",
                'Or pass summarizer="extractive", which asks no language model.',
            ) from error

    @contextmanager
    def _threads(self) -> Iterator[Executor]:
        """Give threads to call a model in; the event loop's own may be fewer than the workers."""
        threads = ThreadPoolExecutor(self._num_workers)
        try:
            yield threads
        finally:
            # What was cancelled is not waited for.
            threads.shutdown(wait=False, cancel_futures=True)

    def _steps(self, request: Request, limit: CallLimit, threads: Executor) -> Steps[Any]:
        match request:
            case Embed():
                if self._plan.asks_llm:
                    # Without a language model nothing is to be paid for.
                    self._asked()
                return (yield from embed(self._embed_model, request))
            case Generate():
                llm = self._asked()
                limit.spend()
                return (yield from generate(llm, self._plan.template, request, threads))
            case _:
                raise NotImplementedError(type(request).__name__)
