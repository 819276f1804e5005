"""The page of results: every table is filled, and no picture is missing."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results.md"
TABLES = {
    "systems-hotpotqa", "systems-squad", "books-squality", "chunking", "fusion", "ablation",
    "published", "riches",
}  # fmt: skip


def test_every_table_of_the_results_is_filled():
    page = PAGE.read_text("utf-8")
    places = re.findall(r"<!-- table: (\S+) -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert sorted(name for name, _ in places) == sorted(TABLES)
    for name, text in places:
        rows = [line for line in text.splitlines() if line.startswith("| ")]
        assert len(rows) > 3, f"the table {name!r} is empty: run `make results`"
        assert len({row.count("|") for row in rows}) == 1, name


def test_each_system_stands_beside_hybrid_passages_and_keywords():
    page = PAGE.read_text("utf-8")
    for name in ("systems-hotpotqa", "systems-squad", "books-squality"):
        _, _, rest = page.partition(f"<!-- table: {name} -->")
        first = set(re.findall(r"^\| ([^|]+?) \|", rest.partition("<!-- end -->")[0], re.MULTILINE))
        assert {"passages", "hybrid", "BM25"} <= first, name


def test_the_pictures_of_the_results_are_there():
    pictures = re.findall(r"\]\((images/results-\S+\.svg)\)", PAGE.read_text("utf-8"))
    assert len(pictures) == 3
    assert all((PAGE.parent / one).read_text("utf-8").startswith("<svg") for one in pictures)
