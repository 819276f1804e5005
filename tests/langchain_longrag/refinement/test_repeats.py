"""Deduplication of retrieved documents."""

import pytest
from langchain_core.documents import Document

from langchain_longrag import DeduplicateDocuments
from longrag.errors import InvalidParameterError

TEXTS = ("The mill at Oberau burned down.", "At Oberau a mill burned.", "Three rivers meet.")


async def test_repeating_documents_come_last_and_fall_out_first():
    documents = [Document(text, id=f"d{n}") for n, text in enumerate(TEXTS)]
    for settings, read in (({}, "d0 d2 d1"), ({"top_n": 2}, "d0 d2"), ({"redundancy": 1}, None)):
        compressor = DeduplicateDocuments(**settings)
        found = compressor.compress_documents(documents, "any")
        assert [each.id for each in found] == (read or "d0 d1 d2").split()
        assert await compressor.acompress_documents(documents, "any") == found


def test_settings_that_are_not_allowed_are_refused():
    with pytest.raises(InvalidParameterError, match="redundancy"):
        DeduplicateDocuments(redundancy="much")
    with pytest.raises(InvalidParameterError, match="top_n"):
        DeduplicateDocuments(top_n=0)
