"""Retrieved texts as passages, and the metadata of a passage whose text has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longrag.integration.records import (
    best_chunk_record,
    member_records,
    piece_records,
    read_pieces,
    read_title,
)
from longrag.recipes.passages import Passage
from longrag.types import Chunk, LongUnit, Member, shared_metadata

SUMMARY_KEYS = ("doc_ids", "source_ids")
"""The metadata of one summary of several texts: their documents, and their own ids."""


def unit_passage(
    unit: LongUnit, id_: str, metadata: Mapping[str, Any], *, score: float | None, source: object
) -> Passage:
    """Make a passage from a unit; a reranker reads its best chunk."""
    best = metadata.get("best_chunk")
    best_text = best.get("text") if isinstance(best, Mapping) else None
    parts = (best_text,) if isinstance(best_text, str) and best_text != unit.text else ()
    kept = read_pieces(metadata, unit.text)
    return Passage(id_, unit.text, unit.members, unit.doc_ids, "", score, parts, kept, source)


def text_passage(
    id_: str,
    text: str,
    metadata: Mapping[str, Any],
    *,
    doc_id: str,
    doc_start: int,
    score: float | None,
    source: object,
) -> Passage:
    """Make a passage from a text that is not a unit.

    Args:
        id_: the passage's identity.
        text: what is read.
        metadata: the text's metadata, with the ``pieces`` of an earlier compression.
        doc_id: the document the text was cut from.
        doc_start: the character of the document at which the text as it was retrieved begins; -1
            where that is not known.
        score: that of the last ranking.
        source: what the retriever returned.
    """
    title = read_title(metadata)
    kept = read_pieces(metadata, text)
    stretches = [(one.at, one.start, one.end) for one in kept] or [(0, 0, len(text))]
    members = tuple(
        Member(doc_id, title, at, doc_start + start, doc_start + end)
        if doc_start >= 0
        else Member.unplaced(doc_id, title, at, end - start)
        for at, start, end in stretches
    )
    return Passage(id_, text, members, (doc_id,), title, score, (), kept, source)


def summary_passage(
    id_: str, text: str, metadata: Mapping[str, Any], *, score: float | None, source: object
) -> Passage:
    """Make a passage of a summary of the documents in ``metadata["doc_ids"]``.

    Its words are in no document, so it has no members.
    """
    doc_ids = tuple(map(str, metadata["doc_ids"]))
    kept = read_pieces(metadata, text)
    return Passage(id_, text, (), doc_ids, read_title(metadata), score, (), kept, source)


def rewrite_metadata(metadata: dict[str, Any], passage: Passage, *, unit: bool) -> dict[str, Any]:
    """Return the metadata of a text that is now ``passage.text``.

    ``pieces`` name what was kept of it. A unit's ``members`` and ``best_chunk`` are moved to what
    is left; they are empty and missing where nothing is left of any document, as in a summary. Of a
    text that is not a ``unit`` these keys are the caller's own and stay.
    """
    rewritten = {key: value for key, value in metadata.items() if key != "pieces"}
    if passage.kept:
        rewritten["pieces"] = piece_records(passage.kept)
    if not unit:
        return rewritten
    best = rewritten.pop("best_chunk", None)
    rewritten["members"] = member_records(passage.members)
    if "complete" in rewritten:
        rewritten["complete"] = False
    if passage.members:
        rewritten["doc_ids"] = list(dict.fromkeys(one.doc_id for one in passage.members))
        if isinstance(best, Mapping) and {"doc_start", "doc_end"} <= set(best):
            rewritten["best_chunk"] = _rest_of_best_chunk(best, passage)
    return rewritten


def _rest_of_best_chunk(chunk: Mapping[str, Any], passage: Passage) -> dict[str, Any]:
    """Return the member that has most of the best chunk, the first where no member has any."""

    def overlap(member: Member) -> int:
        if member.doc_id != chunk.get("doc_id"):
            return 0
        if not member.placed:
            left = passage.text[member.start : member.end]
            return len(left) if left in str(chunk.get("text")) else 0
        start, end = int(chunk["doc_start"]), int(chunk["doc_end"])
        return min(member.doc_end, end) - max(member.doc_start, start)

    best = max(passage.members, key=overlap)
    member = best if overlap(best) > 0 else passage.members[0]
    text = passage.text[member.start : member.end]
    rest = Chunk(
        id=str(chunk.get("id")),
        unit_id="",
        doc_id=member.doc_id,
        title=member.title,
        text=text,
        start=member.start,
        end=member.end,
        doc_start=member.doc_start,
        doc_end=member.doc_end,
    )
    return best_chunk_record(rest)


def summary_metadata(
    sources: Sequence[Mapping[str, Any]],
    passage: Passage,
    source_ids: Sequence[str],
    *,
    units: bool,
) -> dict[str, Any]:
    """Return the metadata of one summary of several texts: what these agree on, and their ids.

    ``units`` tells whether any of them is a unit; otherwise the keys of units are the caller's own.
    """
    shared = shared_metadata(sources)
    if units:
        shared.pop("unit_id", None)
    rewritten = rewrite_metadata(shared, passage, unit=units)
    return {**rewritten, "doc_ids": list(passage.doc_ids), "source_ids": list(source_ids)}
