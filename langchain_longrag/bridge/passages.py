"""LangChain's documents as passages, which know where their characters come from, and back.

What was left out of a text stands in no metadata but its place does: ``pieces`` names for each
stretch that was kept its characters ``start_index`` and ``end_index`` in the text as it was
retrieved, and ``at``, the character at which it now stands.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from numbers import Real
from typing import Any, Final

from langchain_core.documents import Document

from langchain_longrag.bridge.documents import is_described, is_unit, to_chunk, to_unit
from longrag.recipes.passages import Passage
from longrag.types import Member, shared_metadata, stable_id

_PIECE: Final = ("start_index", "end_index", "at")
_OF_THE_TEXT: Final = ("pieces", "members", "best_chunk")


def identity(document: Document) -> str:
    """Return the id of a document, or what else tells it from others."""
    if document.id is not None:
        return str(document.id)
    return stable_id(document.metadata.get("source", ""), document.page_content)


def to_passage(document: Document, id_: str | None = None) -> Passage:
    """Convert a document that any retriever returned; it is the passage's ``source``."""
    text, metadata = document.page_content, document.metadata
    id_ = identity(document) if id_ is None else id_
    score = number(metadata.get("score"))
    title = str(metadata.get("title") or "")
    if is_unit(document):
        unit = to_unit(document)
        best = metadata.get("best_chunk")
        best_text = best.get("text") if isinstance(best, Mapping) else None
        parts = (best_text,) if isinstance(best_text, str) and best_text != text else ()
        ids = tuple(dict.fromkeys(unit.doc_ids))
        return Passage(
            id_, text, unit.members, ids, "", score, parts, _kept(document, id_), document
        )
    if isinstance(metadata.get("doc_ids"), list) and "start_index" not in metadata:
        # A summary: its words stand in no document.
        ids = tuple(map(str, metadata["doc_ids"]))
        return Passage(id_, text, (), ids, title, score, (), _kept(document, id_), document)
    chunk = to_chunk(document, id_)
    kept = _kept(document, id_)
    # A document that names no other is one of its own.
    first = 0 if chunk.doc_id == id_ and not is_described(document) else chunk.doc_start
    members = tuple(
        Member(chunk.doc_id, title, one.start, first + one.doc_start, first + one.doc_end)
        if first >= 0
        else Member.unplaced(chunk.doc_id, title, one.start, one.end - one.start)
        for one in kept or (Member(id_, "", 0, 0, len(text)),)
    )
    return Passage(id_, text, members, (chunk.doc_id,), title, score, (), kept, document)


def _kept(document: Document, id_: str) -> tuple[Member, ...]:
    """Return the places of what an earlier compression kept, if that is still the text."""
    pieces = document.metadata.get("pieces")
    if not isinstance(pieces, list) or not all(
        isinstance(piece, Mapping) and all(isinstance(piece.get(key), int) for key in _PIECE)
        for piece in pieces
    ):
        return ()
    kept = tuple(
        Member(id_, "", piece["at"], piece["start_index"], piece["end_index"]) for piece in pieces
    )
    return kept if kept and kept[-1].end == len(document.page_content) else ()


def number(value: object) -> float | None:
    """Return a number as a float, and None for anything else; stores have types of their own."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else None


def from_passage(passage: Passage) -> Document:
    """Convert a passage back: a copy of its source with the score and the text it has now."""
    source = passage.source
    if not isinstance(source, Document):
        return _summary(passage)
    metadata = copy.deepcopy(source.metadata)
    if passage.score is not None:
        metadata["score"] = passage.score
    elif number(metadata.get("score")) is not None:
        # It was not scored by what ranked it last.
        del metadata["score"]
    if passage.text != source.page_content:
        metadata = _of_what_is_left(metadata, passage, source)
    return source.model_copy(update={"page_content": passage.text, "metadata": metadata})


def _of_what_is_left(
    metadata: dict[str, Any], passage: Passage, source: Document
) -> dict[str, Any]:
    best = metadata.get("best_chunk")
    for key in _OF_THE_TEXT:
        metadata.pop(key, None)
    if is_described(source):
        # It is not the place of the text that pieces are counted in.
        metadata.pop("start_index", None)
    if "complete" in metadata:
        metadata["complete"] = False
    if passage.kept:
        metadata["pieces"] = [
            {"start_index": one.doc_start, "end_index": one.doc_end, "at": one.start}
            for one in passage.kept
        ]
    if is_unit(source):
        metadata["doc_ids"] = list(passage.doc_ids)
        if passage.members:
            metadata["doc_ids"] = list(dict.fromkeys(one.doc_id for one in passage.members))
            metadata["members"] = [asdict(one) for one in passage.members]
            if isinstance(best, Mapping) and {"doc_start", "doc_end"} <= set(best):
                metadata["best_chunk"] = _best(best, passage)
    return metadata


def _best(chunk: Mapping[str, Any], passage: Passage) -> dict[str, Any]:
    """Return the member that has most of the best chunk, the first where none has any."""

    def overlap(member: Member) -> int:
        if member.doc_id != chunk.get("doc_id"):
            return 0
        if not member.placed:
            left = passage.text[member.start : member.end]
            return len(left) if left in str(chunk.get("text")) else 0
        start, end = int(chunk["doc_start"]), int(chunk["doc_end"])
        return min(member.doc_end, end) - max(member.doc_start, start)

    member = max(passage.members, key=overlap)
    if overlap(member) <= 0:
        member = passage.members[0]
    return {
        **chunk,
        "doc_id": member.doc_id,
        "title": member.title,
        "text": passage.text[member.start : member.end],
        "start": member.start,
        "end": member.end,
        "doc_start": member.doc_start,
        "doc_end": member.doc_end,
    }


def _summary(passage: Passage) -> Document:
    """Make a document of a summary of several, with the metadata on which they agree."""
    about: Sequence[Any] = passage.source if isinstance(passage.source, tuple) else ()
    sources = [one.source for one in about if isinstance(getattr(one, "source", None), Document)]
    metadata = copy.deepcopy(shared_metadata(source.metadata for source in sources))
    for key in (*_OF_THE_TEXT, "unit_id", "score", "start_index", "end_index"):
        metadata.pop(key, None)
    metadata["doc_ids"] = list(passage.doc_ids)
    if about:
        metadata["document_ids"] = [one.id for one in about]
    if passage.score is not None:
        metadata["score"] = passage.score
    return Document(id=passage.id, page_content=passage.text, metadata=metadata)


def to_passages(documents: Sequence[Document]) -> list[Passage]:
    """Convert documents; those that share an id are told apart by their place."""
    seen: dict[str, int] = {}
    passages = []
    for document in documents:
        id_ = identity(document)
        seen[id_] = seen.get(id_, 0) + 1
        passages.append(to_passage(document, id_ if seen[id_] == 1 else stable_id(id_, seen[id_])))
    return passages
