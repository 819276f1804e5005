"""LangChain's prompt templates as the core's prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.prompts import BasePromptTemplate

from longrag.errors import InvalidParameterError
from longrag.models.replies import PromptEcho


def to_prompt(
    template: BasePromptTemplate[Any] | str | None, default: str, slots: Mapping[str, str]
) -> str:
    """Return a template as the core's prompts are written, where a slot is ``{question}``.

    ``slots`` are the names of the core's slots by LangChain's, the one that is needed first.

    Raises:
        InvalidParameterError: the template lacks that one, or has others.
    """
    if template is None:
        return default
    if isinstance(template, str):
        return template
    needed, variables = next(iter(slots)), set(template.input_variables)
    if needed not in variables or not variables <= set(slots):
        raise InvalidParameterError(
            "prompt",
            sorted(variables),
            f"a template with the variable {needed}, and no others than {', '.join(slots)}",
            "Fill other variables with its partial().",
        )
    # The core fills its slots by their names in braces and leaves other braces alone.
    return template.format_prompt(**{v: f"{{{slots[v]}}}" for v in variables}).to_string()


def prompt_echo(
    prompt: BasePromptTemplate[Any], values: Mapping[str, Any], question: str
) -> PromptEcho:
    """Return what is no answer to a prompt: its words without the texts put into it."""
    empty = dict.fromkeys(("context", "input", "long_answer"), "")
    given = {name: {**values, **empty}[name] for name in prompt.input_variables}
    messages = prompt.format_prompt(**given).to_messages()
    return PromptEcho.of("\n".join(str(message.text) for message in messages), question)
