"""The calls of models that parts of the framework make by themselves, seen by its callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs

from longrag.integration.answering import Calls
from longrag.recipes.trace import Observed


class _ModelCallHandler(BaseCallbackHandler):
    """Notes the texts of the calls of language models."""

    # In the thread of the call, so that all is noted when the call returns.
    run_inline = True

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.replies: list[str] = []

    def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], **kwargs: Any) -> None:
        self.prompts.extend(prompts)

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], **kwargs: Any
    ) -> None:
        self.prompts.extend("\n".join(one.text for one in chat) for chat in messages)

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        self.replies.extend(one[0].text for one in response.generations if one)


def observe(
    config: RunnableConfig, work: Callable[[RunnableConfig], Calls[Any]]
) -> Calls[Observed]:
    """Do work whose calls take a config, and return its value or error with the models' calls."""
    seen = _ModelCallHandler()
    try:
        outcome: Any = yield from work(merge_configs(config, {"callbacks": [seen]}))
    except Exception as error:  # noqa: BLE001 - an outcome is a value or an exception
        outcome = error
    return Observed(outcome, tuple(seen.prompts), tuple(seen.replies))
