"""LlamaIndex's prompt templates as the core's prompts, and the core's as templates."""

from __future__ import annotations

from llama_index.core.llms.llm import LLM
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate

from longrag.errors import InvalidParameterError

_MARK = "\0"


def to_template(prompt: str, **slots: str) -> PromptTemplate:
    """Make a template of one of the core's prompts, with the framework's names for its slots."""
    for own, name in slots.items():
        prompt = prompt.replace(f"{{{own}}}", f"{{{name}}}")
    return PromptTemplate(prompt)


def to_prompt(template: BasePromptTemplate, llm: LLM | None, **slots: str) -> str:
    """Return a template as the core's prompts are written.

    A slot keeps its braces, as ``{question}``; the core puts the text there. Several slots may
    fill one of the core's.

    Raises:
        InvalidParameterError: no slot fills the first of the core's.
    """
    marks = {name: f"{_MARK}{number}{_MARK}" for number, name in enumerate(slots)}
    prompt = template.format(llm=llm, **marks)
    first, needed = next(iter(slots.items()))
    if not any(marks[name] in prompt for name, own in slots.items() if own == needed):
        raise InvalidParameterError("template", prompt, f"one with the slot {{{first}}}")
    for name, own in slots.items():
        prompt = prompt.replace(marks[name], f"{{{own}}}")
    return prompt
