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
    the overlap is written once. Member offsets are those of the text put together, since what stood
    between the chunks is not known.
    """
    texts: dict[str, str] = {}
    titles: dict[str, str] = {}
    ends: dict[str, int] = {}
    for chunk in sorted(chunks, key=lambda c: (c.doc_id, c.doc_start, c.doc_end)):
        known = texts.get(chunk.doc_id)
        titles.setdefault(chunk.doc_id, chunk.title)
        overlap = ends.get(chunk.doc_id, chunk.doc_start) - chunk.doc_start
        if known is None:
            texts[chunk.doc_id] = chunk.text
        elif overlap > 0:
            texts[chunk.doc_id] = known + chunk.text[overlap:]
        else:
            texts[chunk.doc_id] = f"{known}\n\n{chunk.text}"
        ends[chunk.doc_id] = max(ends.get(chunk.doc_id, 0), chunk.doc_end)
    segments = [
        (Member(id_, titles[id_], 0, 0, len(text)), text, len(text)) for id_, text in texts.items()
    ]
    return _joined(unit_id, segments, count_tokens)


def fit_budget(
    retrieved: Sequence[RetrievedUnit],
    token_budget: int | None,
    *,
    count_tokens: TokenCounter = default_counter,
) -> list[RetrievedUnit]:
    """Keep retrieved units within ``token_budget`` tokens in all, best first.

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
            room -= count_tokens(fitted.unit.text)
    return kept


def check_token_budget(token_budget: int | None) -> None:
    """Raise ``InvalidParameterError`` unless the budget is None or an integer of at least 1."""
    if token_budget is not None and (
        isinstance(token_budget, bool) or not isinstance(token_budget, int) or token_budget < 1
    ):
        raise InvalidParameterError(
            "token_budget", token_budget, "an integer of at least 1, or None", "None is no limit."
        )


def _fit(
    found: RetrievedUnit, room: int, count_tokens: TokenCounter, *, shorten: bool
) -> RetrievedUnit | None:
    if count_tokens(found.unit.text) <= room:
        return found
    segments = _segments(found.unit)
    best = found.best_chunk.doc_id
    chosen: list[int] = []
    for i in sorted(range(len(segments)), key=lambda i: (segments[i][0].doc_id != best, i)):
        attempt = _joined(found.unit.id, [segments[j] for j in sorted([*chosen, i])], count_tokens)
        if attempt.tokens <= room:
            chosen.append(i)
        elif not chosen:
            break
    if chosen:
        cut = [segments[i] for i in sorted(chosen)]
        unit = _joined(found.unit.id, cut, count_tokens)
        return replace(found, unit=unit, complete=False)
    return _best_chunk_alone(found, room, count_tokens, shorten=shorten)


def _best_chunk_alone(
    found: RetrievedUnit, room: int, count_tokens: TokenCounter, *, shorten: bool
) -> RetrievedUnit | None:
    chunk = found.best_chunk
    text = chunk.text
    if count_tokens(text) > room:
        if not shorten:
            return None
        start, end = chunk_spans(text, chunk_size=room, count_tokens=count_tokens)[0]
        text = text[start:end]
    member = Member(chunk.doc_id, chunk.title, 0, chunk.doc_start, chunk.doc_start + len(text))
    unit = _joined(found.unit.id, [(member, text, len(text))], count_tokens)
    return replace(found, unit=unit, complete=False)


_Segment = tuple[Member, str, int]
"""A member, its stretch of a unit's text (title and text), and the length of its own text."""


def _segments(unit: LongUnit) -> list[_Segment]:
    starts = [0, *(member.end for member in unit.members[:-1])]
    return [
        (member, unit.text[start : member.end].lstrip(), member.end - member.start)
        for start, member in zip(starts, unit.members, strict=True)
    ]


def _joined(unit_id: str, segments: Sequence[_Segment], count_tokens: TokenCounter) -> LongUnit:
    members, at = [], 0
    for member, stretch, length in segments:
        members.append(replace(member, start=at + len(stretch) - length))
        at += len(stretch) + len("\n\n")
    text = "\n\n".join(stretch for _, stretch, _ in segments)
    return LongUnit(unit_id, text, tuple(members), count_tokens(text))
