"""The keys of LlamaIndex documents: who writes propositions, and where they are kept."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from llama_index.core.llms.llm import LLM
from llama_index.core.llms.utils import LLMType, resolve_llm
from llama_index.core.prompts import PromptTemplate
from llama_index.core.settings import Settings

from llama_index_longrag.bridge.summaries import llm_identity
from longrag.calls import Flow, Generate, Method, Request, Steps, perform, run
from longrag.errors import InvalidParameterError
from longrag.ingestion.chunking import check_size
from longrag.ingestion.key_kinds import KeyKind
from longrag.journal import Journal

T = TypeVar("T")

_VERBATIM = PromptTemplate("{text}")


def build(
    flow: Flow[T],
    kind: KeyKind,
    *,
    llm: LLMType | None,
    journal: str | os.PathLike[str] | Journal | None,
    num_workers: int,
) -> T:
    """Return what a flow makes of keys of a kind.

    Propositions are asked for by the model's own prompt wrapping, callbacks and rate limiter, in
    ``num_workers`` threads, and kept in the journal as they come.

    Raises:
        InvalidParameterError: a setting, or a language model or journal that has nothing to do.
    """
    check_size("num_workers", num_workers)
    if kind == "proposition":
        writer = _resolved(llm)
        with _opened(journal, writer) as kept:
            return run(
                flow,
                lambda request: perform(_written(writer, request)),
                max_in_flight=num_workers,
                journal=kept,
            )
    for name, value in (("llm", llm), ("journal", journal)):
        if value is not None:
            allowed = 'left out unless keys="proposition"'
            raise InvalidParameterError(name, type(value).__name__, allowed)
    return run(flow, lambda request: None)


def _written(llm: LLM, request: Request) -> Steps[str]:
    if not isinstance(request, Generate):
        raise NotImplementedError(type(request).__name__)
    reply: str = yield Method(llm, "predict", (_VERBATIM,), {"text": request.prompt})
    return reply


def _opened(
    journal: str | os.PathLike[str] | Journal | None, llm: LLM
) -> AbstractContextManager[Journal | None]:
    if journal is None or isinstance(journal, Journal):
        return nullcontext(journal)
    if not isinstance(journal, str | os.PathLike):
        raise InvalidParameterError("journal", journal, "a path, a Journal or None")
    return Journal(journal, model=llm_identity(llm))


def _resolved(llm: LLMType | None) -> LLM:
    if llm is not None:
        return resolve_llm(llm)
    try:
        return Settings.llm
    except (ImportError, ValueError) as error:
        # The framework's default model is not installed, or has no key.
        raise InvalidParameterError(
            "llm",
            None,
            "given, or set in Settings.llm",
            'Or pass keys="sentence", which asks no language model.',
        ) from error
