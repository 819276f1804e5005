"""Models without async calls are asked in threads, so that the event loop is left to others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core import Document
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import BaseModel, PrivateAttr
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback

from llama_index_longrag import (
    LongRAGIndex,
    QuoteQueryEngine,
    TwoTurnSynthesizer,
    balanced_efficiency,
)
from tests.fakes.llama_index import HashEmbedding, tokenizer
from tests.llama_index_longrag.synthesis.reading import QUESTION


class SyncLLM(CustomLLM):
    """Has the sync calls that the framework asks for, and notes the threads of them."""

    reply: str = "1530 of course"
    is_chat: bool = False
    _threads: list[int] = PrivateAttr(default_factory=list)
    _ended: list[bool] = PrivateAttr(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(context_window=100_000, is_chat_model=self.is_chat)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self._threads.append(threading.get_ident())
        return CompletionResponse(text=self.reply)

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> Iterator[CompletionResponse]:
        return self._words()

    def _words(self) -> Iterator[CompletionResponse]:
        try:
            for word in self.reply.split(" "):
                self._threads.append(threading.get_ident())
                yield CompletionResponse(text="", delta=f"{word} ")
        finally:
            self._ended.append(threading.get_ident() == self._threads[0])


class SyncEmbedding(BaseEmbedding):
    """Has no async call for texts but the framework's own."""

    _threads: list[int] = PrivateAttr(default_factory=list)

    def _get_text_embedding(self, text: str) -> list[float]:
        self._threads.append(threading.get_ident())
        return [1.0, float(len(text))]

    def _get_query_embedding(self, query: str) -> list[float]:
        return [1.0, 1.0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return [1.0, 1.0]


def two_turns(index, llm, streaming):
    return index.as_query_engine(llm=llm, streaming=streaming)


def quotes(index, llm, streaming):
    return QuoteQueryEngine.from_args(index, llm, streaming=streaming)


def recipe(index, llm, streaming):
    return balanced_efficiency(index, reranker=None, llm=llm, streaming=streaming)


@pytest.mark.parametrize("is_chat", [False, True], ids=["complete", "chat"])
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("engine", [two_turns, quotes, recipe])
async def test_an_engine_asks_a_sync_llm_in_a_thread(documents, engine, streaming, is_chat):
    index = LongRAGIndex.from_documents(documents, embed_model=HashEmbedding(), tokenizer=tokenizer)
    llm = SyncLLM(is_chat=is_chat)
    response = await engine(index, llm, streaming).aquery(QUESTION)
    if streaming:
        response = await response.get_response()
    assert llm._threads
    assert threading.get_ident() not in llm._threads
    if engine is not quotes:
        assert str(response).split() == ["1530", "of", "course"]


async def test_a_stream_of_a_sync_llm_that_is_given_up_is_closed_in_its_thread(documents):
    index = LongRAGIndex.from_documents(documents, embed_model=HashEmbedding(), tokenizer=tokenizer)
    llm = SyncLLM()
    response = await two_turns(index, llm, streaming=True).aquery(QUESTION)
    assert (await anext(response.response_gen)).strip() == "1530"
    assert llm._ended == []
    await response.response_gen.aclose()
    assert llm._ended == [True]


class Year(BaseModel):
    """A year."""

    year: int


async def test_the_sync_llm_of_a_structured_one_is_asked_in_a_thread(documents):
    llm = SyncLLM(reply='{"year": 1530}')
    synthesizer = TwoTurnSynthesizer(llm.as_structured_llm(Year), tokenizer=tokenizer)
    assert str(await synthesizer.aget_response(QUESTION, ["Delft."])) == '{"year":1530}'
    assert threading.get_ident() not in llm._threads


async def test_texts_are_embedded_in_a_thread_by_a_model_that_is_sync_alone(documents):
    model = SyncEmbedding()
    index = await asyncio.to_thread(
        LongRAGIndex.from_documents, documents, embed_model=model, tokenizer=tokenizer
    )
    model._threads.clear()
    await index.ainsert(Document(id_="assen.md", text="Assen has one gate."))
    assert model._threads
    assert threading.get_ident() not in model._threads
