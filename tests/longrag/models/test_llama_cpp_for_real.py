"""llama.cpp itself, on a tiny Llama written as GGUF, against the same weights in transformers."""

import numpy as np
import pytest

from longrag.decoding import RichesDecoder
from longrag.errors import InvalidParameterError
from longrag.indexing import KeyIndex
from longrag.models import LlamaCppLanguageModel, TransformersLanguageModel
from longrag.models.language_model import Next
from longrag.models.llama_cpp_model import LlamaCppTokenizer
from longrag.models.tokenizer import check_splices
from tests.conformance.language_models import LanguageModelSuite
from tests.gguf_files import write_gguf, write_mamba, write_sentencepiece
from tests.tiny_models import byte_tokenizer, tiny, tiny_llama

llama_cpp = pytest.importorskip(
    "llama_cpp", reason="llama-cpp-python compiles when installed, and no test group has it"
)
pytest.importorskip("gguf", reason="gguf writes the files that this reads")
torch = pytest.importorskip("torch", reason="needs torch")
transformers = pytest.importorskip("transformers", reason="needs transformers")
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
            assert model.prompt_ids(text) == reference.prompt_ids(text)
            assert model.tokenizer.encode(text) == reference.tokenizer.encode(text)
        assert len(model.prompt_ids("<s>The mill")) > len(model.prompt_ids("The mill"))
        live = LlamaCppLanguageModel(model._llama, special_tokens=True)
        assert live.prompt_ids("<s>The mill") == model.prompt_ids("The mill")
        assert model.end_ids == reference.end_ids
        assert (model.name, model.context_window) == ("tiny.gguf", 256)

    def test_other_calls_of_the_same_llama_may_come_between(self, model, prompts, width, check):
        with model.session(prompts) as session:
            asked = [Next(0, (5, 6), width)]
            check(asked, session.score(asked))
            model._llama.create_completion("Ada Lind", max_tokens=3, temperature=0)
            asked = [Next(0, (5, 6, 7), width), Next(1, (), width)]
            check(asked, session.score(asked))


@pytest.fixture(scope="module")
def mamba(tmp_path_factory):
    tokenizer = byte_tokenizer(bos=True)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "time_step_rank": 2}
    network = tiny(transformers.MambaConfig, transformers.MambaForCausalLM, len(tokenizer), **shape)
    path = tmp_path_factory.mktemp("gguf") / "mamba.gguf"
    write_mamba(path, network, tokenizer)
    llama = load(path)
    yield LlamaCppLanguageModel(llama), network
    llama.close()


class TestMamba(LanguageModelSuite):
    @pytest.fixture
    def model(self, mamba):
        return mamba[0]

    @pytest.fixture
    def oracle(self, mamba):
        def logprobs(tokens):
            with torch.inference_mode():
                logits = mamba[1](input_ids=torch.tensor([tokens]), use_cache=False).logits
            return logits[0, -1].double().log_softmax(0).numpy()

        return logprobs


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_decoder_writes_over_llama_cpp_what_it_writes_over_transformers(
    loaded, reference, beam_size
):
    keys = [f"The mill of {town} burned down in 16{year}." for town in ("Ada", "Oslo")
            for year in range(80, 90)]  # fmt: skip
    found = []
    for model in (loaded, reference):
        index = KeyIndex.from_keys(keys, tokenizer=model.tokenizer)
        decoder = RichesDecoder(model, index, beam_size=beam_size, max_new_tokens=40)
        written = decoder.generate("The mill burned down in 1684. << The mill burned")
        found.append((written.text, [span.text for span in decoder.keys("Ada Lind", 3)]))
    assert found[0] == found[1]
    assert set(found[0][1]) <= set(keys)


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
    with pytest.raises(InvalidParameterError, match="without embedding=True"):
        LlamaCppLanguageModel(load(path, embedding=True))
    with pytest.raises(InvalidParameterError, match=r"a loaded llama_cpp\.Llama, got 'pathlib"):
        LlamaCppLanguageModel(path)
