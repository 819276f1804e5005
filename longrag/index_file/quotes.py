"""An answer without a model: the passages of documents that answer, as they stand there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from longrag.index_file.places import SourceRange, locate
from longrag.synthesis.excerpts import excerpts_of_units
from longrag.synthesis.extractive import extract_fact
from longrag.synthesis.two_turn import EMPTY_ANSWER
from longrag.types import Document, RetrievedUnit


@dataclass(frozen=True, slots=True)
class Quote:
    """A stretch of an answer, and where it is in the documents; None where it is not verbatim.

    ``headings`` are those above a passage that is quoted as it stands, the page's first.
    """

    text: str
    place: SourceRange | None
    headings: tuple[str, ...] = ()


def quote_passages(
    question: str,
    retrieved: Sequence[RetrievedUnit],
    documents: Mapping[str, Document],
    *,
    read_besides: Iterable[SourceRange] = (),
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
    besides = ((one.path, one.start, one.end) for one in read_besides)
    quotes = tuple(
        Quote(one.text, locate(document, one.start, one.end), one.headings)
        for document, one in excerpts_of_units(question, retrieved, documents, besides=besides)
    )
    if not quotes:
        return EMPTY_ANSWER, ()
    return extract_fact(question, quotes[0].text) or quotes[0].text, quotes
