"""The trace of a recipe, for callbacks: also of an answer that does not come to its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, cast

from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langchain_core.runnables import Runnable, RunnableConfig, RunnableGenerator

from longrag.recipes.runs import PendingAnswer

TRACE_EVENT: Final = "longrag_trace"


def tell_trace(pending: PendingAnswer) -> Runnable[str, str]:
    """Pass an answer on, and send its trace to callbacks as a custom event, ``TRACE_EVENT``.

    The chain gives its trace last, so that whoever reads a stream gets none if it breaks off or is
    left before. One that is left is read to its end by LangChain itself.
    """

    def transform(tokens: Iterator[str], config: RunnableConfig) -> Iterator[str]:
        parts: list[str] = []
        try:
            for token in tokens:
                parts.append(token)
                yield token
        except BaseException as error:
            dispatch_custom_event(TRACE_EVENT, _unfinished(pending, parts, error), config=config)
            raise
        dispatch_custom_event(TRACE_EVENT, pending.trace("".join(parts)), config=config)

    async def atransform(tokens: AsyncIterator[str], config: RunnableConfig) -> AsyncIterator[str]:
        parts: list[str] = []
        try:
            async for token in tokens:
                parts.append(token)
                yield token
        except BaseException as error:
            event = _unfinished(pending, parts, error)
            await adispatch_custom_event(TRACE_EVENT, event, config=config)
            raise
        await adispatch_custom_event(TRACE_EVENT, pending.trace("".join(parts)), config=config)

    # It passes the config on to functions that take one, which its signature does not say.
    return RunnableGenerator(cast("Any", transform), cast("Any", atransform))


def _unfinished(
    pending: PendingAnswer, parts: list[str], error: BaseException
) -> list[dict[str, Any]]:
    raised = None if isinstance(error, GeneratorExit) else error
    return pending.trace("".join(parts), finished=False, error=raised)
