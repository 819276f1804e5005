"""How a tree's requests are answered by LangChain's models, and what they are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Final

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import LanguageModelLike
from langchain_core.prompt_values import PromptValue
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnableConfig, ensure_config

from langchain_longrag.bridge.documents import embed
from langchain_longrag.bridge.models import blocks_in_async, reply_text
from longrag.calls import (
    CallLimit,
    Embed,
    Flow,
    Generate,
    Method,
    Request,
    Steps,
    aperform,
    ask,
    perform,
)
from longrag.errors import InvalidParameterError
from longrag.indexing.tree.summaries import LlmSummarizer, Passage, check_summary

_SLOTS: Final = {"context", "max_words"}


@dataclass(frozen=True, slots=True)
class Prompted(Generate):
    """A request whose prompt the framework made; the model gets it as the framework has it."""

    value: PromptValue | None = field(default=None, compare=False)


@dataclass(frozen=True)
class PromptSummarizer:
    """Has a language model write the summary, with a prompt of the framework's.

    Raises:
        InvalidParameterError: the prompt is none, or its variables are not ``context`` and, where
            wanted, ``max_words``.
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
        reply = yield from ask(Prompted(value.to_string(), sources, value))
        return check_summary(reply)

    def _slots(self) -> LlmSummarizer:
        return LlmSummarizer(summary_tokens=self.summary_tokens, prompt="{max_words}\n{context}")


def texts_per_call(embedding: Embeddings) -> int:
    """Return how many texts an embedding model embeds in one call, 32 where it does not tell."""
    told = (getattr(embedding, name, None) for name in ("chunk_size", "batch_size"))
    return next((size for size in told if type(size) is int and size > 0), 32)


class Models:
    """Answers the requests of one change; closed when it is over.

    Args:
        embedding: answers ``Embed``.
        llm: answers ``Generate``.
        limit: what may be asked of ``llm``.
        config: goes along with every call of ``llm``.
        max_concurrency: the calls in flight.
    """

    def __init__(
        self,
        embedding: Embeddings,
        llm: LanguageModelLike | None,
        *,
        limit: CallLimit,
        config: RunnableConfig | None,
        max_concurrency: int,
    ) -> None:
        self._embedding = embedding
        self._llm = llm
        self._limit = limit
        # Also what a chain around the change was given, which a model's own config would hide.
        self._config = ensure_config(config)
        # One run id cannot name several calls.
        self._config.pop("run_id", None)
        self._max_concurrency = max_concurrency
        self._threads: ThreadPoolExecutor | None = None
        self._blocking = blocks_in_async(llm)

    def __enter__(self) -> Models:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._threads is not None:
            # A cancelled change does not wait for calls that cannot be cancelled.
            self._threads.shutdown(wait=False, cancel_futures=True)

    def answer(self, request: Request) -> Any:
        """Answer one request."""
        return perform(self._steps(request))

    async def aanswer(self, request: Request) -> Any:
        """Answer one request, with the models' own async calls where they have some."""
        if isinstance(request, Generate) and self._blocking:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._max_concurrency)
            call = partial(copy_context().run, self.answer, request)
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        return await aperform(self._steps(request))

    def _steps(self, request: Request) -> Steps[Any]:
        match request:
            case Embed():
                return (yield from embed(self._embedding, request))
            case Generate() if self._llm is None:
                raise InvalidParameterError(
                    "llm", None, "a language model", 'Or pass summarizer="extractive".'
                )
            case Generate(prompt=prompt):
                self._limit.spend()
                value = request.value if isinstance(request, Prompted) else prompt
                reply = yield Method(self._llm, "invoke", (value, self._config))
                return check_summary(reply_text(reply))
            case _:
                raise NotImplementedError(type(request).__name__)
