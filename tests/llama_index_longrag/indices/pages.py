"""The corpus that the tests of a changing LlamaIndex index build, change and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llama_index.core import (
    Document,
    StorageContext,
    load_index_from_storage,
)

from llama_index_longrag import LongRAGIndex
from tests.fakes.llama_index import HashEmbedding

SETTINGS: dict[str, Any] = {"max_tokens": 150, "chunk_size": 24}
QUESTION = "a market in town 3"


def page(number: int, version: int = 0, **metadata: Any) -> Document:
    """A page that links to two others by their path, one of them by its version."""
    targets = [(number * 7 + 1) % 40, (number + version + 3) % 40]
    links = " ".join(f"[see](page-{target}.md)" for target in targets)
    return Document(
        id_=f"page-{number}.md",
        text=f"Page {number} tells of town {number % 5}. It has {number * 3} gates and a market."
        f"\n\nVersion {version} of page {number} adds this sentence to it. {links}",
        metadata={"title": f"Page {number}", "version": version, **metadata},
        excluded_embed_metadata_keys=["version"],
    )


def build(documents: list[Document], model: HashEmbedding | None = None, **kw: Any) -> LongRAGIndex:
    settings = {**SETTINGS, **kw}
    return LongRAGIndex.from_documents(documents, embed_model=model or HashEmbedding(), **settings)


def stored(index: LongRAGIndex) -> tuple[Any, ...]:
    """What the three stores hold; hashes apart, which bare nodes do not have."""
    docstore = index.docstore.to_dict()
    return (
        docstore.get("docstore/data", {}),
        docstore.get("docstore/ref_doc_info", {}),
        index.storage_context.vector_store.to_dict(),
        index.index_struct.documents,
        index.index_struct.units,
    )


def state(index: LongRAGIndex) -> tuple[Any, ...]:
    units = index.corpus.index
    return units.units, units.chunks, stored(index), found(index)


def found(index: LongRAGIndex) -> list[tuple[str, float, str]]:
    nodes = index.as_retriever(similarity_top_k=99).retrieve(QUESTION)
    return [(node.node_id, node.score, node.text) for node in nodes]


def paid(model: HashEmbedding) -> list[str]:
    return [text for how, text in model.asked if "query" not in how]


def reload(index: LongRAGIndex, folder: Path, model: HashEmbedding | None = None, **kw: Any) -> Any:
    index.storage_context.persist(folder)
    context = StorageContext.from_defaults(persist_dir=str(folder))
    return load_index_from_storage(context, embed_model=model or HashEmbedding(), **kw)
