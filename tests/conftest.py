"""The toy corpus every part of the package is run over."""

import pytest

from longrag.types import Document

TOPICS = ["harbour", "orchard", "railway", "glacier", "library", "foundry", "observatory"]


def page(number: int, topic: str, targets: list[int]) -> Document:
    links = " ".join(f"See [{t}](page-{t:02d}.md)." for t in targets)
    facts = " ".join(
        f"Fact {n} about the {topic} number {number}:"
        f" keeper {topic}{number}x{n} wrote {n * 7} logs."
        for n in range(12)
    )
    return Document(
        id=f"page-{number:02d}.md",
        title=f"The {topic} {number}",
        text=f"The {topic} of town {number} is old.\n\n{facts}\n\n{links}\n",
        metadata={"title": f"The {topic} {number}", "town": number},
    )


@pytest.fixture(scope="session")
def corpus() -> list[Document]:
    """Twenty-eight linked pages, an empty one, and one in Chinese."""
    pages = [
        page(n, TOPICS[n % 7], [(n + 7) % 28, (n * 3 + 1) % 28] if n % 4 else []) for n in range(28)
    ]
    return [
        *pages,
        Document(
            id="page-28.md", title="Nothing yet", text=" \n", metadata={"title": "Nothing yet"}
        ),
        Document(
            id="page-29.md",
            title="茶馆",
            text="茶馆建于1893年。老板是王利发。茶馆里常有人谈论国事。",
            metadata={"title": "茶馆"},
        ),
    ]
