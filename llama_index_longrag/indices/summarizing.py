"""Summaries by a language model and a template of LlamaIndex's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llama_index.core.llms.llm import LLM
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate, PromptType

from llama_index_longrag.bridge.answering import generate, predict
from longrag.calls import Flow, Generate, ask
from longrag.errors import InvalidParameterError
from longrag.indexing.tree.bounds import OnLong, SummaryBounds, check_summary
from longrag.indexing.tree.summaries import LlmSummarizer, Passage
from longrag.integration.answering import Calls, MethodCall
from longrag.prompts import SUMMARIZE
from longrag.types import TokenCounter

SUMMARY_TEMPLATE = PromptTemplate(
    SUMMARIZE.replace("{context}", "{context_str}"), prompt_type=PromptType.SUMMARY
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
        summary_tokens: the most tokens a summary has.
        on_long: what becomes of a longer one: "cut", "refuse" or "keep".
        count_tokens: counts the tokens of a text.

    Raises:
        InvalidParameterError: a setting is not allowed.
    """

    def __init__(
        self,
        template: BasePromptTemplate | None,
        *,
        summary_tokens: int,
        on_long: OnLong,
        count_tokens: TokenCounter,
    ) -> None:
        self.template = SUMMARY_TEMPLATE if template is None else template
        if not isinstance(self.template, BasePromptTemplate) or not _has_slot(self.template):
            raise InvalidParameterError(
                "summary_template", template, "a prompt template with the slot {context_str}"
            )
        self.summary_tokens = summary_tokens
        self._slots = LlmSummarizer(
            summary_tokens=summary_tokens,
            prompt="{max_words}\n{context}",
            on_long=on_long,
            count_tokens=count_tokens,
        )

    def __call__(self, passages: Sequence[Passage], *, sources: tuple[str, ...]) -> Flow[str]:
        """Ask once for a summary of the passages, in the order given."""
        max_words, _, context = self._slots.render(passages).partition("\n")
        prompt = self.template.format(context_str=context, max_words=max_words)
        reply = yield from ask(Summarize(prompt, sources, context, max_words))
        return (yield from self.bounds().finish(reply, prompt))

    def bounds(self) -> SummaryBounds:
        """Return what a reply must be."""
        return self._slots.bounds()


def _has_slot(template: BasePromptTemplate) -> bool:
    given = (template.template_vars, template.template_var_mappings, template.function_mappings)
    return any("context_str" in (names or ()) for names in given)


def write_summary(
    llm: LLM, template: BasePromptTemplate, bounds: SummaryBounds | None, request: Generate
) -> Calls[str]:
    """Ask for a summary, by the template where the request has its slots.

    A reply that is not a summary raises here, before a journal stores it; without ``bounds`` only
    an empty one does.
    """
    if isinstance(request, Summarize):
        slots = {"context_str": request.context, "max_words": request.max_words}
        reply = yield from predict(llm, template, **slots)
    else:
        reply = yield from generate(llm, request)
    if bounds is None:
        return check_summary(reply)
    # A tokenizer may be slow, and must not hold up an event loop.
    checked: str = yield MethodCall(bounds, "check", (reply, request.prompt), blocking=True)
    return checked
