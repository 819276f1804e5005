"""Run LlamaIndex's own tests over our classes, and compare how they end with the table.

    python tests/upstream CHECKOUT

CHECKOUT is a checkout of LlamaIndex's repository, whose core the installed one should be. Each
suite runs with the stock classes first and then with each of ours in their place. A test that
passes with the stock class must pass with ours or stand in ``table.py`` with its reason; one that
stands there must not pass. Otherwise the command fails and says which. What does not pass with the
stock class either, for instance since a package is not installed, is counted and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from table import INDEXES, INGESTION, REASONS, SUITES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def outcomes(checkout: Path, swap: str, suites: Iterable[str]) -> dict[str, str]:
    """Run suites with one class in place of the stock one; return how each test ended."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "outcomes.json"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
            "LONGRAG_SWAP": swap,
            "LONGRAG_OUTCOMES": str(written),
        }
        command = [sys.executable, "-m", "pytest", "-p", "swap", "-c", os.devnull, "--rootdir", "."]
        settings = ["--timeout", "60", "-o", "asyncio_mode=strict", "-p", "no:cacheprovider"]
        folders = [f"tests/{suite}" for suite in suites]
        asked = ["-q", "--tb", "no", "--continue-on-collection-errors", *folders]
        done = subprocess.run(
            [*command, *settings, *asked],
            cwd=checkout / "llama-index-core",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if not written.exists():
            raise SystemExit(f"{folders} did not run with {swap}:\n{done.stdout}{done.stderr}")
        ended: dict[str, str] = json.loads(written.read_text("utf-8"))
        return ended


def differences(
    stock: dict[str, str], own: dict[str, str], reasons: dict[str, str]
) -> tuple[list[str], list[str]]:
    """Return the tests that pass with the stock class alone without a reason, and idle reasons."""
    expected = {test for test, outcome in stock.items() if outcome == "passed"}
    failed = {test for test in expected if own.get(test) != "passed"}
    return sorted(failed - reasons.keys()), sorted(reasons.keys() - failed)


def main() -> None:
    """Run each suite with each class, print the table of counts, and say what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="a checkout of LlamaIndex's repository")
    checkout = parser.parse_args().checkout
    if not (checkout / "llama-index-core" / "tests").is_dir():
        raise SystemExit(f"{checkout} holds no llama-index-core/tests: give a checkout")
    print(f"llama-index-core {version('llama-index-core')} is installed")
    stock = {part: outcomes(checkout, "stock", part) for part in (INDEXES, INGESTION)}
    wrong = 0
    for swap, parts in SUITES.items():
        before = {test: end for part in parts for test, end in stock[part].items()}
        after = {test: end for p in parts for test, end in outcomes(checkout, swap, p).items()}
        reasons = REASONS.get(swap, {})
        new, idle = differences(before, after, reasons)
        passed = [test for test, end in before.items() if end == "passed"]
        kept = sum(after.get(test) == "passed" for test in passed)
        print(
            f"{swap:<20} {kept} of the {len(passed)} that pass with the stock class,"
            f" {len(reasons)} in the table, {len(before) - len(passed)} left out"
        )
        for test in new:
            print(f"  does not pass, and is not in the table: {test}")
        for test in idle:
            print(f"  is in the table, and passes or does not run: {test}")
        wrong += len(new) + len(idle)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
