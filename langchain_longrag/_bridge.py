"""Where LangChain's values and calls meet the core's: every conversion stands here.

A unit's metadata carries its member documents in ``doc_ids`` and, with their offsets, in
``members``; a chunk's carries ``unit_id``, ``doc_id`` and ``start_index``, the character of its
document where it begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.stores import BaseStore
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from longrag import types as core
from longrag.calls import Embed, Method, Steps
from longrag.errors import StoreError
from longrag.retrieval.assembly import unit_of_chunks

UNIT_KEYS = ("unit_id", "doc_ids", "members")


def to_core(documents: Sequence[Document], title_key: str) -> list[core.Document]:
    """Convert documents; those without an id get one from their source and text.

    Documents that are equal in both are numbered, so that none is lost.
    """
    seen: Counter[str] = Counter()
    converted = []
    for document in documents:
        id_ = document.id
        if id_ is None:
            id_ = core.stable_id(document.metadata.get("source", ""), document.page_content)
            seen[id_] += 1
            id_ = id_ if seen[id_] == 1 else core.stable_id(id_, seen[id_])
        title = document.metadata.get(title_key)
        converted.append(
            core.Document(
                id_, document.page_content, "" if title is None else str(title), document.metadata
            )
        )
    return converted


def from_unit(unit: core.LongUnit, sources: Mapping[str, core.Document]) -> Document:
    """Convert a unit; it keeps the metadata on which all its documents agree."""
    first, *others = (sources[doc_id].metadata for doc_id in unit.doc_ids)
    shared = {
        key: value
        for key, value in first.items()
        if all(key in other and other[key] == value for other in others)
    }
    return Document(id=unit.id, page_content=unit.text, metadata={**shared, **_unit_metadata(unit)})


def _unit_metadata(unit: core.LongUnit) -> dict[str, Any]:
    return {
        "unit_id": unit.id,
        "doc_ids": list(unit.doc_ids),
        "members": [asdict(member) for member in unit.members],
    }


def from_chunk(chunk: core.Chunk, source: core.Document) -> Document:
    """Convert a chunk; it keeps its document's metadata."""
    return Document(
        id=chunk.id,
        page_content=chunk.text,
        metadata={
            **source.metadata,
            **({"title": chunk.title} if chunk.title else {}),
            "unit_id": chunk.unit_id,
            "doc_id": chunk.doc_id,
            "start_index": chunk.doc_start,
        },
    )


def to_unit(document: Document) -> core.LongUnit:
    """Convert a unit back; a document without members is one member itself."""
    text, metadata = document.page_content, document.metadata
    id_ = str(document.id or metadata.get("unit_id") or core.stable_id(text))
    members = tuple(core.Member(**member) for member in metadata.get("members", ()))
    if not members:
        doc_id = str(metadata.get("doc_id") or metadata.get("source") or id_)
        members = (core.Member(doc_id, str(metadata.get("title") or ""), 0, 0, len(text)),)
    return core.LongUnit(id_, text, members, 0)


def to_chunk(document: Document, unit_id: str) -> core.Chunk:
    """Convert a chunk back; one without ``start_index`` is taken to begin its document."""
    text, metadata = document.page_content, document.metadata
    start = metadata.get("start_index", 0)
    return core.Chunk(
        id=str(document.id or core.stable_id(unit_id, start, text)),
        unit_id=unit_id,
        doc_id=str(metadata.get("doc_id") or unit_id),
        title=str(metadata.get("title") or ""),
        text=text,
        start=start,
        end=start + len(text),
        doc_start=start,
        doc_end=start + len(text),
    )


def unit_key_of(document: Document, unit_key: str) -> str:
    """Return the id of the unit a chunk belongs to.

    Raises:
        StoreError: the chunk names no unit under ``unit_key``.
    """
    value = document.metadata.get(unit_key)
    if value is None:
        raise StoreError(
            f"document {document.id} names no unit under {unit_key!r}: make chunks with"
            " LongUnitTransformer, or pass the metadata key that identifies a unit, such as"
            " unit_key='source'"
        )
    return str(value)


def units_of_documents(
    documents: Sequence[Document], unit_key: str, count_tokens: core.TokenCounter
) -> tuple[list[core.LongUnit], list[core.Chunk]]:
    """Sort the output of ``LongUnitTransformer``, or chunks that name their unit, into both."""
    given = {str(d.id): to_unit(d) for d in documents if "doc_ids" in d.metadata}
    grouped: dict[str, list[core.Chunk]] = {}
    for document in documents:
        if "doc_ids" not in document.metadata and document.page_content.strip():
            unit_id = unit_key_of(document, unit_key)
            grouped.setdefault(unit_id, []).append(to_chunk(document, unit_id))
    units = [
        given.get(unit_id) or unit_of_chunks(unit_id, own, count_tokens=count_tokens)
        for unit_id, own in sorted(grouped.items())
    ]
    return units, [chunk for _, own in sorted(grouped.items()) for chunk in own]


def from_result(found: core.RetrievedUnit, original: Document | None = None) -> Document:
    """Convert a retrieved unit; metadata of the stored unit is kept where there is one."""
    best = asdict(found.best_chunk)
    del best["unit_id"]
    return Document(
        id=found.unit.id,
        page_content=found.unit.text,
        metadata={
            **(original.metadata if original is not None else {}),
            **_unit_metadata(found.unit),
            "score": found.score,
            "best_chunk": best,
            "exact": found.exact,
            "complete": found.complete,
        },
    )


def to_retrieved(document: Document) -> core.RetrievedUnit:
    """Convert any retrieved document; one that is not a unit is a unit of one document."""
    unit = to_unit(document)
    best = document.metadata.get("best_chunk")
    chunk = (
        core.Chunk(unit_id=unit.id, **best)
        if isinstance(best, Mapping)
        else to_chunk(document, unit.members[0].doc_id)
    )
    return core.RetrievedUnit(unit, float(document.metadata.get("score", 0.0)), chunk)


def embed(model: Embeddings, request: Embed) -> Steps[Any]:
    """Embed by the model's own methods for documents and queries."""
    if request.role == "document":
        vectors = yield Method(model, "embed_documents", (list(request.texts),))
    else:
        vectors = []
        for text in request.texts:
            vectors.append((yield Method(model, "embed_query", (text,))))
    return np.asarray(vectors)


def fetch_units(
    docstore: BaseStore[str, Document] | None, unit_ids: Sequence[str]
) -> Steps[dict[str, core.LongUnit]]:
    """Get whole units from a document store, without those it does not hold."""
    if docstore is None:
        return {}
    documents = yield Method(docstore, "mget", (list(unit_ids),))
    return {
        unit_id: to_unit(document.model_copy(update={"id": unit_id}))
        for unit_id, document in zip(unit_ids, documents, strict=True)
        if document is not None
    }


def ranks_exactly(store: VectorStore) -> bool:
    """Whether a store is known to rank by an exhaustive search."""
    return isinstance(store, InMemoryVectorStore)
