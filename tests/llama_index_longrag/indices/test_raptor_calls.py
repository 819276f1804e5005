"""How a RaptorIndex calls its models: workers, async, rate limiter, callbacks and progress."""

from __future__ import annotations

import asyncio
import threading
from inspect import getattr_static
from typing import Any

import pytest
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.rate_limiter import BaseRateLimiter

from llama_index_longrag import RaptorIndex
from tests.fakes import PATIENCE
from tests.fakes.llama_index import HashEmbedding, ScriptedLLM
from tests.llama_index_longrag.stories import (
    MANY,
    SETTINGS,
    STORIES,
    build,
    same,
    stored,
    summaries,
    summary_of,
    writer,
)
from tests.settings import grouped


class Slow(ScriptedLLM):
    """Waits until a number of calls is in flight at once; counts the most there ever were."""

    together: int = 8
    _in_flight: int = PrivateAttr(default=0)
    _most: int = PrivateAttr(default=0)
    _full: Any = PrivateAttr(default_factory=threading.Event)

    def _enter(self) -> None:
        with self._lock:
            self._in_flight += 1
            self._most = max(self._most, self._in_flight)
            if self._in_flight == self.together:
                self._full.set()

    def _leave(self) -> None:
        with self._lock:
            self._in_flight -= 1

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self._enter()
        self._full.wait(PATIENCE)
        reply = self._reply(prompt)
        self._leave()
        return CompletionResponse(text=reply)

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        self._enter()
        for _ in range(int(PATIENCE / 0.01)):
            if self._full.is_set():
                break
            await asyncio.sleep(0.01)
        reply = self._reply(prompt)
        self._leave()
        return CompletionResponse(text=reply)


class SyncOnly(Slow):
    """Has only an inherited async call: CustomLLM's makes the sync one on the event loop."""


SyncOnly.acomplete = getattr_static(CustomLLM, "acomplete")


class TestCalls:
    def test_eight_workers_have_eight_calls_in_flight(self):
        llm = Slow(summary_of)
        index = build(MANY, llm=llm, num_workers=8)
        assert [llm._full.is_set(), llm._most] == [True, 8]
        assert same(index, build(MANY))

    @pytest.mark.parametrize("kind", [Slow, SyncOnly])
    async def test_eight_workers_have_eight_async_calls_in_flight(self, kind):
        llm = kind(summary_of)
        index = build([], llm=llm, num_workers=8)
        await index.arefresh_ref_docs(MANY)
        assert [llm._full.is_set(), llm._most] == [True, 8]
        assert same(index, build(MANY))

    def test_one_worker_has_one_call_in_flight(self):
        llm = Slow(summary_of, together=1)
        build(llm=llm, num_workers=1)
        assert llm._most == 1

    async def test_a_sync_build_runs_inside_a_running_loop(self):
        assert same(build(num_workers=4), build(num_workers=1))

    async def test_an_async_build_is_the_sync_one(self):
        llm, model = writer(), HashEmbedding()
        index = await RaptorIndex.afrom_documents(
            STORIES, llm=llm, embed_model=model, **grouped(**SETTINGS)
        )
        assert same(index, build())
        assert stored(index) == stored(build())
        assert {how for how, _ in model.asked} == {"atext"}
        assert index.refresh_ref_docs(STORIES) == [False] * len(STORIES)

    def test_the_rate_limiter_is_asked_for_every_call(self):
        class Counting(BaseRateLimiter):
            taken: int = 0

            def acquire(self, num_tokens: int = 0) -> None:
                self.taken += 1

            async def async_acquire(self, num_tokens: int = 0) -> None:
                self.taken += 1

        limiter = Counting()
        llm = writer(rate_limiter=limiter)
        build(llm=llm, num_workers=1)
        assert limiter.taken == len(llm.prompts) > 0

    @pytest.mark.parametrize("num_workers", [1, 4])
    def test_callbacks_and_events_are_seen_whatever_the_threads(self, num_workers):
        debug, names = LlamaDebugHandler(print_trace_on_end=False), []

        class Watch(BaseEventHandler):
            def handle(self, event: Any, **kwargs: Any) -> None:
                names.append(event.class_name())

        dispatcher, watch = get_dispatcher(), Watch()
        dispatcher.add_event_handler(watch)
        llm = writer()
        try:
            build(llm=llm, callback_manager=CallbackManager([debug]), num_workers=num_workers)
        finally:
            dispatcher.event_handlers.remove(watch)
        assert len(debug.get_event_pairs(CBEventType.LLM)) == len(llm.prompts)
        assert names.count("LLMPredictEndEvent") == len(llm.prompts)
        assert "EmbeddingEndEvent" in names

    def test_progress_is_shown_on_the_frameworks_bar(self, capsys):
        build(show_progress=True)
        shown = capsys.readouterr().err
        count = summaries(build())
        assert "Summarizing clusters" in shown
        assert f"{count}/{count}" in shown
        build()
        assert capsys.readouterr().err == ""
