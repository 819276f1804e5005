"""The documents of a decoder's corpus, and citations of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import Citation

from langchain_longrag.bridge.documents import to_core
from longrag import types as core
from longrag.decoding.attribution import cited_sources
from longrag.decoding.retrieving import Retrieved
from longrag.errors import InvalidParameterError
from longrag.generation import RetrievedSpan, Source
from longrag.ingestion.key_extraction import Paragraph, paragraphs
from longrag.ingestion.units import check_documents


class CitedCorpus:
    """The documents by id, to make citations and passages of decoded quotes.

    Raises:
        InvalidDocumentError: two documents have the same id, or a text is not a string.
    """

    def __init__(self, documents: Sequence[Document], title_key: str) -> None:
        self.documents = to_core(documents, title_key)
        check_documents(self.documents)
        self._by_id = {document.id: document for document in self.documents}

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the ids, titles, URLs and texts that citations show."""
        shown = ((one.id, one.title, _find_url(one.metadata), one.text) for one in self.documents)
        return core.stable_id(*(part for parts in shown for part in parts))

    @cached_property
    def _passages(self) -> Mapping[str, Paragraph]:
        return {passage.id: passage for passage in paragraphs(self.documents)}

    def check_covers(self, doc_ids: Sequence[str]) -> None:
        """Check that the corpus has the documents of these ids.

        Raises:
            InvalidParameterError: one is missing.
        """
        missing = next((doc_id for doc_id in doc_ids if doc_id not in self._by_id), None)
        if missing is not None:
            raise InvalidParameterError(
                "documents",
                f"no document with the id {missing!r}",
                "the documents that the keys were made of",
            )

    def cite(self, span: RetrievedSpan, start: int, end: int, most: int) -> list[Citation]:
        """Return citations of a span's first ``most`` sources.

        ``start`` and ``end`` are the characters of the response that they support.
        """
        shown = cited_sources(span, most)
        return [
            self._cite_source(span, source, start, end, len(span.sources) - len(shown))
            for source in shown
        ]

    def _cite_source(
        self, span: RetrievedSpan, source: Source, start: int, end: int, more: int
    ) -> Citation:
        known = self._by_id.get(source.doc_id)
        if known is not None:
            text = self._read_text(source.doc_id, source.start, source.end)
            citation = make_citation(start, end, text, known.title, known.metadata)
        else:
            citation = make_citation(start, end, span.quote if source.verbatim else None)
        citation["extras"] = {
            "doc_id": source.doc_id,
            "start": source.start,
            "end": source.end,
            "passage_id": source.passage_id,
            "verbatim": source.verbatim,
            "quote": span.quote,
            "logprob": span.logprob,
            "proved": span.proved,
            "more_sources": more,
        }
        return citation

    def to_document(self, found: Retrieved) -> Document:
        """Return a retrieved passage as a document, with a copy of its document's metadata."""
        source, span = found
        known = self._by_id[source.doc_id]
        start, end = source.start, source.end
        if source.passage_id in self._passages:
            passage = self._passages[source.passage_id]
            start, end = min(start, passage.start), max(end, passage.end)
        own: dict[str, Any] = {
            "doc_id": source.doc_id,
            "start_index": start,
            "end_index": end,
            "quote": span.quote,
            "quote_start": source.start,
            "quote_end": source.end,
            "verbatim": source.verbatim,
            "logprob": span.logprob,
            "proved": span.proved,
        }
        if known.title:
            own["title"] = known.title
        return Document(
            id=source.passage_id or core.stable_id("passage", source.doc_id, start, end),
            page_content=self._read_text(source.doc_id, start, end),
            metadata={**copy.deepcopy(dict(known.metadata)), **own},
        )

    def _read_text(self, doc_id: str, start: int, end: int) -> str:
        text = self._by_id[doc_id].text
        if end > len(text):
            raise InvalidParameterError.because(
                f"Pass the documents that the keys were made of: {doc_id!r} has only {len(text)}"
                " characters."
            )
        return text[start:end]


def make_citation(
    start: int,
    end: int,
    text: str | None,
    title: str = "",
    metadata: Mapping[str, object] = MappingProxyType({}),
) -> Citation:
    """Return a citation that supports characters of a response, with what is known of its source.

    Args:
        start: the first character.
        end: the character after the last one.
        text: the source's own words, if known.
        title: the title of the document; empty without one.
        metadata: of the document, which may have its address.
    """
    citation = Citation(type="citation", start_index=start, end_index=end)
    if text is not None:
        citation["cited_text"] = text
    if title:
        citation["title"] = title
    if url := _find_url(metadata):
        citation["url"] = url
    return citation


def _find_url(metadata: Mapping[str, object]) -> str:
    candidates = (metadata.get("url"), metadata.get("source"))
    return next(
        (
            value
            for value in candidates
            if isinstance(value, str) and value.startswith(("http://", "https://"))
        ),
        "",
    )
