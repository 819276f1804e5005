"""Converts LlamaIndex's messages to the prompt of a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock

from longrag.decoding.conversation import DecodingPrompt, Message, Role, build_prompt
from longrag.errors import InvalidParameterError
from longrag.prompts import RICHES_SINGLE_HOP

_ROLES: Final[dict[MessageRole, Role]] = {
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "system",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
}


@dataclass(frozen=True, slots=True)
class EvidencePrompt:
    """Asks for evidence and an answer, by ``longrag.prompts.RICHES_SINGLE_HOP``.

    The last messages of the user are the question; earlier questions and answers, and system
    messages, come before it.

    Args:
        markers: the decoder's, which the examples of the prompt show.
    """

    markers: tuple[str, str]

    def __call__(self, messages: Sequence[ChatMessage]) -> str:
        """Return the prompt of messages."""
        return self.build(messages).prompt

    def build(self, messages: Sequence[ChatMessage]) -> DecodingPrompt:
        """Return the prompt of messages, its question, and the prompt without a question.

        Raises:
            InvalidParameterError: a message has parts that are not text or is a tool's, or the last
                message is not the user's or is blank.
        """
        read = [_to_message(message) for message in messages]
        return build_prompt(read, RICHES_SINGLE_HOP, markers=self.markers)


def _to_message(message: ChatMessage) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidParameterError(
            "the role of a message",
            message.role.value,
            "one of system, user and assistant",
            "No tools are called.",
        )
    for block in message.blocks:
        # A model's message also has the blocks of its citations.
        if not isinstance(block, TextBlock) and role != "assistant":
            raise InvalidParameterError("a block of a message", block.block_type, "a text")
    return Message(role, message.content or "")
