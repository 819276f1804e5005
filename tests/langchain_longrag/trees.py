"""Pages whose words are marked, a model that repeats the marks, and trees over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import Document

from langchain_longrag import (
    RaptorIndex,
)
from tests.fakes.langchain import HashEmbeddings, ScriptedChatModel, replying
from tests.settings import grouped

SETTINGS: dict[str, Any] = {"chunk_size": 20, "clusterer": "contiguous"}


def page(number: int, version: int = 0) -> Document:
    """A page of three leaves, whose own words are all marked."""
    name = f"secret{number}v{version}"
    return Document(
        f"Page {name} tells of the town {number % 5} and of its gates and its market.\n\n"
        f"The mayor of {name} counts {number * 3} boats in the old harbour each day.\n\n"
        f"Nobody in {name} knows how many gulls there are above the roofs of it.",
        id=f"page-{number}",
        metadata={"source": f"page-{number}.md", "lang": "en", "number": number},
    )


PAGES = [page(n) for n in range(30)]


def summary(prompt: str) -> str:
    """Every marked word of the passages, so that no summary forgets what it was made from."""
    words = (word.strip(".,") for word in prompt.split())
    named = sorted({word for word in words if word.startswith("secret")})
    return "A summary of " + " and ".join(named) + "."


def model() -> ScriptedChatModel:
    return replying(summary)


def build(documents: Sequence[Document] = PAGES, **settings: Any) -> RaptorIndex:
    given = {"llm": model(), **SETTINGS, **settings}
    embedding = given.pop("embedding", None) or HashEmbeddings()
    return RaptorIndex.from_documents(documents, embedding, **grouped(**given))


def state(built: RaptorIndex) -> tuple[Any, ...]:
    """Documents, nodes, vectors and what is found: all there is to an index."""
    found = built.invoke("boats in the harbour")
    nodes = list(built.tree.nodes.values())
    return dict(built._index.documents), nodes, built.tree.vectors.tobytes(), found


def summaries(built: RaptorIndex) -> list[str]:
    return [node.text for node in built.tree.nodes.values() if node.level]


def prompts_of(built: RaptorIndex) -> list[str]:
    assert isinstance(built.llm, ScriptedChatModel)
    return built.llm.prompts
