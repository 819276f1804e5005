"""Summaries by a language model and a template of LlamaIndex's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llama_index.core.llms.llm import LLM
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate, PromptType

from llama_index_longrag.bridge.answering import ModelAnswers, apredict, predict
from longrag.calls import Flow, Generate, ask
from longrag.calls.flows import in_thread
from longrag.errors import InvalidParameterError
from longrag.indexing.tree.bounds import SummaryBounds, check_summary
from longrag.indexing.tree.settings import TreeSettings
from longrag.indexing.tree.summaries import LlmSummarizer, SummaryInput
from longrag.models.tokens import token_counter
from longrag.prompts import SUMMARIZE

SUMMARY_TEMPLATE = PromptTemplate(
    SUMMARIZE.replace("{context}", "{context_str}"), prompt_type=PromptType.SUMMARY
)


@dataclass(frozen=True, slots=True)
class Summarize(Generate):
    """A prompt for a summary, with what a template of the framework makes it of."""

    context: str = ""
    max_words: str = ""

    def slots(self) -> dict[str, str]:
        """Return what fills the template."""
        return {"context_str": self.context, "max_words": self.max_words}


class TemplateSummarizer:
    """Has a language model write summaries by a template of the framework.

    Args:
        template: has the slot ``context_str`` for the passages and may have ``max_words``.
        tree: has the bounds of a summary.

    Raises:
        InvalidParameterError: a setting is not allowed.
    """

    def __init__(self, template: BasePromptTemplate | None, tree: TreeSettings) -> None:
        self.template = SUMMARY_TEMPLATE if template is None else template
        if not _has_slot(self.template):
            raise InvalidParameterError(
                "summarizer", template, "a prompt template with the slot {context_str}"
            )
        self.summary_tokens = tree.summary_tokens
        self._slots = LlmSummarizer(
            summary_tokens=tree.summary_tokens,
            prompt="{max_words}\n{context}",
            on_long=tree.on_long,
            count_tokens=token_counter(tree.tokenizer),
        )

    def __call__(self, passages: Sequence[SummaryInput], *, sources: tuple[str, ...]) -> Flow[str]:
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


@dataclass(frozen=True, slots=True)
class SummaryWriter:
    """Asks for summaries, by the template where a request has its slots.

    A reply that is not a summary raises here, before a journal stores it; without ``bounds`` only
    an empty one does.
    """

    llm: LLM
    template: BasePromptTemplate
    bounds: SummaryBounds | None

    def answer(self, request: Generate) -> str:
        """Ask for a summary."""
        if isinstance(request, Summarize):
            reply = predict(self.llm, self.template, **request.slots())
        else:
            reply = ModelAnswers(llm=self.llm).answer(request)
        return self._check(request, reply)

    async def aanswer(self, request: Generate) -> str:
        """Ask for a summary."""
        if isinstance(request, Summarize):
            reply = await apredict(self.llm, self.template, **request.slots())
        else:
            reply = await ModelAnswers(llm=self.llm).aanswer(request)
        # A tokenizer may be slow, and must not hold up an event loop.
        return await in_thread(self._check, request, reply)

    def _check(self, request: Generate, reply: str) -> str:
        bounds = self.bounds
        return check_summary(reply) if bounds is None else bounds.check(reply, request.prompt)
