"""Runs a tree's flows: LlamaIndex's models, a limit on their calls, a journal, a progress bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms.llm import LLM
from llama_index.core.settings import Settings

from llama_index_longrag.bridge.answering import embed
from llama_index_longrag.indices.raptor_settings import TreeSettings
from llama_index_longrag.indices.summarizing import write_summary
from llama_index_longrag.indices.summary_progress import show_progress
from llama_index_longrag.models.identity import embed_identity, llm_identity
from longrag.calls import CallLimit, Embed, Flow, Generate
from longrag.errors import InvalidParameterError
from longrag.ingestion.chunking import check_size
from longrag.integration.answering import Answerer, Calls
from longrag.integration.journals import (
    JournalLike,
    aopen_journal,
    check_journal,
    open_journal,
    purge_journal,
)
from longrag.journal import Journal
from longrag.locks import Lock

T = TypeVar("T")


class TreeRunner:
    """Runs the flows of a tree.

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
        journal: JournalLike,
        num_workers: int,
        max_llm_calls: int | None,
        show_progress: bool,
    ) -> None:
        check_size("num_workers", num_workers)
        CallLimit(max_llm_calls)
        check_journal(journal)
        self.llm = llm
        self._plan = plan
        self._embed_model = embed_model
        self._journal = journal
        self._num_workers = num_workers
        self._max_llm_calls = max_llm_calls
        self._show_progress = show_progress
        self._embedding = Lock()

    def run(self, flow: Flow[T]) -> T:
        """Drive a flow by the models' sync calls, in as many threads as there are workers."""
        with (
            open_journal(self._journal, self._names) as journal,
            show_progress(self._show_progress),
        ):
            return self._answerer(journal).run(flow)

    async def arun(self, flow: Flow[T]) -> T:
        """Drive a flow by the models' async calls, as many at a time as there are workers."""
        async with aopen_journal(self._journal, self._names) as journal:
            with show_progress(self._show_progress):
                return await self._answerer(journal).arun(flow)

    def purge(self, sources: Sequence[str]) -> None:
        """Remove from the journal what was made from these sources."""
        purge_journal(self._journal, sources)

    def _answerer(self, journal: Journal | None) -> Answerer:
        return Answerer(
            {Embed: self._embed, Generate: self._generate},
            max_in_flight=self._num_workers,
            limit=CallLimit(self._max_llm_calls),
            journal=journal,
            # Local models cannot be called from several threads; remote ones take batches.
            locks={Embed: self._embedding},
        )

    def _embed(self, request: Embed) -> Calls[Any]:
        if self._plan.asks_llm:
            # Without a language model nothing is to be paid for.
            self._resolve_llm()
        return embed(self._embed_model, request)

    def _generate(self, request: Generate) -> Calls[str]:
        return write_summary(self._resolve_llm(), self._plan.template, request)

    def _names(self) -> dict[str, str]:
        llm = self._resolve_llm() if self._plan.asks_llm else self.llm
        return {
            "model": "" if llm is None else llm_identity(llm, self._plan.template),
            "embed_model": embed_identity(self._embed_model),
        }

    def _resolve_llm(self) -> LLM:
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
