"""What state an index file is in: whether it can be asked, and whether its folder has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longrag.calls import Embed
from longrag.errors import LongragError
from longrag.index_file.catalog import Catalog, read_catalog
from longrag.index_file.filling import difference
from longrag.index_file.parts import File
from longrag.index_file.reading import read_pages
from longrag.index_file.searching import IndexFile
from longrag.ingestion.patterns import PathPatterns
from longrag.types import Document


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The state of an index file.

    Attributes:
        catalog: what is in the file.
        error: why it cannot be asked; empty where it can.
        new: how many files of the folder are not in the index.
        changed: how many are others than in the index.
        deleted: how many documents of the index are not in the folder any more.
        folder_error: why the folder cannot be compared; empty where it can.
    """

    catalog: Catalog
    error: str = ""
    new: int = 0
    changed: int = 0
    deleted: int = 0
    folder_error: str = ""


def diagnose(
    path: File, *, embedder: str | None = None, options: Mapping[str, Any] | None = None
) -> Diagnosis:
    """Open an index file, embed a word with its embedder, and read its folder again.

    Args:
        path: a file that ``longrag index`` made; it is not changed.
        embedder: as for ``IndexFile``.
        options: the keyword arguments of that embedder.

    Raises:
        InvalidParameterError: there is no such file.
        IndexFormatError: the file is damaged, or holds no index.
    """
    _, catalog = read_catalog(path)
    documents: Mapping[str, Document] = {}
    try:
        opened = IndexFile(path, embedder=embedder, options=options)
        documents = opened.documents
        opened.embed(Embed(("word",), "query"))
    except LongragError as error:
        if not documents:
            return Diagnosis(catalog, str(error))
        told = str(error)
    else:
        told = ""
    try:
        patterns = PathPatterns(catalog.include, catalog.exclude)
        pages = read_pages(catalog.root, follow_links=catalog.follow_links, patterns=patterns)
    except LongragError as error:
        return Diagnosis(catalog, told, folder_error=str(error))
    put, gone = difference(documents, pages.documents)
    changed = sum(page.id in documents for page in put)
    return Diagnosis(catalog, told, len(put) - changed, changed, len(gone))
