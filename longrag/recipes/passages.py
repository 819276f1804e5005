"""The text that modules of a recipe pass on, with the documents its characters come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

from longrag.errors import StoreError
from longrag.refinement.compression import Summary
from longrag.refinement.pieces import Compressed, Piece
from longrag.retrieval.hybrid import Found
from longrag.retrieval.units import Hit
from longrag.types import LongUnit, Member, RetrievedNode, RetrievedUnit, Span, stable_id


@dataclass(frozen=True, slots=True)
class Passage:
    """One retrieved text on its way to the reader.

    Attributes:
        id: its identity, that of what was retrieved; the same in a keyword index fused with it.
        text: what the reader gets; compression shortens it.
        members: where its characters are in documents. Text outside all members is in no
            document: a summary's words, or what joins two sentences that were kept.
        doc_ids: the documents it was made from, each once.
        title: its title in the prompt; the title of a member takes precedence.
        score: that of the last ranking, None when it gave no scores.
        parts: the texts a reranker reads in place of a text too long for it.
        kept: the pieces of the text that was retrieved which ``text`` is put together from, all
            with the ``text_index`` 0. Empty as long as it is that text.
        source: what the retriever returned, for whoever converted it.
    """

    id: str
    text: str
    members: tuple[Member, ...] = ()
    doc_ids: tuple[str, ...] = ()
    title: str = ""
    score: float | None = None
    parts: tuple[str, ...] = ()
    kept: tuple[Piece, ...] = ()
    source: object = None

    @classmethod
    def of_document(
        cls,
        id_: str,
        text: str,
        *,
        doc_id: str = "",
        doc_start: int = 0,
        title: str = "",
        score: float | None = None,
        source: object = None,
    ) -> Passage:
        """Return a text that is copied from one document, from character ``doc_start`` on.

        Without a ``doc_id`` the text is itself the document.
        """
        member = Member(doc_id or id_, title, 0, doc_start, doc_start + len(text))
        return cls(id_, text, (member,), (member.doc_id,), title, score, source=source)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The characters of the retrieved text that are left in ``text``, in order."""
        return tuple((one.start, one.end) for one in self.kept) or ((0, len(self.text)),)

    def fields(self) -> Iterator[tuple[str, str]]:
        """Yield the title and text of each document that follows another in the text.

        A title written above a document in the text of a unit is not repeated in its text.
        """
        groups = [list(group) for _, group in groupby(self.members, lambda one: one.doc_id)]
        if not groups:
            yield self.title, self.text
        end = 0
        for group in groups:
            title = next((one.title for one in group if one.title), self.title)
            start, between = group[0].start, self.text[end : group[0].start].strip()
            start = start if between in ("", title.strip()) else end
            end = len(self.text) if group is groups[-1] else group[-1].end
            yield title, self.text[start:end]


Retrieved: TypeAlias = Found | LongUnit | Passage
"""What a retriever may return."""


def as_passage(found: Retrieved) -> Passage:
    """Convert what a retriever of this package returned; a passage stays as it is.

    A unit is reranked by its best chunk: a reranker reads some 500 tokens.

    Raises:
        StoreError: something else.
    """
    match found:
        case Passage():
            return found
        case Hit(chunk=chunk, score=score):
            member = chunk.member()
            return Passage(
                chunk.id, chunk.text, (member,), (chunk.doc_id,), chunk.title, score, source=found
            )
        case RetrievedUnit(unit=unit, best_chunk=best):
            ids = tuple(dict.fromkeys(unit.doc_ids))
            parts = () if best.text == unit.text else (best.text,)
            return Passage(unit.id, unit.text, unit.members, ids, "", found.score, parts, (), found)
        case LongUnit():
            ids = tuple(dict.fromkeys(found.doc_ids))
            return Passage(found.id, found.text, found.members, ids, source=found)
        case RetrievedNode(node=node):
            members: tuple[Member, ...] = ()
            if node.span is not None:
                members = (Member(node.doc_ids[0], node.title, 0, *node.span),)
            return Passage(
                node.id, node.text, members, node.doc_ids, node.title, found.score, source=found
            )
    raise StoreError(
        f"a retriever must return passages, hits, units or nodes of a tree, got {found!r}"
    )


def distinct(found: Iterable[Retrieved]) -> list[Passage]:
    """Convert results and keep the first of each id, which is its best one."""
    first: dict[str, Passage] = {}
    for passage in map(as_passage, found):
        first.setdefault(passage.id, passage)
    return list(first.values())


def compressed_passages(passages: Sequence[Passage], compressed: Compressed) -> list[Passage]:
    """Put what was kept in place of each text; those of which nothing was kept are left out.

    A text that was kept whole is returned unchanged, with the white space around it, and so is a
    blank one, of which there is nothing to keep.
    """
    found = []
    for index, (passage, text) in enumerate(zip(passages, compressed.texts, strict=True)):
        if text == passage.text.strip():
            found.append(passage)
        elif text:
            pieces = [piece for piece in compressed.pieces if piece.text_index == index]
            members = tuple(_members_within(passage.members, pieces))
            kept = tuple(_pieces_within(passage.kept, pieces))
            found.append(replace(passage, text=text, members=members, kept=kept, parts=()))
    return found


def _members_within(members: Sequence[Member], pieces: Sequence[Piece]) -> Iterator[Member]:
    """Yield what pieces of a text leave of its members, at their new places."""
    for piece in pieces:
        for member in members:
            start, end = max(piece.start, member.start), min(piece.end, member.end)
            if start < end:
                shift = member.doc_start - member.start
                at = piece.at + start - piece.start
                yield Member(member.doc_id, member.title, at, start + shift, end + shift)


def _pieces_within(earlier: Sequence[Piece], pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Yield pieces of a text that was shortened before as pieces of the text it had at first.

    What joins two earlier pieces is in no text, so that one piece may become several.
    """
    if not earlier:
        yield from (replace(piece, text_index=0) for piece in pieces)
    for piece in pieces:
        for first in earlier:
            first_end = first.at + first.end - first.start
            start, end = max(piece.start, first.at), min(piece.end, first_end)
            if start < end:
                shift = first.start - first.at
                at = piece.at + start - piece.start
                whole = piece.complete or end < piece.end
                complete = whole and (first.complete or end < first_end)
                yield Piece(0, start + shift, end + shift, at, complete)


def summary_passages(passages: Sequence[Passage], summaries: Sequence[Summary]) -> list[Passage]:
    """Put summaries in place of the passages they are about; their words are in no document.

    The summary of one passage keeps its id; one of several has the best of their scores. A passage
    without text is returned unchanged, since no summary was asked for.
    """
    about = {one.text_indices[0]: one for one in summaries}
    found = []
    for index, passage in enumerate(passages):
        if index in about:
            read = [passages[i] for i in about[index].text_indices]
            found.append(_summary_passage(read, about[index].text))
        elif not passage.text.strip():
            found.append(passage)
    return found


def _summary_passage(about: Sequence[Passage], text: str) -> Passage:
    doc_ids = tuple(dict.fromkeys(doc_id for passage in about for doc_id in passage.doc_ids))
    if len(about) == 1:
        return replace(about[0], text=text, members=(), kept=(), parts=(), title=_title(about[0]))
    id_ = stable_id("summary", *(passage.id for passage in about), text)
    score = max((one.score for one in about if one.score is not None), default=None)
    return Passage(id_, text, (), doc_ids, score=score, source=tuple(about))


def _title(passage: Passage) -> str:
    titles = dict.fromkeys(member.title for member in passage.members)
    return next(iter(titles)) if len(titles) == 1 else passage.title
