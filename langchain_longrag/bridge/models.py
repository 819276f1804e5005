"""What a runnable is made of: the models in it, and whether it gives documents or text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from langchain_core.language_models import BaseLanguageModel, LanguageModelLike
from langchain_core.messages import BaseMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    Runnable,
    RunnableGenerator,
    RunnableLambda,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.configurable import DynamicRunnable

from longrag.errors import GenerationError, InvalidParameterError


def blocks_in_async(llm: LanguageModelLike | None) -> bool:
    """Whether a model's async calls are its sync ones in the event loop's own threads.

    Those are few, so that the calls in flight would be fewer than were asked for.
    """
    found = list(leaves(llm))
    # Functions around a model take no time; alone, one may be the model.
    models = [leaf for leaf in found if isinstance(leaf, BaseLanguageModel)] or found
    return any(map(_is_sync_only, models)) and not any(map(_is_async_only, found))


def is_retriever(
    runnable: object, passes: Callable[[BaseRetriever], bool] = lambda _: True
) -> bool:
    """Whether a runnable is a retriever, or one with retries, fallbacks or settings around it.

    Args:
        runnable: the runnable.
        passes: a test of every retriever that it may call.
    """
    match runnable:
        case RunnableBindingBase():
            return is_retriever(runnable.bound, passes)
        case DynamicRunnable():
            return is_retriever(runnable.default, passes)
        case RunnableWithFallbacks():
            return all(is_retriever(one, passes) for one in members(runnable))
        case RunnableSequence():
            return is_retriever(runnable.first, passes)
        case _:
            return isinstance(runnable, BaseRetriever) and passes(runnable)


def check_retriever(runnable: object) -> None:
    """Refuse what gives no documents for a question: no runnable, or one that ends in a model.

    Raises:
        InvalidParameterError: it is such a value.
    """
    last = runnable
    while isinstance(last, RunnableSequence | RunnableBindingBase | RunnableWithFallbacks):
        last = last.bound if isinstance(last, RunnableBindingBase) else members(last)[-1]
    if not isinstance(runnable, Runnable) or isinstance(last, BaseLanguageModel):
        raise InvalidParameterError(
            "retriever",
            type(runnable).__name__,
            "a retriever, or another runnable from a question to documents",
        )


def leaves(model: object) -> Iterator[object]:
    """Yield what is within bindings, alternatives, fallbacks and sequences."""
    match model:
        case RunnableBindingBase():
            yield from leaves(model.bound)
        case DynamicRunnable():
            yield from leaves(model.default)
        case RunnableWithFallbacks() | RunnableSequence():
            for one in members(model):
                yield from leaves(one)
        case _:
            yield model


def _is_sync_only(model: object) -> bool:
    # Whoever has such a model has imported its module; importing it here would cost others 0.1 s.
    from langchain_core.language_models.chat_models import BaseChatModel, SimpleChatModel
    from langchain_core.language_models.llms import LLM, BaseLLM

    kind: Any = type(model)
    match model:
        case BaseChatModel():
            return kind._agenerate in (BaseChatModel._agenerate, SimpleChatModel._agenerate)
        case LLM() if kind._agenerate is LLM._agenerate:
            return kind._acall is LLM._acall
        case BaseLLM():
            return kind._agenerate is BaseLLM._agenerate
        case RunnableLambda():
            return not hasattr(model, "afunc")
        case _:
            return isinstance(model, Runnable) and kind.ainvoke is Runnable.ainvoke


def _is_async_only(model: object) -> bool:
    return isinstance(model, RunnableLambda) and not hasattr(model, "func")


def members(model: RunnableWithFallbacks[Any, Any] | RunnableSequence[Any, Any]) -> list[Any]:
    """Return the runnables that a sequence or a fallback is made of."""
    return list(model.steps if isinstance(model, RunnableSequence) else model.runnables)


def require_text() -> Runnable[Any, str | BaseMessage]:
    """Raise ``GenerationError`` on what is neither text nor a message, while it streams."""

    def transform(pieces: Iterator[Any]) -> Iterator[str | BaseMessage]:
        for piece in pieces:
            yield _check_text(piece)

    async def atransform(pieces: AsyncIterator[Any]) -> AsyncIterator[str | BaseMessage]:
        async for piece in pieces:
            yield _check_text(piece)

    return RunnableGenerator(transform, atransform)


def _check_text(piece: object) -> str | BaseMessage:
    if not isinstance(piece, str | BaseMessage):
        raise GenerationError(f"a model's answer must be text or a message, got {piece!r}")
    return piece
