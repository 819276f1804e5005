"""llama.cpp itself, on a tiny Llama written as GGUF, against the same weights in transformers."""

import numpy as np
import pytest
import torch

from longrag.errors import InvalidParameterError
from longrag.models import (
    LlamaCppLanguageModel,
    LlamaCppTokenizer,
    Next,
    TransformersLanguageModel,
)
from longrag.models.tokenizer import check_splices
from tests.conformance.language_models import LanguageModelSuite
from tests.gguf_files import write_gguf, write_sentencepiece
from tests.tiny_models import byte_tokenizer, tiny_llama

llama_cpp = pytest.importorskip(
    "llama_cpp", reason="llama-cpp-python compiles when installed, and no test group has it"
)
pytest.importorskip("gguf", reason="gguf writes the files that this reads")
torch.set_num_threads(1)
FLOAT32 = 0


def load(path, **settings):
    given = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
    return llama_cpp.Llama(str(path), type_k=FLOAT32, type_v=FLOAT32, **{**given, **settings})


@pytest.fixture(scope="module")
def weights():
    tokenizer = byte_tokenizer(bos=True)
    return tiny_llama(len(tokenizer), max_position_embeddings=256), tokenizer


@pytest.fixture(scope="module")
def path(weights, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, *weights)
    return path


@pytest.fixture(scope="module")
def reference(weights):
    return TransformersLanguageModel(*weights)


@pytest.fixture(scope="module", params=[{}, {"n_batch": 3}, {"logits_all": True}], ids=str)
def loaded(path, request):
    llama = load(path, **request.param)
    yield LlamaCppLanguageModel(llama)
    llama.close()


class TestLlamaCpp(LanguageModelSuite):
    @pytest.fixture
    def model(self, loaded):
        return loaded

    @pytest.fixture
    def oracle(self, reference, width):
        def logprobs(tokens):
            with reference.session([tokens]) as session:
                scores = session.score([Next(0, (), width)])[0]
            return scores.logprobs[np.argsort(scores.ids)]

        return logprobs

    def test_it_cuts_and_ends_as_transformers_does(self, model, reference):
        for text in ("", "The mill", " << Ünï 磨\n\n >>", "<s></s>", "<s>The mill"):
            assert model.prompt_ids(text) == reference.prompt_ids(text) or text.startswith("<s>")
            assert model.tokenizer.encode(text) == reference.tokenizer.encode(text)
        assert model.prompt_ids("<s>The mill") == model.prompt_ids("The mill")
        assert model.end_ids == reference.end_ids
        assert (model.name, model.context_window) == ("tiny.gguf", 256)

    def test_other_calls_of_the_same_llama_may_come_between(self, model, prompts, width, check):
        with model.session(prompts) as session:
            asked = [Next(0, (5, 6), width)]
            check(asked, session.score(asked))
            model._llama.create_completion("Ada Lind", max_tokens=3, temperature=0)
            asked = [Next(0, (5, 6, 7), width), Next(1, (), width)]
            check(asked, session.score(asked))


def test_the_fingerprint_tells_tokenizers_apart(path, weights, tmp_path):
    other = byte_tokenizer("another text, from which other merges come " * 3, bos=True)
    write_gguf(tmp_path / "other.gguf", tiny_llama(len(other)), other)
    first, again = LlamaCppTokenizer(load(path)), LlamaCppTokenizer(load(path, n_ctx=64))
    second = LlamaCppTokenizer(load(tmp_path / "other.gguf"))
    assert first.fingerprint == again.fingerprint != second.fingerprint
    assert len(first.fingerprint) == 64


def test_the_space_that_sentencepiece_adds_is_left_out(tmp_path):
    write_sentencepiece(
        tmp_path / "spm.gguf", ["▁", "a", "b", "▁a", "ab", "▁ab", "<<", "▁<<", ">>"]
    )
    tokenizer = LlamaCppTokenizer(load(tmp_path / "spm.gguf"))
    pieces = [[tokenizer.decode([token]) for token in tokenizer.encode(text)] for text in
              ("ab", " ab", "", " << ab", "\nab")]  # fmt: skip
    assert pieces == [["ab"], [" ab"], [], [" <<", " ab"], ["\n", "ab"]]
    check_splices(tokenizer, ["ab", "b a"], markers=("<<", ">>"))


def test_what_was_loaded_so_that_it_cannot_score_is_refused(path):
    with pytest.raises(InvalidParameterError, match="loaded without embedding"):
        LlamaCppLanguageModel(load(path, embedding=True))
    with pytest.raises(InvalidParameterError, match=r"a loaded llama_cpp\.Llama, got 'pathlib"):
        LlamaCppLanguageModel(path)
