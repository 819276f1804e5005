"""LlamaIndex's base classes over the stand-ins of the tests: models, tokenizer and stores."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import (
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
)
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from llama_index.core.vector_stores.utils import node_to_metadata_dict

from longrag.models.tokens import count_tokens
from tests.fakes import check_known_ids, check_new_row, hash_vector

WIDTH = 16


def tokenizer(text: str) -> list[str]:
    """Count as the core does, without a file of merges."""
    return [""] * count_tokens(text)


class HashEmbedding(BaseEmbedding):
    """``hash_vector`` as LlamaIndex's embedding; remembers what it was asked, and how."""

    model_name: str = "hash"
    width: int = WIDTH
    _asked: list[tuple[str, str]] = PrivateAttr(default_factory=list)

    @property
    def asked(self) -> list[tuple[str, str]]:
        return self._asked

    def _vector(self, how: str, text: str) -> list[float]:
        self._asked.append((how, text))
        return hash_vector(text, self.width).tolist()

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


class StrictStore(BasePydanticVectorStore):
    """Takes flat metadata and new ids alone, and deletes only what is there."""

    stores_text: bool = True
    flat_metadata: bool = True
    rows: dict[str, Any] = Field(default_factory=dict)

    @property
    def client(self) -> None:
        return None

    def add(self, nodes: Any, **kwargs: Any) -> list[str]:
        for node in nodes:
            metadata = node_to_metadata_dict(node, flat_metadata=self.flat_metadata)
            check_new_row(
                node.node_id, {k: v for k, v in metadata.items() if v is not None}, self.rows
            )
            assert len(node.get_embedding()) == WIDTH
            self.rows[node.node_id] = (node.get_content(), metadata)
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **kwargs: Any) -> None:
        raise AssertionError("nodes are deleted by their own ids")

    def delete_nodes(self, node_ids: Any = None, filters: Any = None, **kwargs: Any) -> None:
        check_known_ids(node_ids, self.rows)
        for node_id in node_ids:
            del self.rows[node_id]

    def query(self, query: Any, **kwargs: Any) -> Any:
        raise AssertionError("search is in memory")


class TextStore(SimpleVectorStore):
    """A store that holds the nodes, as hosted ones do, so that the index keeps no docstore."""

    stores_text: bool = True

    def add(self, nodes, **kwargs):
        self.__dict__.setdefault("rows", {}).update({node.node_id: node for node in nodes})
        return super().add(nodes, **kwargs)

    def get_nodes(self, node_ids=None, filters=None):
        return [self.__dict__["rows"][id_] for id_ in node_ids]

    def query(self, query, **kwargs):
        result = super().query(query, **kwargs)
        result.nodes = [self.__dict__["rows"][id_] for id_ in result.ids]
        return result
