"""The keys of LlamaIndex documents: who writes propositions, and where they are kept."""

from __future__ import annotations

from typing import TypeVar

from llama_index.core.llms.llm import LLM
from llama_index.core.llms.utils import LLMType, resolve_llm
from llama_index.core.settings import Settings

from llama_index_longrag.bridge.answering import model_answerer
from llama_index_longrag.models.identity import llm_identity
from longrag.calls import Flow
from longrag.errors import InvalidParameterError
from longrag.ingestion.chunking import check_size
from longrag.ingestion.key_kinds import KeyKind
from longrag.integration.answering import Answerer
from longrag.integration.journals import JournalLike, check_journal, open_journal

T = TypeVar("T")


def build(
    flow: Flow[T],
    kind: KeyKind,
    *,
    llm: LLMType | None,
    journal: JournalLike,
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
        writer = _resolve_llm(llm)
        check_journal(journal)
        with open_journal(journal, lambda: {"model": llm_identity(writer)}) as kept:
            return model_answerer(llm=writer, num_workers=num_workers, journal=kept).run(flow)
    for name, value in (("llm", llm), ("journal", journal)):
        if value is not None:
            allowed = 'left out unless keys="proposition"'
            raise InvalidParameterError(name, type(value).__name__, allowed)
    return Answerer({}).run(flow)


def _resolve_llm(llm: LLMType | None) -> LLM:
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
