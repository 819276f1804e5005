"""A filter that is given with one call of a chain, and how it reaches the retriever in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from inspect import signature
from typing import Any, Final, cast

from langchain_core.documents import Document
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
from langchain_core.runnables.utils import AddableDict

from langchain_longrag.bridge.models import is_retriever
from longrag.errors import InvalidParameterError
from longrag.retrieval.filters import DocumentFilter, MetadataFilter, both

FILTER: Final = "_filter"
"""The key under which the steps of a chain hand on the filter of a call."""

_ARGUMENT: Final = "filter"


def read_filter() -> Runnable[dict[str, Any], dict[str, Any]]:
    """Make the first step of a chain that is called as ``invoke(inputs, filter=...)``.

    Only the argument is read: an input may come from a user, who must not choose the filter.
    """
    return RunnableLambda(_add_filter).with_config(run_name="read_filter")


def _add_filter(inputs: Any, *, filter: MetadataFilter | None = None) -> Any:
    wanted = DocumentFilter.of(filter)
    if not isinstance(inputs, dict):
        if wanted is None:
            return inputs
        raise InvalidParameterError("input", inputs, "a dict")
    given = {key: value for key, value in inputs.items() if key != FILTER}
    return given if wanted is None else {**given, FILTER: wanted}


def pass_inputs(inputs: Any) -> Any:
    """Be the first step of a chain whose calls take no arguments, and refuse those that come.

    Only the first step is given the arguments of a call, and ``assign`` would pass them over.
    """
    return inputs


def drop_keys(*names: str) -> Runnable[dict[str, Any], dict[str, Any]]:
    """Make a step that leaves out what the steps hand on among themselves, while it streams."""

    def keep(piece: dict[str, Any]) -> dict[str, Any]:
        return AddableDict({key: value for key, value in piece.items() if key not in names})

    def transform(pieces: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for piece in pieces:
            if shown := keep(piece):
                yield shown

    async def atransform(pieces: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
        async for piece in pieces:
            if shown := keep(piece):
                yield shown

    return RunnableGenerator(transform, atransform)


def narrow(runnable: object, wanted: DocumentFilter | None) -> Runnable[str, list[Document]]:
    """Return a retriever that passes a filter to each of its calls.

    Filters that are bound to it already hold as well.

    Raises:
        InvalidParameterError: it, or a retriever within it, takes no ``filter`` with a call.
    """
    if wanted is None:
        return cast("Runnable[str, list[Document]]", runnable)
    match runnable:
        case RunnableBindingBase():
            own = DocumentFilter.of(runnable.kwargs.get(_ARGUMENT))
            left = {key: value for key, value in runnable.kwargs.items() if key != _ARGUMENT}
            bound = narrow(runnable.bound, both(own, wanted))
            return runnable.model_copy(update={"bound": bound, "kwargs": left})
        case RunnableWithFallbacks():
            others = [narrow(one, wanted) for one in runnable.fallbacks]
            first = narrow(runnable.runnable, wanted)
            return runnable.model_copy(update={"runnable": first, "fallbacks": others})
        case RunnableSequence():
            return runnable.model_copy(update={"first": narrow(runnable.first, wanted)})
    plain = runnable.default if isinstance(runnable, DynamicRunnable) else runnable
    if not isinstance(plain, BaseRetriever) or not _takes_filter(plain):
        raise InvalidParameterError(
            _ARGUMENT,
            "given with the call",
            f"left out over a {type(plain).__name__}, whose calls take none",
            "Give a vector store its own kind of filter in search_kwargs.",
        )
    return cast("Runnable[str, list[Document]]", runnable).bind(filter=wanted)


def takes_filter(runnable: object) -> bool:
    """Whether a runnable is a retriever each of whose calls may have a ``filter``."""
    return is_retriever(runnable, _takes_filter)


def _takes_filter(retriever: BaseRetriever) -> bool:
    return _ARGUMENT in signature(type(retriever)._get_relevant_documents).parameters
