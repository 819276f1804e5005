"""A setting of a wrong type is refused by an error of this package, as a wrong value is."""

from __future__ import annotations

import inspect

import pytest
from langchain_core.documents import Document

import langchain_longrag as lc
from longrag.errors import LongragError
from tests.fakes.langchain import HashEmbeddings, scripted

PAGES = [Document("The mill stands at the weir.", id="a"), Document("The weir is old.", id="b")]
INDEX = lc.LongRAGIndex.from_documents(PAGES, HashEmbeddings())
TREE = lc.RaptorIndex.from_documents(PAGES, HashEmbeddings(), summarizer="extractive")
NEEDED = {
    "CompressDocuments": {"embedding": HashEmbeddings()},
    "DeduplicateDocuments": {},
    "EvidenceRetriever": {"index": INDEX},
    "HybridRetriever": {"retriever": INDEX},
    "LongRAGIndex": {"embedding": HashEmbeddings()},
    "LongUnitTransformer": {},
    "MaxPRetriever": {"documents": PAGES, "embedding": HashEmbeddings()},
    "MetadataReplacement": {},
    "QueryTransformRetriever": {"retriever": INDEX, "llm": scripted("")},
    "RaptorIndex": {"embedding": HashEmbeddings(), "summarizer": "extractive"},
    "RaptorRetriever": {"index": TREE},
    "RepackDocuments": {},
    "ScorerRerank": {"scorer": lambda query, texts: [0.0] * len(texts)},
    "SentenceWindowTransformer": {},
}


class Odd:
    """Is nothing that a setting may be."""


def settings_of(name):
    kind = getattr(lc, name)
    return getattr(kind, "model_fields", None) or inspect.signature(kind).parameters


@pytest.mark.parametrize("name", NEEDED)
def test_a_wrong_type_is_a_typed_error(name):
    kind, needed = getattr(lc, name), NEEDED[name]
    kind(**needed)
    told = []
    for setting in settings_of(name):
        for value in (Odd(), -1.5, [Odd()]):
            try:
                kind(**{**needed, setting: value})
            except LongragError as error:
                told.append(str(error))
    assert told
    assert not any("Input should be" in one or "pydantic" in one for one in told)


@pytest.mark.parametrize("name", [n for n in NEEDED if hasattr(getattr(lc, n), "invoke")])
def test_a_query_that_is_no_string_is_a_typed_error(name):
    retriever = getattr(lc, name)(**NEEDED[name])
    if name in ("LongRAGIndex", "RaptorIndex"):
        retriever.upsert(PAGES)
    with pytest.raises(LongragError, match="query must be a string"):
        retriever.invoke({"query": "Which weir?"})


def test_the_error_names_the_setting_the_type_and_what_is_allowed():
    with pytest.raises(
        LongragError,
        match=r"docstore must be an allowed value: an instance of BaseStore, got 'Odd'",
    ):
        lc.MaxPRetriever(documents=PAGES, embedding=HashEmbeddings(), docstore=Odd())
    with pytest.raises(LongragError, match=r"chunksize.*Did you mean 'chunk_size'"):
        lc.LongRAGIndex(embedding=HashEmbeddings(), chunksize=3)
