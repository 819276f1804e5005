"""The text of what a model returned, whatever the class of the model."""

from langchain_core.messages import BaseMessage


def reply_text(reply: object) -> object:
    """Return the text of a message; anything else as it is."""
    return str(reply.text) if isinstance(reply, BaseMessage) else reply
