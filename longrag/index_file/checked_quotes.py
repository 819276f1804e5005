"""Quotes that another program wrote, looked up in the documents of an index file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from longrag.generation import CheckedQuote, Source
from longrag.index_file.catalog import read_catalog
from longrag.index_file.parts import File, open_tree, open_units, quotes_folder
from longrag.index_file.places import SourceRange, locate
from longrag.types import Document

if TYPE_CHECKING:
    from longrag.quoting.corpus import QuoteIndex


def stored_documents(path: File) -> Mapping[str, Document]:
    """Return the documents of an index file by id, without the embedder that it was made with.

    Raises:
        InvalidParameterError: there is no such file.
        IndexFormatError: the file is damaged, or holds no index.
    """
    _, catalog = read_catalog(path)
    if catalog.units:
        return open_units(path, catalog, only_read=True).snapshot()[0]
    return open_tree(path, catalog, only_read=True).snapshot()[0]


def kept_quotes(path: File, documents: Mapping[str, Document]) -> QuoteIndex:
    """Return the words of an index file's documents, which a folder beside it keeps.

    They are read once: ``longrag index`` brings them up to date.
    """
    from longrag.quoting.corpus import QuoteIndex

    return QuoteIndex.kept(quotes_folder(path), documents.values())


def place_of(source: Source, documents: Mapping[str, Document]) -> SourceRange:
    """Return the place of a quote's source in the files."""
    return locate(documents[source.doc_id], source.start, source.end)


def quote_record(checked: CheckedQuote, documents: Mapping[str, Document]) -> dict[str, Any]:
    """Return what became of a quote as JSON values, with the sources' own words."""
    return {
        "quote": checked.quote,
        "status": checked.status,
        "accepted": checked.accepted,
        "evidence": checked.evidence,
        "sources": [_source_record(one, documents) for one in checked.sources],
        "nearest": None if checked.nearest is None else _source_record(checked.nearest, documents),
        "edits": [
            {"kind": one.kind, "quoted": one.quoted, "source": one.source} for one in checked.edits
        ],
    }


def _source_record(source: Source, documents: Mapping[str, Document]) -> dict[str, Any]:
    text = documents[source.doc_id].text[source.start : source.end]
    return {"text": text, "place": place_of(source, documents).record()}
