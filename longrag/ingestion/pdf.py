"""PDF files as documents: the text of their pages, and where each page begins."""

from __future__ import annotations

import logging
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

from longrag.errors import InvalidDocumentError, MissingExtraError
from longrag.types import Document

PDF: Final = ".pdf"
_BLANK_LINE: Final = "\n\n"


def read_pdf(doc_id: str, file: Path) -> Document:
    """Read the text of a PDF file page by page.

    The pages are joined by blank lines. Metadata hold ``path`` and ``pages``, the character at
    which each page begins. The title is the file's own, else its name without extension. What a
    scan shows as a picture is not text, and is not read.

    Raises:
        MissingExtraError: the extra ``pdf`` is not installed.
        InvalidDocumentError: the file is damaged or encrypted, or cannot be read.
    """
    try:
        from pypdf import PdfReader
    except ImportError as error:
        raise MissingExtraError("Reading a PDF file", "pdf") from error
    # It reports what it puts right in damaged files, which is not the caller's business.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        reader = PdfReader(file)
        texts = [page.extract_text() for page in reader.pages]
        title = reader.metadata.title if reader.metadata else None
    except Exception as error:
        raise InvalidDocumentError(f"cannot read {str(file)!r} as PDF: {error}") from error
    starts, at = [], 0
    for text in texts:
        starts.append(at)
        at += len(text) + len(_BLANK_LINE)
    title = str(title).strip() if title else ""
    metadata = MappingProxyType({"path": doc_id, "pages": starts})
    return Document(doc_id, _BLANK_LINE.join(texts), title or PurePosixPath(doc_id).stem, metadata)
