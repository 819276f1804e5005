"""What a runnable is made of: the models in it, and whether it gives documents or text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseLanguageModel, LanguageModelLike
from langchain_core.messages import BaseMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    RouterRunnable,
    Runnable,
    RunnableAssign,
    RunnableBranch,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableBindingBase, RunnableEachBase
from langchain_core.runnables.configurable import (
    DynamicRunnable,
    RunnableConfigurableAlternatives,
)

from longrag.errors import GenerationError, InvalidParameterError


def blocks_in_async(llm: LanguageModelLike | None) -> bool:
    """Whether a model's async calls are its sync ones in the event loop's own threads.

    Those are few, so that the calls in flight would be fewer than were asked for.
    """
    found = list(leaves(llm))
    # Functions around a model take no time; alone, one may be the model.
    models = [leaf for leaf in found if isinstance(leaf, BaseLanguageModel)] or found
    return any(map(_is_sync_only, models)) and not any(map(_is_async_only, found))


def parts(runnable: object) -> list[Any]:
    """Return the runnables that a runnable is made of, in their order; none of one that is whole.

    Functions that choose or convert, such as the conditions of a branch, are no parts.
    """
    found: Iterable[object] = ()
    match runnable:
        case RunnableBindingBase() | RunnableEachBase():
            found = [runnable.bound]
        case RunnableConfigurableAlternatives():
            others = map(_make_alternative, runnable.alternatives.values())
            found = [runnable.default, *others]
        case DynamicRunnable():
            found = [runnable.default]
        case RunnableWithFallbacks() | RouterRunnable():
            members = runnable.runnables
            found = members.values() if isinstance(members, Mapping) else members
        case RunnableSequence():
            found = runnable.steps
        case RunnableBranch():
            found = [*(one for _, one in runnable.branches), runnable.default]
        case RunnableParallel():
            found = runnable.steps__.values()
        case RunnableAssign():
            found = [runnable.mapper]
    return list(found)


def with_parts(runnable: Any, made: Sequence[Any]) -> Any:
    """Return a copy of a runnable with other parts, as many as it has and in the same order."""
    first, *others = made
    match runnable:
        case RunnableConfigurableAlternatives():
            alternatives = dict(zip(runnable.alternatives, others, strict=True))
            changed = {"default": first, "alternatives": alternatives}
        case RunnableWithFallbacks():
            changed = {"runnable": first, "fallbacks": others}
        case RunnableSequence():
            changed = {"first": first, "middle": others[:-1], "last": others[-1]}
        case RunnableBranch():
            tests = [test for test, _ in runnable.branches]
            changed = {
                "branches": [*zip(tests, made[:-1], strict=True)],
                "default": made[-1],
            }
        case RunnableParallel():
            changed = {"steps__": dict(zip(runnable.steps__, made, strict=True))}
        case RunnableAssign():
            changed = {"mapper": first}
        case RouterRunnable():
            changed = {"runnables": dict(zip(runnable.runnables, made, strict=True))}
        case _:
            changed = {"default" if isinstance(runnable, DynamicRunnable) else "bound": first}
    return runnable.model_copy(update=changed)


def _make_alternative(alternative: Any) -> Any:
    return alternative if isinstance(alternative, Runnable) else alternative()


def is_retriever(runnable: object) -> bool:
    """Whether a runnable is a retriever, or one with retries, fallbacks or settings around it."""
    match runnable:
        case RunnableSequence():
            return is_retriever(runnable.first)
        case RunnableBindingBase() | DynamicRunnable() | RunnableWithFallbacks():
            return all(map(is_retriever, parts(runnable)))
        case _:
            return isinstance(runnable, BaseRetriever)


def check_retriever(runnable: object) -> None:
    """Refuse what gives no documents for a question: no runnable, or one that ends in a model.

    Raises:
        InvalidParameterError: it is such a value.
    """
    last = runnable
    while isinstance(last, RunnableSequence | RunnableBindingBase | RunnableWithFallbacks):
        last = parts(last)[-1]
    if not isinstance(runnable, Runnable) or isinstance(last, BaseLanguageModel):
        raise InvalidParameterError(
            "retriever",
            type(runnable).__name__,
            "a retriever, or another runnable from a question to documents",
        )


def leaves(model: object) -> Iterator[object]:
    """Yield what is within bindings, alternatives, fallbacks, sequences and the like."""
    own = parts(model)
    if not own:
        yield model
    for one in own:
        yield from leaves(one)


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
