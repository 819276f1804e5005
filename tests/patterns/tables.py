"""The tables of patterns: each row is a test of its module, or names one elsewhere."""

import importlib
from collections.abc import Mapping
from pathlib import Path

_OWN = "the_table_names_these_tests_and_no_others"


def check_table(file: str, module: Mapping[str, object]) -> None:
    """Assert that a table has a source for each pattern, and a row for each test of a module."""
    table = (Path(__file__).parent / file).read_text("utf-8").replace("\\|", "/")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in table.splitlines()
        if line.startswith("| ")
    ]
    rows = [row for row in rows if row[0] != "name"]
    assert len({row[0] for row in rows}) == len(rows) >= 45
    assert all(source for _, _, source, _ in rows)
    own = {name for name, _, _, elsewhere in rows if not elsewhere}
    here = {name.removeprefix("test_") for name in module if name.startswith("test_")}
    assert own == here - {_OWN}
    for *_, elsewhere in rows:
        path, _, name = elsewhere.partition("::")
        if path:
            found = importlib.import_module(path.removesuffix(".py").replace("/", "."))
            assert callable(getattr(found, name))
