"""The page of results: every table is filled, and no picture is missing."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results.md"


def test_every_table_of_the_results_is_filled():
    page = PAGE.read_text("utf-8")
    places = re.findall(r"<!-- table: (\S+) -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert len({name for name, _ in places}) == len(places) > 10
    for name, text in places:
        rows = [line for line in text.splitlines() if line.startswith("| ")]
        assert len(rows) > 3, f"the table {name!r} is empty: run `make results`"
        assert len({row.count("|") for row in rows}) == 1, name


def test_the_pictures_of_the_results_are_there():
    pictures = re.findall(r"\]\((images/results-\S+\.svg)\)", PAGE.read_text("utf-8"))
    assert len(pictures) == 3
    assert all((PAGE.parent / one).read_text("utf-8").startswith("<svg") for one in pictures)
