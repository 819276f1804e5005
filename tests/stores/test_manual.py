"""The examples of the manual that need a store of another package run."""

from pathlib import Path

import pytest
from sybil import Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

pytest.importorskip("chromadb", reason="run by `make stores`")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "stores.md"


def test_the_blocks_over_other_packages_stores_run():
    examples = list(Sybil([CodeBlockParser("py", PythonEvaluator())]).parse(PAGE).examples())
    assert len(examples) == 2
    for example in examples:
        example.evaluate()
