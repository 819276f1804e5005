"""The indexes that live in a database, of both frameworks, called with or without an event loop."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from typing import Any

from langchain_core.documents import Document as LangChainDocument
from llama_index.core import Document as LlamaIndexDocument

import langchain_longrag
import llama_index_longrag
from longrag.retrieval import TreeSearchSettings
from tests.fakes.langchain import HashEmbeddings
from tests.fakes.llama_index import HashEmbedding, tokenizer
from tests.settings import counting, grouped

KINDS = ("LongRAGIndex", "RaptorIndex")
VERSION = re.compile(r"(\w+) was described in version (\d+)\.")
QUESTION = "Which keeper wrote a version down?"
# More than any test puts in, so that a question is answered with the whole index.
ALL, ENOUGH = 500, 100_000


def page_text(name: str, version: int) -> str:
    return f"{name} was described in version {version}. Its keeper wrote {name} down."


class Opened(ABC):
    """An index that was opened in a database, whose pages are named and have a version."""

    def __init__(self, kind: str, place: Any, manner: str = "sync", **settings: Any) -> None:
        self.kind = kind
        self._manner = manner
        given = {"summarizer": "extractive"} if kind == "RaptorIndex" else {}
        self.index = self._open(place, given | settings)

    def put(self, pages: dict[str, int]) -> None:
        """Put in the versions of pages, in one change."""
        texts = {name: page_text(name, version) for name, version in pages.items()}
        self._do("put", texts)

    def drop(self, name: str) -> None:
        """Take one page out."""
        self._do("drop", name)

    def pages(self) -> dict[str, int]:
        """Ask for everything; return the version of each page.

        Raises:
            AssertionError: a page was answered in two versions.
        """
        found: dict[str, int] = {}
        for one in self.answer():
            for name, version in VERSION.findall(one[0]):
                assert found.setdefault(name, int(version)) == int(version), (name, version, found)
        return found

    def answer(self) -> list[tuple[str, Any]]:
        """Ask for everything; return the texts, each with what stands beside it, in order."""
        return self._do("ask", QUESTION)

    def _do(self, what: str, *given: Any) -> Any:
        if self._manner == "async":
            return asyncio.run(getattr(self, f"_a{what}")(*given))
        return getattr(self, f"_{what}")(*given)

    @abstractmethod
    def _open(self, place: Any, settings: dict[str, Any]) -> Any: ...


class LlamaIndexes(Opened):
    def _open(self, place, settings):
        own = {"embed_model": HashEmbedding(), **counting(self.kind, tokenizer)}
        if self.kind == "RaptorIndex":
            own["num_workers"] = 1
            own, settings = grouped(**own, **settings), {}
        return getattr(llama_index_longrag, self.kind).open(place, **own, **settings)

    def _put(self, texts):
        self.index.refresh_ref_docs(self._documents(texts))

    async def _aput(self, texts):
        await self.index.arefresh_ref_docs(self._documents(texts))

    def _documents(self, texts):
        return [LlamaIndexDocument(text=text, id_=name) for name, text in texts.items()]

    def _drop(self, name):
        self.index.delete_ref_doc(name)

    async def _adrop(self, name):
        await self.index.adelete_ref_doc(name)

    def _ask(self, question):
        return self._read(self._retriever().retrieve(question))

    async def _aask(self, question):
        return self._read(await self._retriever().aretrieve(question))

    def _retriever(self):
        if self.kind == "RaptorIndex":
            return self.index.as_retriever(
                token_budget=ENOUGH, search=TreeSearchSettings(redundancy=None)
            )
        return self.index.as_retriever(similarity_top_k=ALL)

    def _read(self, nodes):
        return [(one.node.get_content(), one.score) for one in nodes]


class LangChains(Opened):
    def _open(self, place, settings):
        if self.kind == "RaptorIndex":
            settings = grouped(**settings)
            own = {"token_budget": ENOUGH, "search": TreeSearchSettings(redundancy=None)}
        else:
            own = {"k": ALL}
        made = getattr(langchain_longrag, self.kind)
        return made.open(place, HashEmbeddings(), **own, **settings)

    def _put(self, texts):
        self.index.upsert(self._documents(texts))

    async def _aput(self, texts):
        await self.index.aupsert(self._documents(texts))

    def _documents(self, texts):
        return [LangChainDocument(id=name, page_content=text) for name, text in texts.items()]

    def _drop(self, name):
        self.index.delete([name])

    async def _adrop(self, name):
        await self.index.adelete([name])

    def _ask(self, question):
        return self._read(self.index.invoke(question))

    async def _aask(self, question):
        return self._read(await self.index.ainvoke(question))

    def _read(self, documents):
        return [(one.page_content, one.metadata.get("score")) for one in documents]


FRAMEWORKS = {"llama_index": LlamaIndexes, "langchain": LangChains}
EVERY_KIND = [(framework, kind) for framework in FRAMEWORKS for kind in KINDS]


def opened(framework: str, kind: str, place: Any, manner: str = "sync", **settings: Any) -> Opened:
    return FRAMEWORKS[framework](kind, place, manner, **settings)
