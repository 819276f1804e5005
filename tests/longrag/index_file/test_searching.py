"""What is found keeps to the budget and says where it is from; an answer quotes it."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from longrag.errors import IndexFormatError, InvalidParameterError
from longrag.index_file import searching
from longrag.index_file.parts import open_units
from longrag.index_file.searching import IndexFile
from longrag.models import count_tokens
from tests.longrag.index_file.test_filling import WORDS


@pytest.fixture
def opened(index):
    file, _ = index(tree=True)
    return IndexFile(file)


def test_threads_that_ask_at_once_open_the_file_once(opened, monkeypatch):
    together, made = threading.Barrier(4), []

    def open_once(*arguments, **options):
        made.append(arguments)
        return open_units(*arguments, **options)

    def ask(_):
        together.wait()
        return opened.search("When was the harbour built?")

    monkeypatch.setattr(searching, "open_units", open_once)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(ask, range(4)))
    assert len(made) == 1
    assert found[0]
    assert found == [found[0]] * 4


def test_an_answer_names_the_line(opened):
    answered = opened.ask("When was the harbour built?")
    assert answered.answer == "1742"
    assert str(answered.quotes[0].place) == "harbour.md:7-8"
    assert answered.found[0].kind == "unit"
    assert {place.path for place in answered.found[0].places} == {"harbour.md", "ships.md"}


@pytest.mark.parametrize("source", ["units", "tree", "both", "evidence"])
@pytest.mark.parametrize("budget", [5, 17, 60, 8000, None])
def test_every_source_keeps_to_the_budget(opened, source, budget):
    found = opened.search("Who built the harbour?", source=source, token_budget=budget)
    assert sum(count_tokens(one.text) for one in found) <= (budget or 10**9)
    if budget != 5:
        assert found


@pytest.mark.parametrize("source", ["units", "tree", "both", "evidence"])
def test_places_hold_the_text_they_name(opened, source):
    documents = opened.documents
    found = opened.search("Who built the harbour?", source=source)
    for one in found:
        assert one.places
        for place in one.places:
            stretch = documents[place.path].text[place.start : place.end]
            assert stretch in one.text or one.kind == "summary"
    kinds = {one.kind for one in found}
    expected = {"units": {"unit"}, "evidence": {"passage"}}
    assert kinds == expected.get(source, kinds)
    assert source != "both" or kinds >= {"unit", "leaf"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"question": " "}, "question must be"),
        ({"token_budget": 0}, "token_budget must be"),
        ({"k": 0}, "k must be"),
        ({"source": "leaves"}, "source must be one of units, tree, both, evidence"),
    ],
)
def test_bad_arguments_are_refused(opened, arguments, message):
    with pytest.raises(InvalidParameterError, match=message):
        opened.search(**{"question": "Why?", **arguments})


def test_a_part_that_is_not_there_is_named(index):
    file, _ = index()
    with pytest.raises(InvalidParameterError, match="--build tree"):
        IndexFile(file).search("Why?", source="tree")


def test_a_file_cannot_name_code_that_is_run(index):
    file, _ = index(embedder=WORDS)
    with pytest.raises(InvalidParameterError, match="not trusted"):
        IndexFile(file)
    with pytest.raises(InvalidParameterError, match="made with another embedder"):
        IndexFile(file, embedder="lsa")
    assert IndexFile(file, embedder=WORDS).ask("How long is the pier?").answer == "90 metres"


def test_a_damaged_embedder_is_a_typed_error(index):
    file, _ = index()
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE longrag_item SET content = x'00' WHERE part = 'fitted'")
    connection.close()
    with pytest.raises(IndexFormatError, match="'lsa-a' is damaged"):
        IndexFile(file).search("Why?")
