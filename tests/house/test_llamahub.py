"""What LlamaIndex's tooling reads of the package names classes that are there."""

import inspect
from pathlib import Path

import pytest

import llama_index_longrag

tomllib = pytest.importorskip("tomllib", reason="from Python 3.11 on")

ROOT = Path(__file__).parents[2]


def test_every_class_that_is_named_is_there():
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["llamahub"]
    assert metadata["import_path"] == llama_index_longrag.__name__
    classes = {
        name
        for name in llama_index_longrag.__all__
        if inspect.isclass(getattr(llama_index_longrag, name))
    }
    # A kind describes a store and is no component.
    assert set(metadata["class_authors"]) == classes - {"StoreKind"}
    assert metadata["contains_example"] == bool(list((ROOT / "examples").glob("*.py")))
