"""What chat models that only quote say to those who give them tools or a schema."""

from __future__ import annotations

from typing import Any, Final, NoReturn

from langchain_core.language_models import BaseChatModel

from longrag.errors import UnsupportedError

_TOOLS: Final = (
    "call tools: give tools to another chat model, and let its agent ask this one by a tool, such"
    " as create_longrag_tool or a chain's as_tool()"
)
_SCHEMA: Final = (
    "fill in a schema: read what it quotes in the message's annotations or in a chain's context, or"
    " ask another chat model for the schema"
)


class _Refused:
    """A method that a model refuses.

    Of the class it is the base's method, by which LangChain tells models without tools from others.
    """

    def __init__(self, name: str, why: str) -> None:
        self._name, self._why = name, why

    def __get__(self, model: object, owner: type) -> Any:
        def refuse(*args: object, **kwargs: object) -> NoReturn:
            raise UnsupportedError(f"{owner.__name__} only quotes and cannot {self._why}")

        return getattr(BaseChatModel, self._name) if model is None else refuse


class QuotesOnly:
    """A chat model without tools and schemas, which says so."""

    bind_tools = _Refused("bind_tools", _TOOLS)
    with_structured_output = _Refused("with_structured_output", _SCHEMA)
