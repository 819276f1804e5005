"""The synthesizer that reads what a recipe has prepared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.llms.llm import LLM
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.mixin import PromptDictType

from llama_index_longrag.synthesis.two_turn import (
    Turn,
    Turns,
    TwoTurnSynthesizer,
    documents_of,
    reader_template,
)
from longrag.prompts import RECIPE_ANSWER, quote
from longrag.refinement.repacking import RepackOrder, repack
from longrag.synthesis.two_turn import FittedContext, ReaderDocument


class RecipeSynthesizer(TwoTurnSynthesizer):
    """Read what a recipe has prepared, in one turn.

    Documents are put into fields that their text cannot end. Where the model's window is too small,
    whole documents are left out, the worst first, wherever the order puts them. The template is
    also replaced by ``update_prompts`` under ``answer``.

    Args:
        llm: any LLM, by default ``Settings.llm``.
        order: how the nodes are ordered.
        template: has the slots ``context_str`` and ``query_str``.
        settings: those of ``TwoTurnSynthesizer`` that are not of its turns, such as ``streaming``.
    """

    def __init__(
        self,
        llm: LLM | None = None,
        *,
        order: RepackOrder = "forward",
        template: BasePromptTemplate | None = None,
        **settings: Any,
    ) -> None:
        answer = template or reader_template(RECIPE_ANSWER)
        super().__init__(llm, extract_template=answer, long_answer_template=answer, **settings)
        self._order = order
        self._note_prompt: Callable[[str], None] | None = None

    def observed_by(self, note_prompt: Callable[[str], None]) -> RecipeSynthesizer:
        """Return a copy, for one run, that passes each prompt to ``note_prompt``."""
        observed = copy.copy(self)
        observed._note_prompt = note_prompt
        return observed

    def _get_prompts(self) -> PromptDictType:
        return {"answer": self._templates["extract"]}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        if "answer" in prompts:
            # Both are measured, and the first is asked.
            super()._update_prompts(dict.fromkeys(("extract", "long_answer"), prompts["answer"]))

    def _run_turns(
        self, query: str, fitted: FittedContext, kwargs: dict[str, Any], notes: dict[str, Any]
    ) -> Turns:
        args = {"query_str": quote(query), **kwargs, "context_str": fitted.text}
        template = self._templates["extract"]
        if self._note_prompt is not None:
            self._note_prompt(template.format(llm=self._llm, **args))
        answer: str = yield Turn("answer", self._llm, template, args)
        return answer or self._empty_response

    def _documents(self, texts: Sequence[str]) -> list[ReaderDocument]:
        rank = repack(range(len(texts)), self._order)
        return [replace(one, unit=rank[one.unit]) for one in documents_of(texts)]
