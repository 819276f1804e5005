"""Summaries by LlamaIndex's language models: their prompts, calls, progress and identity."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from inspect import getattr_static
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.llms.llm import LLM
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate, PromptType
from llama_index.core.utils import get_tqdm_iterable

from llama_index_longrag.bridge.settings import identify
from llama_index_longrag.models.embeddings import LocalEmbedding
from longrag.calls import Flow, Generate, Method, Steps, ask
from longrag.errors import InvalidParameterError
from longrag.indexing.tree.summaries import (
    LlmSummarizer,
    Passage,
    Summarizer,
    check_summary,
    summarize,
)
from longrag.prompts import SUMMARIZE

SUMMARY_TEMPLATE = PromptTemplate(
    SUMMARIZE.replace("{context}", "{context_str}"), prompt_type=PromptType.SUMMARY
)
_VERBATIM = PromptTemplate("{text}")

_ANSWER_SETTINGS = (
    "model",
    "model_name",
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "max_new_tokens",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "reasoning_effort",
    "system_prompt",
)
_VECTOR_SETTINGS = (
    "model_name",
    "dimensions",
    "text_instruction",
    "query_instruction",
    "normalize",
    "max_length",
    "pooling",
)


@dataclass(frozen=True, slots=True)
class Summarize(Generate):
    """A prompt for a summary, with what a template of the framework makes it of."""

    context: str = ""
    max_words: str = ""


class TemplateSummarizer:
    """Has a language model write summaries by a template of the framework.

    Args:
        template: has the slot ``context_str`` for the passages and may have ``max_words``.
        summary_tokens: the tokens a summary should have.

    Raises:
        InvalidParameterError: a setting is not allowed.
    """

    def __init__(self, template: BasePromptTemplate | None, *, summary_tokens: int) -> None:
        self.template = SUMMARY_TEMPLATE if template is None else template
        if not isinstance(self.template, BasePromptTemplate) or not _has_slot(self.template):
            raise InvalidParameterError(
                "summary_template", template, "a prompt template with the slot {context_str}"
            )
        self.summary_tokens = summary_tokens
        self._slots = LlmSummarizer(summary_tokens=summary_tokens, prompt="{max_words}\n{context}")

    def __call__(self, passages: Sequence[Passage], *, sources: tuple[str, ...]) -> Flow[str]:
        """Ask once for a summary of the passages, in the order given."""
        max_words, _, context = self._slots.render(passages).partition("\n")
        prompt = self.template.format(context_str=context, max_words=max_words)
        reply = yield from ask(Summarize(prompt, sources, context, max_words))
        return check_summary(reply)


def _has_slot(template: BasePromptTemplate) -> bool:
    given = (template.template_vars, template.template_var_mappings, template.function_mappings)
    return any("context_str" in (names or ()) for names in given)


def generate(
    llm: LLM, template: BasePromptTemplate, request: Generate, threads: Executor
) -> Steps[str]:
    """Ask by the model's own prompt wrapping, callbacks, events, retries and rate limiter.

    ``threads`` are for a model without an async call of its own, when it is asked by that.
    """
    if isinstance(request, Summarize):
        slots = {"context_str": request.context, "max_words": request.max_words}
    else:
        template, slots = _VERBATIM, {"text": request.prompt}
    target = _InThreads(llm, threads) if blocks(llm) else llm
    reply = check_summary((yield Method(target, "predict", (template,), slots)))
    bar = _BAR.get()
    if bar is not None:
        bar.shown.update()
    return reply


class _InThreads:
    """A language model whose async call is its sync one, off the event loop."""

    def __init__(self, llm: LLM, threads: Executor) -> None:
        self.predict = llm.predict
        self._threads = threads

    async def apredict(self, *args: Any, **kwargs: Any) -> str:
        call = partial(copy_context().run, self.predict, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def blocks(llm: LLM) -> bool:
    """Whether the async call of a model is the framework's own, which makes the sync one."""
    name = "achat" if llm.metadata.is_chat_model else "acomplete"
    # The framework wraps methods anew at each look.
    return getattr_static(type(llm), name) is getattr_static(CustomLLM, name)


class _Bar:
    """The framework's progress bar over summaries; how many there will be shows layer by layer."""

    def __init__(self) -> None:
        self.shown: Any = get_tqdm_iterable([], True, "Summarizing clusters")
        self._ended = 0

    def start(self) -> None:
        self.shown.total += 1
        self.shown.refresh()

    def end(self) -> None:
        # A summary that took a call was counted when the call was answered.
        self._ended += 1
        self.shown.update(max(self._ended - self.shown.n, 0))


_BAR: ContextVar[_Bar | None] = ContextVar("longrag_summaries", default=None)


@contextmanager
def progress(show: bool) -> Iterator[None]:
    """Count the summaries that are made meanwhile on a progress bar."""
    bar = _Bar() if show else None
    token = _BAR.set(bar)
    try:
        yield
    finally:
        _BAR.reset(token)
        if bar is not None:
            bar.shown.close()


class WatchedSummarizer:
    """Another summarizer, whose summaries are counted by ``progress``."""

    def __init__(self, summarizer: Summarizer) -> None:
        self._summarizer = summarizer
        self.summary_tokens = int(getattr(summarizer, "summary_tokens", 100))

    def __call__(self, passages: Sequence[Passage], *, sources: tuple[str, ...]) -> Flow[str]:
        """Return the summary of the other."""
        bar = _BAR.get()
        if bar is not None:
            bar.start()
        summary = yield from summarize(self._summarizer, passages, sources=sources)
        if bar is not None:
            bar.end()
        return summary


def llm_identity(llm: LLM, template: BasePromptTemplate | None = None) -> str:
    """Name a language model by what changes its answers, for a journal.

    A ``template`` is part of it as the model selects it.
    """
    wrapper = llm.query_wrapper_prompt
    return _identity(
        llm,
        _ANSWER_SETTINGS,
        name=llm.metadata.model_name,
        wrapper=None if wrapper is None else wrapper.get_template(),
        template=None if template is None else template.get_template(llm=llm),
    )


def embed_identity(model: BaseEmbedding) -> str:
    """Name an embedding model by what changes its vectors, for a journal."""
    own = identify(model.embedder) if isinstance(model, LocalEmbedding) else None
    return _identity(model, _VECTOR_SETTINGS, embedder=own)


def _identity(model: Any, names: Sequence[str], **known: str | None) -> str:
    # Only these: other settings may be secret, or differ from process to process.
    given = {name: getattr(model, name, None) for name in names}
    plain = {k: v for k, v in given.items() if isinstance(v, str | int | float | bool)}
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    return json.dumps([kind, {**plain, **known}], sort_keys=True)
