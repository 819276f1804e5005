"""Converts LangChain's messages for the prompt of a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from longrag.decoding.conversation import Message
from longrag.errors import InvalidParameterError

OUTPUT: Final = "output"
"""The key of a response's metadata that holds the whole decoded text."""


def to_messages(messages: Sequence[BaseMessage], *, decoded: bool = True) -> list[Message]:
    """Return the roles and texts of messages.

    Args:
        messages: the conversation.
        decoded: for an AI message, return the whole decoded text and not only the part that was
            shown.

    Raises:
        InvalidParameterError: a message has parts that are not text, or is a tool's.
    """
    return [_to_message(message, decoded) for message in messages]


def _to_message(message: BaseMessage, decoded: bool) -> Message:
    if not isinstance(message, HumanMessage | SystemMessage | AIMessage):
        raise InvalidParameterError(
            "a message",
            message.type,
            "a system, human or AI message",
            "No tools can be called.",
        )
    if isinstance(message, AIMessage):
        whole = message.response_metadata.get(OUTPUT) if decoded else None
        return Message("assistant", whole if isinstance(whole, str) else message.text)
    for block in message.content if isinstance(message.content, list) else ():
        if isinstance(block, dict) and block.get("type") != "text":
            raise InvalidParameterError("a block of a message", block.get("type"), "a text")
    return Message("user" if isinstance(message, HumanMessage) else "system", message.text)
