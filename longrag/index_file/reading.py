"""Pages from a folder of files, with what is needed to name places in the files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from longrag.errors import InvalidDocumentError, InvalidParameterError, MissingExtraError
from longrag.ingestion.paths import EXTENSIONS
from longrag.ingestion.pdf import PDF, read_pdf
from longrag.ingestion.sources import find_files, is_readable, read_file
from longrag.types import Document

FIRST_LINE: Final = "first_line"
PAGES: Final = "pages"
_NO_LINES: Final = (".html", ".htm", PDF)

Track = Callable[[Iterable[tuple[str, Path]]], Iterable[tuple[str, Path]]]


@dataclass(frozen=True, slots=True)
class Pages:
    """The documents of a folder, and for each file that could not be read the reason."""

    documents: tuple[Document, ...]
    skipped: tuple[str, ...]


def read_pages(path: str | os.PathLike[str], *, track: Track = iter) -> Pages:
    """Read one file, or all files below a folder, of Markdown, HTML, text or PDF.

    Documents are those of ``read_documents`` and ``read_pdf``. The metadata of Markdown and text
    also hold ``first_line``, the line of the file at which the document's text begins. Of a folder,
    PDF files that cannot be read are skipped.

    Args:
        path: the file or folder.
        track: sees every file pass, for instance to show progress.

    Raises:
        InvalidParameterError: nothing is there, or nothing that can be read.
        InvalidDocumentError: a file cannot be read.
        MissingExtraError: ``path`` is a PDF file and the extra ``pdf`` is not installed.
    """
    files = [(id_, file) for id_, file in find_files(path) if is_readable(id_) or _is_pdf(id_)]
    alone = len(files) == 1 and files[0][1] == Path(path)
    documents: list[Document] = []
    skipped: list[str] = []
    for id_, file in track(files):
        try:
            documents.append(read_pdf(id_, file) if _is_pdf(id_) else _with_lines(id_, file))
        except (InvalidDocumentError, MissingExtraError) as error:
            if alone or not _is_pdf(id_):
                raise
            skipped.append(f"{id_}: {error}")
    if not any(document.text.strip() for document in documents):
        kinds = ", ".join((*EXTENSIONS, PDF))
        allowed = f"a file or a folder of files with text that end in {kinds}"
        raise InvalidParameterError("path", str(path), allowed, " ".join(skipped[:1]))
    return Pages(tuple(documents), tuple(skipped))


def _is_pdf(doc_id: str) -> bool:
    return doc_id.lower().endswith(PDF)


def _with_lines(doc_id: str, file: Path) -> Document:
    document = read_file(doc_id, file)
    if doc_id.lower().endswith(_NO_LINES):
        return document
    whole = file.read_bytes().decode("utf-8-sig", "replace")
    # Front matter is not part of the text: it is what stands before it.
    if not whole.endswith(document.text):
        return document
    line = 1 + whole.count("\n", 0, len(whole) - len(document.text))
    return replace(document, metadata=MappingProxyType({**document.metadata, FIRST_LINE: line}))
