"""The extractive reader as a LangChain chat model: no key, no download, every path runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from longrag.synthesis.extractive import answer_prompt


class ExtractiveChatModel(BaseChatModel):
    """Answer prompts by quoting them: the best sentences of a context, then the shortest span.

    A stand-in for a language model, for tests, demos and offline work; it writes nothing new
    and names itself extractive. Deterministic. Reads the text of all messages as one prompt.
    """

    @property
    def _llm_type(self) -> str:
        return "extractive"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "longrag"
        params.setdefault("ls_model_name", "extractive")
        return params

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        message = AIMessage(
            _extract_answer(messages, stop), response_metadata={"model_name": "extractive"}
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for word in re.findall(r"\S+\s*", _extract_answer(messages, stop)):
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=word))
            if run_manager is not None:
                run_manager.on_llm_new_token(word, chunk=chunk)
            yield chunk
        yield ChatGenerationChunk(
            message=AIMessageChunk(
                content="", response_metadata={"model_name": "extractive"}, chunk_position="last"
            )
        )


def _extract_answer(messages: Sequence[BaseMessage], stop: Sequence[str] | None) -> str:
    answer = answer_prompt("\n\n".join(message.text for message in messages))
    for marker in stop or ():
        answer = answer.partition(marker)[0]
    return answer
