"""Pages, a scorer that counts words, retrievers of every temper, and a record of what is called."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig

PAGES = [
    Document(
        f"Town{n} keeps {n * 3} boats. The harbour{n} is old. Nobody counts the gulls.",
        id=f"p{n:02}",
        metadata={"title": f"Page {n}", "lang": "en"},
    )
    for n in range(12)
]


class Words:
    """Scores a text by the question's words in it, and remembers what it was asked and where."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []
        self.threads: list[int] = []

    def __call__(self, query: str, texts: Any, /) -> Any:
        self.asked.append((query, list(texts)))
        self.threads.append(threading.get_ident())
        asked = query.lower().rstrip("?").split()
        return np.array([sum(w in t.lower().split() for w in asked) for t in texts], np.float32)


class Plain(BaseRetriever):
    """Returns its documents in their order, without scores and without a ``k``."""

    found: list[Document]
    queries: list[str] = []  # noqa: RUF012 - pydantic copies defaults
    configs: list[Any] = []  # noqa: RUF012

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        self.queries.append(query)
        self.configs.append(run_manager.parent_run_id)
        return self.found


class Counting(Plain):
    """Takes ``k``, and remembers it."""

    asked: list[int | None] = []  # noqa: RUF012

    def _get_relevant_documents(
        self, query: str, *, run_manager: Any, k: int | None = None
    ) -> list[Document]:
        self.asked.append(k)
        return super()._get_relevant_documents(query, run_manager=run_manager)[:k]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: Any, k: int | None = None
    ) -> list[Document]:
        return self._get_relevant_documents(query, run_manager=run_manager, k=k)


class Seen(BaseCallbackHandler):
    """Notes the runs of models and retrievers, and what they ran in."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, bool]] = []

    def on_chat_model_start(self, *args: Any, parent_run_id: Any = None, **kwargs: Any) -> None:
        self.runs.append(("model", parent_run_id is not None))

    def on_retriever_start(self, *args: Any, parent_run_id: Any = None, **kwargs: Any) -> None:
        self.runs.append(("retriever", parent_run_id is not None))


class AsyncSeen(AsyncCallbackHandler):
    """The same for async callbacks."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, bool]] = []

    async def on_chat_model_start(
        self, *args: Any, parent_run_id: Any = None, **kwargs: Any
    ) -> None:
        self.runs.append(("model", parent_run_id is not None))

    async def on_retriever_start(
        self, *args: Any, parent_run_id: Any = None, **kwargs: Any
    ) -> None:
        self.runs.append(("retriever", parent_run_id is not None))


def seeing(handler: Any) -> RunnableConfig:
    return RunnableConfig(callbacks=[handler])


def ids(documents: Any) -> list[Any]:
    return [document.id for document in documents]


def scores(documents: Any) -> list[Any]:
    return [document.metadata.get("score") for document in documents]
