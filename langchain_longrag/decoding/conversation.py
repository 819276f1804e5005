"""From messages to the prompt that a model of completions goes on with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from longrag.decoding.answers import defuse, fill, prior_prompt, riches_prompt, with_markers
from longrag.errors import InvalidParameterError
from longrag.prompts import RICHES_STOP

OUTPUT: Final = "output"
"""Where the metadata of a response keeps all that was decoded."""

_SLOT: Final = "{question}"


class DecodingPrompt(NamedTuple):
    """A prompt for the decoder, its question, and the same prompt without any question."""

    prompt: str
    question: str
    prior_prompt: str


@dataclass(slots=True)
class _ChatTurn:
    questions: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


def check_template(template: str | None) -> None:
    """Check that a template has the slot for a question.

    Raises:
        InvalidParameterError: it has not.
    """
    if template is not None and (not isinstance(template, str) or _SLOT not in template):
        allowed = f"a string with the slot {_SLOT}"
        raise InvalidParameterError("prompt", template, allowed, "None takes messages as they are.")


def build_prompt(
    messages: Sequence[BaseMessage], template: str | None, *, markers: tuple[str, str]
) -> DecodingPrompt:
    """Put messages into a template: what was asked last is its question.

    Earlier turns stand before it, in the template's own form from the line with its slot on. What
    system messages say stands before all. Human and system messages cannot break the form.

    Args:
        messages: the conversation.
        template: a text with the slot ``{question}``; None joins the texts of the messages.
        markers: what stands around a span.

    Raises:
        InvalidParameterError: a message that is no text, of a tool, or blank; or nothing is asked
            last.
    """
    for message in messages:
        _check(message)
    turns = _read_turns(messages)
    if template is None:
        question = " ".join(turns[-1].questions) if turns else ""
        return DecodingPrompt("\n\n".join(message.text for message in messages), question, "")
    if not turns or isinstance(messages[-1], AIMessage):
        received = messages[-1].type if messages else "none"
        raise InvalidParameterError("messages", received, "messages of which a human's is the last")
    *earlier, last = turns
    question = " ".join(last.questions)
    head, form = _split_template(with_markers(template, markers))
    current = riches_prompt(question, form, markers=markers)
    before = (
        f"{fill(form, {'question': ' '.join(turn.questions)}, markers=markers)}"
        f" {' '.join(turn.outputs)}\n\n"
        for turn in earlier
    )
    texts = (message.text for message in messages if isinstance(message, SystemMessage))
    system = "".join(f"{_defuse_lines(text, markers)}\n\n" for text in texts)
    without = prior_prompt(template, markers=markers)
    return DecodingPrompt(f"{system}{head}{''.join(before)}{current}", question, without)


def render_message(message: BaseMessage, template: str | None, *, markers: tuple[str, str]) -> str:
    """Return what one message adds to a prompt, wherever it stands; see ``build_prompt``.

    Raises:
        InvalidParameterError: a message that is no text, or of a tool.
    """
    _check(message)
    if template is None:
        return f"{message.text}\n\n"
    if isinstance(message, HumanMessage):
        return fill(_split_template(template)[1], {"question": message.text}, markers=markers)
    if isinstance(message, AIMessage):
        return f" {_read_output(message)}\n\n"
    return f"{_defuse_lines(message.text, markers)}\n\n"


def _split_template(template: str) -> tuple[str, str]:
    """Return what stands before the line with the slot, and the form from there on."""
    begin = template.rfind("\n", 0, template.index(_SLOT)) + 1
    return template[:begin], template[begin:]


def _check(message: BaseMessage) -> None:
    if not isinstance(message, HumanMessage | SystemMessage | AIMessage):
        raise InvalidParameterError(
            "messages", message.type, "system, human and AI messages", "No tools can be called."
        )
    blocks = message.content if isinstance(message.content, list) else ()
    for block in blocks:
        # A model may have said more than its text, such as what it thought.
        if isinstance(block, dict) and block.get("type") != "text" and message.type != "ai":
            raise InvalidParameterError("messages", block.get("type"), "messages of text alone")


def _read_turns(messages: Sequence[BaseMessage]) -> list[_ChatTurn]:
    """Return what was asked and answered; an answer to no question is left out."""
    turns: list[_ChatTurn] = []
    for message in messages:
        if isinstance(message, HumanMessage):
            if not turns or turns[-1].outputs:
                turns.append(_ChatTurn())
            turns[-1].questions.append(message.text)
        elif isinstance(message, AIMessage) and turns:
            turns[-1].outputs.append(_read_output(message))
    return turns


def _read_output(message: AIMessage) -> str:
    """Return what a model wrote, as far as it answers its own question."""
    whole = message.response_metadata.get(OUTPUT)
    text = whole if isinstance(whole, str) else message.text
    for string in RICHES_STOP:
        text = text.partition(string)[0]
    return text.strip()


def _defuse_lines(text: str, markers: tuple[str, str]) -> str:
    return "\n".join(defuse(line, markers=markers) for line in text.splitlines())
