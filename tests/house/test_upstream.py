"""The comparison with LlamaIndex's own tests fails where a run differs from its table."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "upstream"


@pytest.fixture
def upstream(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return runpy.run_path(str(FOLDER / "__main__.py"), run_name="upstream")


def test_a_new_failure_and_an_idle_reason_are_both_told(upstream):
    stock = {"a": "passed", "b": "passed", "c": "failed", "d": "passed"}
    own = {"a": "passed", "b": "failed", "c": "failed", "d": "skipped"}
    compare = upstream["differences"]
    assert compare(stock, own, {"b": "why", "d": "why"}) == ([], [])
    assert compare(stock, own, {"b": "why"}) == (["d"], [])
    # One passes, one fails with the stock class too, and one is not there.
    reasons = dict.fromkeys("abcdx", "why")
    assert compare(stock, own, reasons) == ([], ["a", "c", "x"])
    assert compare(stock, {}, {}) == (["a", "b", "d"], [])


def test_each_class_of_the_table_is_swapped_in_and_each_reason_names_a_test(upstream):
    reasons, suites = upstream["REASONS"], upstream["SUITES"]
    assert reasons.keys() <= suites.keys()
    swap = (FOLDER / "swap.py").read_text("utf-8")
    assert all(f'"{name}": {{' in swap for name in suites)
    for tests in reasons.values():
        assert all(
            why and test.startswith("tests/") and "::test_" in test for test, why in tests.items()
        )


def test_a_folder_that_is_no_checkout_is_refused(upstream, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["upstream", str(tmp_path)])
    with pytest.raises(SystemExit, match="give a checkout"):
        upstream["main"]()
