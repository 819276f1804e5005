"""What was kept of nodes: rewritten copies that know the places of their pieces and members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore

from llama_index_longrag.bridge.documents import copied
from llama_index_longrag.bridge.nodes import is_unit, to_unit
from longrag.refinement.pieces import Compressed, Piece
from longrag.types import LongUnit, Member


def extracts(
    nodes: Sequence[NodeWithScore], texts: Sequence[str], kept: Compressed
) -> list[NodeWithScore]:
    """Return what was kept of nodes that had these texts; those without text pass through."""
    results = []
    for index, (result, before) in enumerate(zip(nodes, texts, strict=True)):
        text = kept.texts[index]
        if not before.strip() or text == before.strip():
            results.append(result)
        elif text:
            pieces = [piece for piece in kept.pieces if piece.text_index == index]
            node = rewritten(result.node, text)
            node.metadata["pieces"] = [
                {
                    "start_char": piece.start,
                    "end_char": piece.end,
                    "at": piece.at,
                    "complete": piece.complete,
                }
                for piece in _of_first_text(pieces, result.node)
            ]
            node.metadata |= _moved(result.node, text, pieces)
            results.append(NodeWithScore(node=hidden(node), score=result.score))
    return results


def _of_first_text(pieces: Sequence[Piece], node: BaseNode) -> Sequence[Piece]:
    """Return pieces of a node that was shortened before as pieces of the text it had at first."""
    earlier = _earlier(node)
    if not earlier:
        return pieces
    # What joins two pieces stands in no document, so that a piece may become several.
    return [
        Piece(
            piece.text_index,
            first.start + left - first.at,
            first.start + right - first.at,
            piece.at + left - piece.start,
            (piece.complete or right < piece.end) and (first.complete or right < end),
        )
        for piece in pieces
        for first in earlier
        if (left := max(piece.start, first.at))
        < (right := min(piece.end, end := first.at + first.end - first.start))
    ]


def _earlier(node: BaseNode) -> list[Piece]:
    """Return what an earlier compression kept, if that is still the text."""
    try:
        pieces = [
            Piece(0, one["start_char"], one["end_char"], one["at"], one["complete"])
            for one in node.metadata.get("pieces", ())
        ]
        length = pieces[-1].at + pieces[-1].end - pieces[-1].start if pieces else 0
    except (KeyError, TypeError):
        return []
    return pieces if length == len(node.get_content(metadata_mode=MetadataMode.NONE)) else []


def rewritten(node: BaseNode, text: str) -> BaseNode:
    """Copy a node with another text, and without what was true of the text it had."""
    other = copied(node)
    other.embedding = None
    other.set_content(text)
    forget_text(other.metadata, unit=is_unit(node))
    return other


def forget_text(metadata: dict[str, Any], *, unit: bool) -> None:
    """Take out what was true of one text alone; a unit then has characters of no document."""
    metadata.pop("pieces", None)
    if not unit:
        return  # These names are then the caller's own.
    metadata.pop("best_chunk", None)
    metadata["members"] = []
    if "complete" in metadata:
        metadata["complete"] = False


def hidden(node: BaseNode) -> BaseNode:
    """Hide what is for programs from models."""
    keys = ["pieces", "node_ids"]
    for names in (node.excluded_embed_metadata_keys, node.excluded_llm_metadata_keys):
        names += [key for key in keys if key in node.metadata and key not in names]
    return node


def _moved(node: BaseNode, text: str, pieces: Sequence[Piece]) -> dict[str, Any]:
    """Return the members of a unit, and its best chunk, as they stand in what was kept of it."""
    if not is_unit(node):
        return {}
    unit = to_unit(node)
    # A member remembers the characters [start, end) of the unit that it was.
    moved = [
        (
            left,
            right,
            Member(
                member.doc_id,
                member.title,
                piece.at + left - piece.start,
                member.doc_start + left - member.start,
                member.doc_start + right - member.start,
            ),
        )
        for piece in pieces
        for member in unit.members
        if (left := max(piece.start, member.start)) < (right := min(piece.end, member.end))
    ]
    if not moved:
        return {}
    members = [member for _, _, member in moved]
    metadata: dict[str, Any] = {
        "doc_ids": list(dict.fromkeys(member.doc_id for member in members)),
        "members": [asdict(member) for member in members],
    }
    if "best_chunk" in node.metadata:
        metadata["best_chunk"] = _best(node.metadata["best_chunk"], unit, text, moved)
    return metadata


def _best(
    chunk: dict[str, Any],
    unit: LongUnit,
    text: str,
    moved: Sequence[tuple[int, int, Member]],
) -> dict[str, Any]:
    """Return what is left of the best chunk; the first member where nothing is."""
    overlap = [min(right, chunk["end"]) - max(left, chunk["start"]) for left, right, _ in moved]
    _, _, member = moved[overlap.index(max(overlap))] if max(overlap) > 0 else moved[0]
    return {
        **chunk,
        "doc_id": member.doc_id,
        "title": member.title,
        "text": text[member.start : member.end],
        "start": member.start,
        "end": member.end,
        "doc_start": member.doc_start,
        "doc_end": member.doc_end,
    }
