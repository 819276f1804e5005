"""Deterministic stand-ins for LlamaIndex's models, and a corpus of linked documents."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import llama_index.core
import pytest
from llama_index.core import Document, Settings
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import (
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
)
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.schema import BaseNode, NodeRelationship, TextNode

from longrag.models.tokens import count_tokens
from tests.fakes import hash_vector

WIDTH = 16


def tokenizer(text: str) -> list[str]:
    """Count as the core does, without a file of merges."""
    return [""] * count_tokens(text)


class HashEmbedding(BaseEmbedding):
    """Texts that share words are near each other; remembers what it was asked, and how."""

    model_name: str = "hash"
    _asked: list[tuple[str, str]] = PrivateAttr(default_factory=list)

    @property
    def asked(self) -> list[tuple[str, str]]:
        return self._asked

    def _vector(self, how: str, text: str) -> list[float]:
        self._asked.append((how, text))
        return hash_vector(text, WIDTH).tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._vector("query", query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._vector("text", text)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        await asyncio.sleep(0)
        return self._vector("aquery", query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        await asyncio.sleep(0)
        return self._vector("atext", text)


Reply = str | Exception | Callable[[str], str]


class ScriptedLLM(CustomLLM):
    """Gives scripted replies in turn, keeps every prompt, and streams a word at a time.

    An exception in the script is raised; after ``breaks_after`` tokens a stream raises instead.
    """

    context_window: int = 1_000_000
    num_output: int = 256
    is_chat: bool = False
    breaks_after: int | None = None
    _script: list[Reply] = PrivateAttr(default_factory=list)
    _prompts: list[str] = PrivateAttr(default_factory=list)
    _threads: list[int] = PrivateAttr(default_factory=list)
    _closed: list[bool] = PrivateAttr(default_factory=list)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def __init__(self, *script: Reply, **settings: Any) -> None:
        super().__init__(**settings)
        self._script = list(script)

    @classmethod
    def class_name(cls) -> str:
        return "ScriptedLLM"

    @property
    def prompts(self) -> list[str]:
        return self._prompts

    @property
    def closed(self) -> list[bool]:
        """One entry a stream: whether it has ended or was closed."""
        return self._closed

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            context_window=self.context_window,
            num_output=self.num_output,
            is_chat_model=self.is_chat,
            model_name="scripted",
        )

    def _reply(self, prompt: str) -> str:
        with self._lock:
            self._prompts.append(prompt)
            reply = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(reply, Exception):
            raise reply
        return reply(prompt) if callable(reply) else reply

    def _tokens(self, text: str) -> Iterator[CompletionResponse]:
        number = len(self._closed)
        self._closed.append(False)
        try:
            shown = ""
            for count, word in enumerate(text.split(" ")):
                if count == self.breaks_after:
                    raise ConnectionError("the stream broke")
                delta = word if not count else f" {word}"
                shown += delta
                yield CompletionResponse(text=shown, delta=delta)
        finally:
            self._closed[number] = True

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self._reply(prompt))

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseGen:
        reply = self._reply(prompt)

        def gen() -> CompletionResponseGen:
            yield from self._tokens(reply)

        return gen()

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        await asyncio.sleep(0)
        return CompletionResponse(text=self._reply(prompt))

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        reply = self._reply(prompt)

        async def gen() -> CompletionResponseAsyncGen:
            for response in self._tokens(reply):
                await asyncio.sleep(0)
                yield response

        return gen()


def units_of(nodes: Sequence[BaseNode]) -> list[TextNode]:
    return [
        n for n in nodes if isinstance(n, TextNode) and NodeRelationship.CHILD in n.relationships
    ]


def chunks_of(nodes: Sequence[BaseNode]) -> list[TextNode]:
    return [
        n for n in nodes if isinstance(n, TextNode) and NodeRelationship.PARENT in n.relationships
    ]


TOWNS = ["Utrecht", "Leiden", "Delft", "Gouda", "Zwolle", "Breda"]


def town(number: int, links: Sequence[int] = ()) -> Document:
    name = TOWNS[number]
    facts = " ".join(f"{name} has gate number {n}, built in {1500 + 10 * n}." for n in range(8))
    seen = " ".join(f"See [{TOWNS[i]}]({TOWNS[i].lower()}.md)." for i in links)
    return Document(
        id_=f"{name.lower()}.md",
        text=f"# {name}\n\n{facts}\n\n{seen}\n",
        metadata={"title": name, "country": "NL", "number": number},
        excluded_embed_metadata_keys=["number"],
        excluded_llm_metadata_keys=["country"],
    )


@pytest.fixture
def documents() -> list[Document]:
    """Six towns: the first three linked in a row, the fourth to the fifth, the last alone."""
    return [town(0, [1]), town(1, [2]), town(2), town(3, [4]), town(4), town(5)]


@pytest.fixture
def embed_model() -> HashEmbedding:
    return HashEmbedding()


@pytest.fixture(autouse=True)
def no_global_models(monkeypatch):
    """Nothing may fall back on a global model that a test did not set."""
    monkeypatch.setattr(Settings, "_llm", None)
    monkeypatch.setattr(Settings, "_embed_model", None)
    monkeypatch.setattr(Settings, "_callback_manager", None)
    monkeypatch.setattr(llama_index.core, "global_tokenizer", tokenizer)
