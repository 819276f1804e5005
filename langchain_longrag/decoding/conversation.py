"""Messages of LangChain as a decoder's prompt takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from longrag.errors import InvalidParameterError
from longrag.integration.chat_prompts import Message

OUTPUT: Final = "output"
"""Where the metadata of a response keeps all that was decoded."""


def to_messages(messages: Sequence[BaseMessage], *, decoded: bool = True) -> list[Message]:
    """Return the roles and texts of messages.

    Args:
        messages: the conversation.
        decoded: take all that was decoded for the text of a model's message, not only what it
            shows of it.

    Raises:
        InvalidParameterError: a message is not text, or is a tool's.
    """
    return [_to_message(message, decoded) for message in messages]


def _to_message(message: BaseMessage, decoded: bool) -> Message:
    if not isinstance(message, HumanMessage | SystemMessage | AIMessage):
        raise InvalidParameterError(
            "messages", message.type, "system, human and AI messages", "No tools can be called."
        )
    if isinstance(message, AIMessage):
        whole = message.response_metadata.get(OUTPUT) if decoded else None
        return Message("assistant", whole if isinstance(whole, str) else message.text)
    for block in message.content if isinstance(message.content, list) else ():
        if isinstance(block, dict) and block.get("type") != "text":
            raise InvalidParameterError("messages", block.get("type"), "messages of text alone")
    return Message("user" if isinstance(message, HumanMessage) else "system", message.text)
