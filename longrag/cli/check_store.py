"""``longrag check-store FRAMEWORK MODULE:FUNCTION``: the checks of a vector store of your own."""

from __future__ import annotations

import argparse
from typing import Any

from longrag.stores.checks import check_named_store


def add(commands: Any) -> None:
    """Describe the command."""
    parser: argparse.ArgumentParser = commands.add_parser("check-store")
    parser.add_argument("framework", help="llama-index or langchain")
    parser.add_argument("factory", help="module:function, which returns a new, empty store")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check the store; the status is 1 when a check failed."""
    return 0 if check_named_store(options.framework, options.factory) else 1
