"""From a conversation to the prompt that a decoder continues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from longrag.decoding import riches_prompt
from longrag.decoding.answers import defuse, fill, prior_prompt, with_markers
from longrag.errors import InvalidParameterError
from longrag.prompts import RICHES_STOP

Role: TypeAlias = Literal["system", "user", "assistant"]

_SLOT: Final = "{question}"


class Message(NamedTuple):
    """One message of a conversation."""

    role: Role
    text: str


class DecodingPrompt(NamedTuple):
    """A prompt for the decoder, its question, and the same prompt without any question."""

    prompt: str
    question: str
    prior_prompt: str


@dataclass(slots=True)
class _Exchange:
    questions: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


def check_template(template: str | None) -> None:
    """Check that a template has the slot for a question.

    Raises:
        InvalidParameterError: the slot is missing.
    """
    if template is not None and (not isinstance(template, str) or _SLOT not in template):
        raise InvalidParameterError(
            "prompt",
            template,
            f"a string with the slot {_SLOT}",
            "None takes messages as they are.",
        )


def build_prompt(
    messages: Sequence[Message], template: str | None, *, markers: tuple[str, str]
) -> DecodingPrompt:
    """Put messages into a template: what was asked last is its question.

    Several messages of the user in a row are one question. Earlier questions and answers come
    before it, in the template's own form from the line with its slot on. System messages come
    first. Messages of the user and the system cannot break the form.

    Args:
        messages: the conversation.
        template: a text with the slot ``{question}``; None joins the texts of the messages.
        markers: what opens and closes a span.

    Raises:
        InvalidParameterError: a message of the user is blank, or the last message is not the
            user's.
    """
    exchanges = _read_exchanges(messages)
    if template is None:
        question = " ".join(exchanges[-1].questions) if exchanges else ""
        return DecodingPrompt("\n\n".join(message.text for message in messages), question, "")
    if not exchanges or messages[-1].role == "assistant":
        raise InvalidParameterError.because(
            f"The last message must be a user's, got {messages[-1].role if messages else 'none'!r}."
        )
    *earlier, last = exchanges
    question = " ".join(last.questions)
    head, form = _split_template(with_markers(template, markers))
    current = riches_prompt(question, form, markers=markers)
    before = (
        f"{fill(form, {'question': ' '.join(one.questions)}, markers=markers)}"
        f" {' '.join(one.outputs)}\n\n"
        for one in earlier
    )
    texts = (message.text for message in messages if message.role == "system")
    system = "".join(f"{_defuse_lines(text, markers)}\n\n" for text in texts)
    without = prior_prompt(template, markers=markers)
    return DecodingPrompt(f"{system}{head}{''.join(before)}{current}", question, without)


def render_message(message: Message, template: str | None, *, markers: tuple[str, str]) -> str:
    """Return what one message adds to a prompt, at any place in it; see ``build_prompt``."""
    if template is None:
        return f"{message.text}\n\n"
    if message.role == "user":
        return fill(_split_template(template)[1], {"question": message.text}, markers=markers)
    if message.role == "assistant":
        return f" {_own_answer(message.text)}\n\n"
    return f"{_defuse_lines(message.text, markers)}\n\n"


def _split_template(template: str) -> tuple[str, str]:
    """Return what is before the line with the slot, and the form from there on."""
    begin = template.rfind("\n", 0, template.index(_SLOT)) + 1
    return template[:begin], template[begin:]


def _read_exchanges(messages: Sequence[Message]) -> list[_Exchange]:
    """Return what was asked and answered; an answer to no question is left out."""
    exchanges: list[_Exchange] = []
    for message in messages:
        if message.role == "user":
            if not exchanges or exchanges[-1].outputs:
                exchanges.append(_Exchange())
            exchanges[-1].questions.append(message.text)
        elif message.role == "assistant" and exchanges:
            exchanges[-1].outputs.append(_own_answer(message.text))
    return exchanges


def _own_answer(text: str) -> str:
    """Return what a model wrote, up to where it asks itself another question."""
    for string in RICHES_STOP:
        text = text.partition(string)[0]
    return text.strip()


def _defuse_lines(text: str, markers: tuple[str, str]) -> str:
    return "\n".join(defuse(line, markers=markers) for line in text.splitlines())
