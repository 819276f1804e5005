"""Where the prepared public data lie, and how a file of them is read."""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = Path(os.environ.get("LONGRAG_DATA", Path(__file__).parents[2] / "shared" / "data"))
"""``shared/data`` beside the checkout, unless LONGRAG_DATA names another folder."""


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Let the command line name another folder."""
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of prepared sets")


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read the rows of a gzip JSON-lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)
