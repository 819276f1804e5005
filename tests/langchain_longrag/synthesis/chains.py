"""The two-turn chain over a few pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable

from langchain_longrag import (
    create_longrag_chain,
)
from tests.fakes.langchain import replying

QUESTION = "Who keeps harbour 3?"
LONG = "The harbour 3 is kept by Ada Byron, says the page."
SHORT = "Ada Byron"
TWO_TURNS = {"one_turn_max_tokens": 0}


class Fixed(BaseRetriever):
    """Returns the same documents for every query."""

    documents: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return self.documents


def page(number: int, words: int = 30) -> Document:
    text = f"Harbour {number} is kept by keeper{number}. " + f"word{number} " * words
    return Document(id=f"d{number}", page_content=text, metadata={"title": f"Page {number}"})


PAGES = [page(n) for n in range(3)]


def chain(llm: Any, documents: list[Document] | None = None, **settings: Any) -> Runnable[Any, Any]:
    retriever = Fixed(documents=PAGES if documents is None else documents)
    return create_longrag_chain(retriever, llm, **{**TWO_TURNS, **settings})


def by_turn(first: str = LONG, second: str = SHORT):
    """Return a model that knows by the prompt which turn it is."""
    return replying(lambda prompt: first if "<document" in prompt else second)


def merged(chunks: Iterator[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for piece in chunks:
        for key, value in piece.items():
            total[key] = total[key] + value if isinstance(value, str) and key in total else value
    return total
