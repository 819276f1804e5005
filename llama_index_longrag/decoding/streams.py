"""Streams of answers with quotes: the output as it becomes certain, then the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from llama_index.core.base.llms.types import CompletionResponse, CompletionResponseGen
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse

ReadAnswer: TypeAlias = Callable[[CompletionResponse | None], str]
"""Reads the answer from the last response of a model, or from None where it was not called."""


@dataclass
class TracedStreamingResponse(StreamingResponse):
    """A streaming response that can also stream the output before the answer."""

    def trace_gen(self) -> Iterator[str]:
        """Yield the whole output as it becomes certain; call it before ``response_gen`` is read."""
        return cast("Tokens", self.response_gen).trace()


@dataclass
class AsyncTracedStreamingResponse(AsyncStreamingResponse):
    """An async streaming response that can also stream the output before the answer."""

    def trace_gen(self) -> AsyncIterator[str]:
        """Yield the whole output as it becomes certain; call it before ``response_gen`` is read."""
        return cast("AsyncTokens", self.response_gen).trace()


class Tokens(Generator[str, None, None]):
    """The answer of an output, once it is complete; the output itself by ``trace`` before it."""

    def __init__(self, responses: CompletionResponseGen, read_answer: ReadAnswer) -> None:
        self._responses = responses
        self._last: CompletionResponse | None = None
        self._answer = self._finish(read_answer)

    def trace(self) -> Iterator[str]:
        """Yield what is new of the output."""
        for response in self._responses:
            self._last = response
            if response.delta:
                yield response.delta

    def _finish(self, read_answer: ReadAnswer) -> Generator[str, None, None]:
        for _ in self.trace():
            pass
        yield read_answer(self._last)

    def send(self, value: None, /) -> str:
        """Return the answer."""
        return self._answer.send(value)

    def throw(self, *error: Any) -> str:
        """Stop the model and raise."""
        self._responses.close()
        return self._answer.throw(*error)


class AsyncTokens(AsyncGenerator[str, None]):
    """The answer of an output, once it is complete; the output itself by ``trace`` before it."""

    def __init__(
        self, responses: AsyncGenerator[CompletionResponse, None], read_answer: ReadAnswer
    ) -> None:
        self._responses = responses
        self._last: CompletionResponse | None = None
        self._answer = self._finish(read_answer)

    async def trace(self) -> AsyncIterator[str]:
        """Yield what is new of the output."""
        async for response in self._responses:
            self._last = response
            if response.delta:
                yield response.delta

    async def _finish(self, read_answer: ReadAnswer) -> AsyncGenerator[str, None]:
        async for _ in self.trace():
            pass
        yield read_answer(self._last)

    async def asend(self, value: None, /) -> str:
        """Return the answer."""
        return await self._answer.asend(value)

    async def athrow(self, *error: Any) -> str:
        """Stop the model and raise."""
        await self._responses.aclose()
        return await self._answer.athrow(*error)


def empty_stream() -> CompletionResponseGen:
    """Yield the responses of a model that is not asked."""
    yield from ()


async def empty_async_stream() -> AsyncGenerator[CompletionResponse, None]:
    """Yield the responses of a model that is not asked."""
    for response in list[CompletionResponse]():
        yield response
