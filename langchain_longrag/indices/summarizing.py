"""The requests of a tree of summaries, and how LangChain's models answer them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import LanguageModelLike
from langchain_core.prompt_values import PromptValue
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnableConfig

from langchain_longrag.bridge.answering import call_config, model_handlers
from langchain_longrag.bridge.models import blocks_in_async, reply_text
from longrag.calls import CallLimit, Flow, Generate, ask
from longrag.errors import InvalidParameterError
from longrag.indexing.tree.summaries import LlmSummarizer, Passage, check_summary
from longrag.integration.answering import Answerer, Calls, MethodCall
from longrag.journal import Journal

_SLOTS: Final = {"context", "max_words"}


@dataclass(frozen=True, slots=True)
class GenerateFromPrompt(Generate):
    """A request whose prompt the framework made; the model gets it as the framework has it."""

    value: PromptValue | None = field(default=None, compare=False)


@dataclass(frozen=True)
class PromptSummarizer:
    """Has a language model write the summary, with a prompt of the framework's.

    Raises:
        InvalidParameterError: the prompt is not a prompt template, or its variables are not
            ``context`` and, where wanted, ``max_words``.
    """

    prompt: BasePromptTemplate[Any]
    summary_tokens: int = 100

    def __post_init__(self) -> None:
        variables = set(getattr(self.prompt, "input_variables", ()))
        if (
            not isinstance(self.prompt, BasePromptTemplate)
            or "context" not in variables
            or not variables <= _SLOTS
        ):
            raise InvalidParameterError(
                "summary_prompt",
                self.prompt,
                "a prompt template with the variable context and, where wanted, max_words",
                "Fill other variables with its partial().",
            )
        self._slots()

    def __call__(self, passages: Sequence[Passage], *, sources: tuple[str, ...]) -> Flow[str]:
        """Ask once for a summary of the passages, in the order given."""
        max_words, _, context = self._slots().render(passages).partition("\n")
        slots = {"context": context, "max_words": max_words}
        value = self.prompt.format_prompt(**{v: slots[v] for v in self.prompt.input_variables})
        reply = yield from ask(GenerateFromPrompt(value.to_string(), sources, value))
        return check_summary(reply)

    def _slots(self) -> LlmSummarizer:
        return LlmSummarizer(summary_tokens=self.summary_tokens, prompt="{max_words}\n{context}")


def texts_per_call(embedding: Embeddings) -> int:
    """Return how many texts an embedding model embeds in one call, 32 where it does not tell."""
    sizes = (getattr(embedding, name, None) for name in ("chunk_size", "batch_size"))
    return next((size for size in sizes if type(size) is int and size > 0), 32)


def tree_answerer(
    embedding: Embeddings,
    llm: LanguageModelLike | None,
    *,
    limit: CallLimit,
    config: RunnableConfig | None,
    max_concurrency: int,
    journal: Journal | None,
) -> Answerer:
    """Make the answerer of one change of a tree.

    Args:
        embedding: answers ``Embed``.
        llm: answers ``Generate``.
        limit: bounds the calls of ``llm``.
        config: passed to every call of ``llm``.
        max_concurrency: the calls in flight.
        journal: keeps the answers.
    """
    handlers = model_handlers(embedding=embedding)
    handlers[Generate] = partial(_write_summary, llm, call_config(config))
    return Answerer(handlers, max_in_flight=max_concurrency, limit=limit, journal=journal)


def _write_summary(
    llm: LanguageModelLike | None, config: RunnableConfig, request: Generate
) -> Calls[str]:
    if llm is None:
        raise InvalidParameterError(
            "llm", None, "a language model", 'Or pass summarizer="extractive".'
        )
    value = request.value if isinstance(request, GenerateFromPrompt) else request.prompt
    # The framework's own threads for models without async calls are few.
    blocking = blocks_in_async(llm)
    reply = yield MethodCall(llm, "invoke", (value, config), blocking=blocking)
    return check_summary(reply_text(reply))
