"""Sentences with their windows: places, joins, and how they are read."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document

from langchain_longrag import MetadataReplacement, SentenceWindowTransformer
from longrag.errors import InvalidParameterError
from tests.fakes.langchain import memory_store
from tests.langchain_longrag.searching import PAGES

TEXT = "One is here. Two is there.\n\nThree came late. Four left.  五来了。六走了。"


def split(text: str = TEXT, size: int = 1, **metadata: object) -> list[Document]:
    document = Document(text, id="doc", metadata=dict(metadata))
    return list(SentenceWindowTransformer(window_size=size).transform_documents([document]))


def place(document: Document, source: str, key: str = "") -> str:
    text = document.metadata[key] if key else document.page_content
    start = document.metadata[f"{key}_start_index" if key else "start_index"]
    return source[start : start + len(text)]


async def test_each_sentence_knows_its_place_and_its_window():
    found = split()
    assert [d.page_content for d in found] == [
        "One is here.",
        "Two is there.",
        "Three came late.",
        "Four left.",
        "五来了。",
        "六走了。",
    ]
    for document in found:
        assert place(document, TEXT) == document.page_content
        assert place(document, TEXT, "window") == document.metadata["window"]
        assert document.page_content in document.metadata["window"]
    assert found[2].metadata["window"] == "Two is there.\n\nThree came late. Four left."
    assert found[0].metadata["window"] == "One is here. Two is there."
    assert found[5].metadata["window"] == "五来了。六走了。"
    document = [Document(TEXT, id="doc")]
    again = await SentenceWindowTransformer(window_size=1).atransform_documents(document)
    assert list(again) == found


def test_metadata_and_ids_are_those_of_the_document():
    first, second = split("A b. C d.", title="T")[0], split("A b. C d.", title="T")[0]
    assert first == second
    assert first.metadata["doc_id"] == "doc"
    assert first.metadata["title"] == "T"
    assert len({d.id for d in split("Same. Same. Same.")}) == 3


def test_chunks_of_a_document_keep_its_offsets():
    chunk = Document("Two is there. Three.", metadata={"doc_id": "d", "start_index": 13})
    found = SentenceWindowTransformer().transform_documents([chunk])
    assert [d.metadata["start_index"] for d in found] == [13, 27]
    assert found[0].metadata["window_start_index"] == 13
    assert found[0].metadata["doc_id"] == "d"


@pytest.mark.parametrize("number", [13, 13.0, np.int64(13)])
def test_offsets_count_whatever_number_a_store_makes_of_them(number):
    chunk = Document("Two is there. Three.", metadata={"doc_id": "d", "start_index": number})
    found = SentenceWindowTransformer(window_size=0).transform_documents([chunk])
    assert [d.metadata["start_index"] for d in found] == [13, 27]


def test_sentences_of_a_chunk_whose_place_is_not_known_have_none_either():
    chunks = [
        Document(text, metadata={"doc_id": "d", "start_index": -1})
        for text in ("Two is there. Three.", "Two is there. Four.")
    ]
    found = SentenceWindowTransformer(window_size=1).transform_documents(chunks)
    assert [d.metadata["start_index"] for d in found] == [-1] * 4
    assert all("window_start_index" not in d.metadata for d in found)
    assert len({d.id for d in found}) == 4
    read = MetadataReplacement().compress_documents([found[0], found[2]], "")
    assert [d.page_content for d in read] == [chunk.page_content for chunk in chunks]


def test_empty_documents_give_nothing_and_inputs_are_not_changed():
    assert split("") == split(" \n ") == []
    documents = copy.deepcopy(PAGES)
    found = SentenceWindowTransformer(window_size=0).transform_documents(documents)
    assert documents == PAGES
    assert all(d.metadata["window"] == d.page_content for d in found)


@pytest.mark.parametrize("size", [-1, 1.5, True, None])
def test_a_window_of_another_size_is_refused(size):
    with pytest.raises(InvalidParameterError, match=r"^window_size must be"):
        SentenceWindowTransformer(window_size=size)


# Reading the window


async def test_the_window_is_read_in_place_of_the_sentence():
    found = split()
    before = copy.deepcopy(found)
    (read,) = MetadataReplacement().compress_documents(found[2:3], "")
    assert read.page_content == found[2].metadata["window"]
    assert read.id == found[2].id
    assert place(read, TEXT) == read.page_content
    assert not [key for key in read.metadata if key.startswith("window")]
    assert await MetadataReplacement().acompress_documents(found[2:3], "") == [read]
    assert found == before


def test_a_window_does_not_have_the_pieces_of_a_sentence_that_was_shortened():
    page = Document("The mill burned down in 1684. It was rebuilt.", id="mill")
    sentence = SentenceWindowTransformer().transform_documents([page])[0]
    pieces = [{"start": 0, "end": 8, "at": 0, "complete": True}]
    short = Document("The mill", metadata={**sentence.metadata, "pieces": pieces})
    (read,) = MetadataReplacement().compress_documents([short], "")
    assert read.page_content == page.page_content
    assert read.metadata == {"doc_id": "mill", "start_index": 0}
    assert short.metadata["pieces"] == pieces


def test_overlapping_windows_are_read_once_at_the_best_place():
    found = split()
    read = MetadataReplacement().compress_documents([found[0], found[5], found[1], found[3]], "")
    assert [d.id for d in read] == [found[0].id]
    assert read[0].page_content == TEXT
    apart = MetadataReplacement().compress_documents([found[5], found[0]], "")
    assert [d.page_content for d in apart] == ["五来了。六走了。", "One is here. Two is there."]


def test_windows_of_different_documents_are_kept_apart():
    pages = SentenceWindowTransformer().transform_documents(PAGES[:2])
    read = MetadataReplacement().compress_documents(pages, "")
    assert [d.page_content for d in read] == [page.page_content for page in PAGES[:2]]


@given(st.lists(st.sampled_from(["One.", "Two is it.", "三。"]), min_size=1, max_size=8), st.data())
def test_whatever_is_found_is_read_once_and_stands_where_it_says(sentences, data):
    text = " ".join(sentences)
    found = split(text, size=data.draw(st.integers(0, 3)))
    taken = data.draw(st.lists(st.sampled_from(found), unique_by=lambda d: d.id))
    read = MetadataReplacement().compress_documents(taken, "")
    spans = []
    for document in read:
        assert place(document, text) == document.page_content
        start = document.metadata["start_index"]
        spans.append((start, start + len(document.page_content)))
    spans.sort()
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    for document in taken:
        start = document.metadata["start_index"]
        assert any(one <= start < other for one, other in spans)


def test_documents_without_a_window_pass_through():
    assert MetadataReplacement().compress_documents(PAGES, "") == PAGES
    assert MetadataReplacement().compress_documents([], "") == []
    with pytest.raises(InvalidParameterError, match=r"^key must be"):
        MetadataReplacement(key="")


def test_a_store_finds_the_sentence_and_the_window_is_read(embedding):
    store = memory_store(split("The mill grinds. Its miller is Ada. Rye is sown."), embedding)
    (found,) = store.similarity_search("miller Ada", k=1)
    assert found.page_content == "Its miller is Ada."
    (read,) = MetadataReplacement().compress_documents([found], "")
    assert read.page_content == "The mill grinds. Its miller is Ada. Rye is sown."
