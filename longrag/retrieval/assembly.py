"""Units put together from chunks, and units cut down to a token budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from longrag.errors import InvalidParameterError
from longrag.ingestion.chunking import chunk_spans
from longrag.models.tokens import count_tokens as default_counter
from longrag.types import Chunk, LongUnit, Member, RetrievedUnit, TokenCounter


def unit_of_chunks(
    unit_id: str, chunks: Iterable[Chunk], *, count_tokens: TokenCounter = default_counter
) -> LongUnit:
    """Put a unit together from stored chunks, for stores that keep no whole units.

    Documents stand in order of their ids, chunks in order of their offsets; where chunks overlap,
    the overlap is written once, and a blank line stands for what is missing between them. Member
    offsets are those of the source where a document's chunks follow one another without a gap,
    otherwise those of the text put together.
    """
    texts: dict[str, str] = {}
    titles: dict[str, str] = {}
    starts: dict[str, int] = {}
    ends: dict[str, int] = {}
    for chunk in sorted(chunks, key=lambda c: (c.doc_id, c.doc_start, c.doc_end)):
        known = texts.get(chunk.doc_id)
        titles.setdefault(chunk.doc_id, chunk.title)
        starts.setdefault(chunk.doc_id, chunk.doc_start)
        overlap = ends.get(chunk.doc_id, chunk.doc_start) - chunk.doc_start
        if known is None:
            texts[chunk.doc_id] = chunk.text
        elif overlap >= 0 and known.endswith(chunk.text[:overlap]):
            texts[chunk.doc_id] = known + chunk.text[overlap:]
        elif overlap <= 0 or chunk.text not in known:
            # Stores' offsets can be wrong: text that only seems to overlap must not be lost.
            texts[chunk.doc_id] = f"{known}\n\n{chunk.text}"
            starts[chunk.doc_id] = 0
        ends[chunk.doc_id] = max(ends.get(chunk.doc_id, 0), chunk.doc_end)
    segments = []
    for id_, text in texts.items():
        start = starts[id_] if ends[id_] - starts[id_] == len(text) else 0
        segments.append((Member(id_, titles[id_], 0, start, start + len(text)), text, len(text)))
    return _joined(unit_id, segments, count_tokens)


def fit_budget(
    retrieved: Sequence[RetrievedUnit],
    token_budget: int | None,
    *,
    count_tokens: TokenCounter = default_counter,
) -> list[RetrievedUnit]:
    """Keep retrieved units within ``token_budget`` tokens in all, best first.

    The blank line that parts a unit from the next one counts with it, so that their texts joined
    by blank lines keep to the budget as well.

    A unit that does not fit whole is cut down to the member documents that do, the one with its
    best chunk first, or else to its best chunk; it is then marked as not ``complete``. A unit of
    which nothing fits is left out, except that the first is never: its best chunk is shortened.
    ``None`` means no limit.

    Raises:
        InvalidParameterError: ``token_budget`` is not an integer of at least 1.
    """
    check_token_budget(token_budget)
    if token_budget is None:
        return list(retrieved)
    kept: list[RetrievedUnit] = []
    room = token_budget
    for found in retrieved:
        fitted = _fit(found, room, count_tokens, shorten=not kept)
        if fitted is not None:
            kept.append(fitted)
            room -= count_tokens(fitted.unit.text + "\n\n")
    return kept


def check_token_budget(token_budget: int | None) -> None:
    """Raise ``InvalidParameterError`` unless the budget is None or an integer of at least 1."""
    if token_budget is not None and (
        isinstance(token_budget, bool) or not isinstance(token_budget, int) or token_budget < 1
    ):
        raise InvalidParameterError(
            "token_budget", token_budget, "an integer of at least 1, or None", "None is no limit."
        )


def place(chunk: Chunk, unit: LongUnit) -> Chunk:
    """Return the chunk with its offsets in the unit's text, which a stored chunk does not carry.

    A chunk that is the whole unit begins in the first member.
    """
    if chunk.text == unit.text and len(unit.text) > unit.members[0].end - unit.members[0].start:
        first = unit.members[0]
        chunk = replace(
            chunk, doc_id=first.doc_id, doc_start=first.doc_start, doc_end=first.doc_end
        )
    at = next(
        (
            member.start + chunk.doc_start - member.doc_start
            for member in unit.members
            if member.doc_id == chunk.doc_id
            and member.doc_start <= chunk.doc_start
            and chunk.doc_end <= member.doc_end
        ),
        -1,
    )
    if at < 0 or not unit.text.startswith(chunk.text, at):
        at = max(unit.text.find(chunk.text), 0)
    return replace(chunk, unit_id=unit.id, start=at, end=at + len(chunk.text))


def _fit(
    found: RetrievedUnit, room: int, count_tokens: TokenCounter, *, shorten: bool
) -> RetrievedUnit | None:
    if count_tokens(found.unit.text) <= room:
        return found
    segments = _segments(found.unit)
    best = _best_member(found)
    # A separator is counted with each document: some tokenizers spend a token on blank lines.
    sizes = [count_tokens(stretch + "\n\n") for _, stretch, _ in segments]
    chosen: list[int] = []
    left = room
    for i in sorted(range(len(segments)), key=lambda i: (i != best, i)):
        if sizes[i] <= left:
            chosen.append(i)
            left -= sizes[i]
        elif i == best:
            return _best_chunk_alone(found, best, room, count_tokens, shorten=shorten)
    unit = _joined(found.unit.id, [segments[i] for i in sorted(chosen)], count_tokens)
    chunk = found.best_chunk
    if chunk.text not in unit.text:  # It spans documents that were left out.
        chunk = replace(chunk, text=unit.text)
    return replace(found, unit=unit, best_chunk=place(chunk, unit), complete=False)


def _best_member(found: RetrievedUnit) -> int:
    """Return which member holds the best chunk; a chunk that is a whole unit is in its first."""
    chunk = found.best_chunk
    return next(
        (
            i
            for i, member in enumerate(found.unit.members)
            if member.start <= chunk.start and chunk.end <= member.end
        ),
        0,
    )


def _best_chunk_alone(
    found: RetrievedUnit, best: int, room: int, count_tokens: TokenCounter, *, shorten: bool
) -> RetrievedUnit | None:
    member, chunk = found.unit.members[best], found.best_chunk
    start, end = chunk.start, chunk.end
    # A chunk knows its place in the source; a member put together from chunks may not.
    shift = chunk.doc_start - start
    if not (member.start <= start and end <= member.end):
        start, end = member.start, member.end
        shift = member.doc_start - start
    text = found.unit.text[start:end]
    if count_tokens(text) > room:
        if not shorten:
            return None
        spans = chunk_spans(text, chunk_size=room, count_tokens=count_tokens)
        first, last = spans[0] if spans else (0, 0)  # White space alone has no spans.
        start, text = start + first, text[first:last]
    doc_start = start + shift
    cut = replace(member, start=0, doc_start=doc_start, doc_end=doc_start + len(text))
    unit = LongUnit(found.unit.id, text, (cut,), count_tokens(text))
    return replace(found, unit=unit, best_chunk=_of_member(chunk, unit), complete=False)


def _of_member(chunk: Chunk, unit: LongUnit) -> Chunk:
    """Return the chunk as what a unit of one stretch of one document still holds of it."""
    (member,) = unit.members
    return replace(
        chunk,
        doc_id=member.doc_id,
        text=unit.text,
        start=0,
        end=len(unit.text),
        doc_start=member.doc_start,
        doc_end=member.doc_end,
    )


_Segment = tuple[Member, str, int]
"""A member, its stretch of a unit's text (title and text), and the length of its own text."""


def _segments(unit: LongUnit) -> list[_Segment]:
    segments, end = [], 0
    for member in unit.members:
        head = unit.text[end : member.start].lstrip()
        own = unit.text[member.start : member.end]
        segments.append((member, head + own, len(own)))
        end = member.end
    return segments


def _joined(unit_id: str, segments: Sequence[_Segment], count_tokens: TokenCounter) -> LongUnit:
    members, at = [], 0
    for member, stretch, length in segments:
        members.append(replace(member, start=at + len(stretch) - length))
        at += len(stretch) + len("\n\n")
    text = "\n\n".join(stretch for _, stretch, _ in segments)
    return LongUnit(unit_id, text, tuple(members), count_tokens(text))
