"""An answer without a model: the passages of documents that answer, as they stand there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from longrag.index_file.places import Place, locate
from longrag.synthesis.excerpts import Ranked, extract_excerpts
from longrag.synthesis.extractive import extract_fact
from longrag.synthesis.two_turn import EMPTY_ANSWER
from longrag.types import Document, RetrievedUnit


@dataclass(frozen=True, slots=True)
class Quote:
    """A stretch of an answer, and where it is in the documents; None where it is not verbatim.

    ``headings`` are those above a passage that is quoted as it stands, the page's first.
    """

    text: str
    place: Place | None
    headings: tuple[str, ...] = ()


def quote_passages(
    question: str,
    retrieved: Sequence[RetrievedUnit],
    documents: Mapping[str, Document],
    *,
    read_besides: Iterable[Place] = (),
) -> tuple[str, tuple[Quote, ...]]:
    """Return an answer from the documents that were read, and the passages that it quotes.

    The answer is the name, date or number that the question asks for, or else the best passage, or
    a sentence which says that the documents do not answer; then there are no passages.

    Args:
        question: the question.
        retrieved: units that were read; their passages are searched.
        documents: the documents by id, as they are: passages are quoted as they stand there.
        read_besides: stretches that were read of no unit; they are searched too.
    """
    found: dict[str, list[Ranked]] = {}
    besides = ((one.path, (one.start, one.end, 0.0)) for one in read_besides)
    for id_, stretch in chain(_stretches(retrieved), besides):
        found.setdefault(id_, []).append(stretch)
    own = [documents[id_] for id_ in found]
    texts = [(one.title, one.text) for one in own]
    quotes = tuple(
        Quote(one.text, locate(own[one.document], one.start, one.end), one.headings)
        for one in extract_excerpts(question, texts, found=list(found.values()))
    )
    if not quotes:
        return EMPTY_ANSWER, ()
    return extract_fact(question, quotes[0].text) or quotes[0].text, quotes


def _stretches(retrieved: Sequence[RetrievedUnit]) -> Iterator[tuple[str, Ranked]]:
    for one in retrieved:
        for passage in one.passages:
            for member in one.unit.members:
                start, end = max(member.start, passage.start), min(member.end, passage.end)
                if member.placed and start < end:
                    at = member.doc_start - member.start
                    yield member.doc_id, (at + start, at + end, passage.score or 0.0)
