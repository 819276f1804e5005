"""Notebooks are read as the Markdown and the code of their cells, and places name the cells."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrag.errors import InvalidDocumentError
from longrag.index_file.places import locate
from longrag.index_file.reading import read_pages
from longrag.ingestion.notebooks import read_notebook
from longrag.ingestion.resolving import resolve_links
from longrag.ingestion.sources import read_documents


def notebook(*cells, **metadata):
    return json.dumps(
        {
            "cells": [
                {"cell_type": kind, "metadata": {}, "source": source, "outputs": [OUTPUT]}
                for kind, source in cells
            ],
            "metadata": metadata,
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )


OUTPUT = {"output_type": "stream", "text": ["SECRET OUTPUT"]}
KERNEL = {"kernelspec": {"language": "python"}}
CELLS = [
    ("markdown", ["# Mills\n", "\n", "See [weirs](weirs.md)."]),
    ("raw", "no text"),
    ("code", ["# not a title\n", 'grain = [["rye"]]\n', "grind(grain)\n"]),
    ("code", ""),
    ("markdown", "The mill burned down in 1684."),
]


def test_text_and_code_are_read_without_outputs(tmp_path):
    (tmp_path / "a.ipynb").write_text(notebook(*CELLS, **KERNEL))
    (tmp_path / "weirs.md").write_text("# Weirs\n\nSee [mills](a.ipynb) and [[Mills]].")
    mills, weirs = read_documents(tmp_path)
    assert (mills.title, mills.id) == ("Mills", "a.ipynb")
    assert mills.text == (
        "# Mills\n\nSee [weirs](weirs.md).\n\n"
        '```python\n# not a title\ngrain = [["rye"]]\ngrind(grain)\n```\n\n'
        "The mill burned down in 1684."
    )
    assert resolve_links([mills, weirs]).links == ((0, 1), (1, 0))
    assert resolve_links([mills, weirs]).unresolved == ()


def test_a_place_names_the_cell_as_a_reader_counts_it(tmp_path):
    (tmp_path / "a.ipynb").write_text(notebook(*CELLS))
    (page,) = read_pages(tmp_path).documents

    def place(text):
        at = page.text.index(text)
        return str(locate(page, at, at + len(text)))

    assert place("weirs") == "a.ipynb, cell 1"
    assert place("grind(") == "a.ipynb, cell 3"
    assert place("1684") == "a.ipynb, cell 5"
    assert place("weirs.md).\n\n```") == "a.ipynb, cell 1-3"
    assert locate(page, 0, 5).record()["cells"] == [1, 1]
    assert "lines" not in locate(page, 0, 5).record()


SOURCES = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(st.lists(st.tuples(st.sampled_from(["markdown", "code", "raw"]), SOURCES), max_size=6))
def test_each_cell_stands_where_it_begins_and_in_one_cell(cells):
    text, starts = read_notebook("a.ipynb", notebook(*cells))
    assert len(starts) == len(cells)
    for (kind, source), start, end in zip(cells, starts, [*starts, len(text)][1:], strict=True):
        if kind != "raw" and source.strip():
            assert source.strip("\r\n") in text[start : max(end, start)]
    assert "SECRET" not in text


def test_backticks_in_code_do_not_end_its_block():
    text, _ = read_notebook("a", notebook(("code", "x = '''\n````\n'''"), ("markdown", "# Title")))
    assert text == "`````\nx = '''\n````\n'''\n`````\n\n# Title"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"cells": 3}',
        '{"cells": [3]}',
        '{"worksheets": [{"cells": []}], "nbformat": 3}',
        "[" * 100_000,
        '{"cells": ' + "9" * 5_000 + "}",
    ],
)
def test_a_damaged_notebook_is_refused_by_name(tmp_path, content):
    (tmp_path / "a.ipynb").write_text(content)
    (tmp_path / "b.md").write_text("Text.")
    with pytest.raises(InvalidDocumentError, match=r"'a\.ipynb' as a notebook"):
        read_documents(tmp_path)
    pages = read_pages(tmp_path)
    assert [page.id for page in pages.documents] == ["b.md"]
    assert len(pages.skipped) == 1


@pytest.mark.parametrize(
    "cell",
    [
        {},
        {"cell_type": "code"},
        {"cell_type": "code", "source": 3},
        {"cell_type": "code", "source": [3, None]},
        {"cell_type": ["code"], "source": "x"},
    ],
)
def test_a_cell_without_text_is_passed_over(cell):
    text, starts = read_notebook("a", json.dumps({"cells": [cell], "metadata": []}))
    assert (text, starts) == ("", [0])


def test_a_language_cannot_end_its_line():
    kernel = {"kernelspec": {"language": "x\n# Title\n"}, "language_info": {"name": "c++"}}
    text, _ = read_notebook("a", notebook(("code", "y"), **kernel))
    assert text == "```c++\ny\n```"
