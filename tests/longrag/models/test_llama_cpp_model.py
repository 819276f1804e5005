"""llama.cpp: the numbers are the model's whatever was read before, and little is read again."""

import random
import sys

import numpy as np
import pytest

from longrag.errors import (
    GenerationError,
    InvalidParameterError,
    MissingExtraError,
    TokenizerError,
)
from longrag.models import LlamaCppLanguageModel
from longrag.models.language_model import Next
from longrag.models.llama_cpp_model import LlamaCppTokenizer
from tests import llama_cpp_stand_in as stand_in
from tests.conformance.language_models import LanguageModelSuite
from tests.tiny_models import random_table

LETTERS = " \n.<>abcdefghijklmnopqrstuvwxyzTAM"
TOKENS = [b"<s>", b"</s>", b"<eot>", *(letter.encode() for letter in LETTERS), b"-" * 1500]
SIZE = len(TOKENS)
TABLE = random_table(SIZE, seed=2)


@pytest.fixture(autouse=True)
def stood_in(monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", stand_in)


def llama(probabilities=TABLE, tokens=TOKENS, **settings):
    return stand_in.Llama(tokens, probabilities, **{"ends": (1, 2), "bos": 0, **settings})


def expected(row, table=TABLE):
    return np.log(table(tuple(row)))


def ids(*numbers):
    return np.array(numbers, np.int64)


class Suite(LanguageModelSuite):
    recurrent = False

    @pytest.fixture
    def model(self):
        return LlamaCppLanguageModel(llama(recurrent=self.recurrent, n_ctx=128))

    @pytest.fixture
    def oracle(self):
        return expected


class TestAttention(Suite):
    pass


class TestRecurrence(Suite):
    recurrent = True


def test_a_text_that_goes_on_reads_its_new_tokens_alone():
    loaded = llama()
    with LlamaCppLanguageModel(loaded).session([[3, 4, 5]]) as session:
        for tokens in ((), (6,), (6, 7), (6, 7, 8)):
            session.score([Next(0, tokens, 1)])
    assert loaded.read == [3, 1, 1, 1]


def test_texts_asked_together_are_read_in_the_order_in_which_least_is_read():
    loaded = llama()
    rows = [(6, 9), (6, 7, 8), (), (6, 7), (5,), (6, 7, 9), (6,)]
    asked = [Next(0, row, SIZE) for row in rows]
    with LlamaCppLanguageModel(loaded).session([[3, 4]]) as session:
        found = session.score(asked)
    assert loaded.read == [2, 1, 1, 1, 1, 1, 1]
    for row, scores in zip(rows, found, strict=True):
        np.testing.assert_allclose(
            scores.logprobs, expected((3, 4, *row))[scores.ids], rtol=1e-5, atol=1e-5
        )


def test_a_model_that_cannot_go_back_reads_from_the_begin_only_when_it_leaves_a_text():
    loaded = llama(recurrent=True)
    with LlamaCppLanguageModel(loaded).session([[3, 4]]) as session:
        for tokens in ((), (6,), (7,), (7, 8)):
            session.score([Next(0, tokens, 1)])
    assert loaded.read == [2, 1, 3, 1]


@pytest.mark.parametrize("recurrent", [False, True])
def test_what_others_read_in_between_changes_no_number(recurrent):
    loaded = llama(recurrent=recurrent)
    draw = random.Random(4)
    with LlamaCppLanguageModel(loaded).session([[3, 4, 5], [3, 4]]) as session:
        for _ in range(60):
            if draw.random() < 0.3:
                loaded.reset()
                loaded.eval([draw.randrange(SIZE) for _ in range(draw.randrange(1, 9))])
            asked = Next(
                draw.randrange(2), tuple(draw.randrange(3, 6) for _ in range(draw.randrange(5))), 9
            )
            (scores,) = session.score([asked])
            row = ([3, 4, 5], [3, 4])[asked.prompt] + list(asked.tokens)
            order = np.argsort(-expected(row), kind="stable")[:9]
            assert scores.ids.tolist() == order.tolist()
            np.testing.assert_allclose(scores.logprobs, expected(row)[order], atol=1e-5)


def test_equal_tokens_come_in_the_order_of_their_ids():
    model = LlamaCppLanguageModel(llama(lambda prefix: np.full(SIZE, 1 / SIZE)))
    with model.session([[3]]) as session:
        one, other = session.score([Next(0, (), 3), Next(0, (), 2, ids(5, 7, 9), ids(5))])
    assert (one.ids.tolist(), other.ids.tolist()) == ([0, 1, 2], [7, 9])
    np.testing.assert_allclose(one.logprobs, -np.log(SIZE), rtol=1e-6)


def test_a_failure_of_llama_cpp_is_told_and_leaves_it_usable():
    loaded = llama()
    with LlamaCppLanguageModel(loaded).session([[3, 4]]) as session:
        session.score([Next(0, (), 1)])
        loaded.fails = True
        with pytest.raises(GenerationError, match="could not read 1 tokens after 2: llama_decode"):
            session.score([Next(0, (5,), 1)])
        loaded.fails = False
        (found,) = session.score([Next(0, (5,), 1)])
    assert found.ids.tolist() == [int(np.argmax(expected((3, 4, 5))))]


def test_no_probability_and_no_number_are_errors():
    sure = LlamaCppLanguageModel(llama(lambda prefix: np.eye(SIZE)[7]))
    with sure.session([[3]]) as session:
        assert session.score([Next(0, (), 1)])[0].logprobs.tolist() == [0.0]
        with pytest.raises(GenerationError, match="gives no probability to token 0"):
            session.score([Next(0, (), 2)])
        with pytest.raises(GenerationError, match="gives no probability to token 8"):
            session.score([Next(0, (), 1, ids(8))])
    broken = LlamaCppLanguageModel(llama(lambda prefix: np.full(SIZE, np.nan)))
    with broken.session([[3]]) as session, pytest.raises(GenerationError, match="no finite logits"):
        session.score([Next(0, (), 1)])


def test_ids_behind_those_of_a_given_tokenizer_are_never_told():
    shorter = LlamaCppTokenizer(llama(tokens=TOKENS[:20]))
    model = LlamaCppLanguageModel(llama(), tokenizer=shorter)
    with model.session([[3]]) as session:
        (found,) = session.score([Next(0, (), SIZE)])
    assert sorted(found.ids.tolist()) == list(range(20))
    np.testing.assert_allclose(found.logprobs, expected((3,))[found.ids], atol=1e-5)


# Text


def test_prompts_begin_with_the_files_first_token_once():
    with_one, without = LlamaCppLanguageModel(llama()), LlamaCppLanguageModel(llama(bos=None))
    trusted = LlamaCppLanguageModel(llama(), special_tokens=True)
    assert with_one.prompt_ids("ab") == trusted.prompt_ids("<s>ab") == [0, 8, 9]
    assert without.prompt_ids("ab") == [8, 9]
    assert trusted.prompt_ids("a</s>") == [0, 8, 1]


def test_a_special_token_in_a_prompt_is_text_unless_it_is_trusted():
    own = llama(tokens=[*TOKENS, b"/"])
    ids = LlamaCppLanguageModel(own).prompt_ids("a</s>")
    assert ids == [0, *LlamaCppTokenizer(own).encode("a</s>")]
    assert 1 not in ids


def test_text_spells_special_tokens_out_and_they_are_decoded():
    tokenizer = LlamaCppTokenizer(llama(tokens=[*TOKENS, b"/"]))
    spelled = tokenizer.encode("</s>")
    assert len(spelled) == 4
    assert tokenizer.decode(spelled) == "</s>"
    assert tokenizer.decode([1]) == "</s>"


def test_long_tokens_are_decoded_whole_and_halves_of_letters_replaced():
    tokenizer = LlamaCppTokenizer(llama(tokens=[b"-" * 1500, b"\xc3", b"\xbc", b"a"]))
    assert tokenizer.decode([0]) == "-" * 1500
    assert tokenizer.decode([1]) == "\N{REPLACEMENT CHARACTER}"
    assert tokenizer.decode(np.array([1, 2])) == "ü"
    assert tokenizer.decode([]) == ""


def test_a_space_that_the_file_adds_is_left_out():
    tokenizer = LlamaCppTokenizer(llama(adds_space=True))
    plain = LlamaCppTokenizer(llama())
    for text in ("ab", " ab", "", " ", "\nab", "  a"):
        assert tokenizer.encode(text) == plain.encode(text)


def test_half_of_a_surrogate_pair_is_refused():
    model = LlamaCppLanguageModel(llama())
    for encode in (model.tokenizer.encode, model.prompt_ids):
        with pytest.raises(TokenizerError, match="cannot be written as UTF-8"):
            encode("a\ud83d")


def everything(probe=b""):
    """Return tokens for any text."""
    return [bytes([byte]) for byte in range(256)] + [probe] * bool(probe)


def test_the_fingerprint_is_that_of_the_tokens_and_of_how_they_are_cut():
    def of(tokens, **settings):
        return LlamaCppTokenizer(llama(tokens=tokens, bos=None, ends=(), **settings)).fingerprint

    prints = [
        of(everything()),
        of(everything(b"mills")),
        of(everything(b"never")),
        of(everything()[::-1]),
        of(everything(), adds_space=True),
    ]
    assert prints[0] == of(everything(), n_ctx=9, model_path="elsewhere.gguf")
    assert len(set(prints[:4])) == 4


# What it is made of


def test_it_is_named_by_its_file_and_ends_where_the_file_says():
    model = LlamaCppLanguageModel(llama())
    assert (model.name, model.end_ids, model.context_window) == ("stand-in.gguf", (1, 2), 64)
    other = LlamaCppLanguageModel(llama(), name="weights", end_ids=[9, 2, 9])
    assert (other.name, other.end_ids) == ("weights", (2, 9))


class Wrapper:
    """A framework's class that holds a Llama."""

    client = None


@pytest.mark.parametrize("wrong", [Wrapper(), "model.gguf", None])
def test_what_is_no_llama_is_refused_by_its_type(wrong):
    with pytest.raises(InvalidParameterError, match=r"a loaded llama_cpp\.Llama") as raised:
        LlamaCppLanguageModel(wrong)
    assert raised.value.received == f"{type(wrong).__module__}.{type(wrong).__qualname__}"


def test_what_was_loaded_so_that_it_cannot_score_is_refused():
    with pytest.raises(InvalidParameterError, match="without embedding=True"):
        LlamaCppLanguageModel(llama(embedding=True))
    with pytest.raises(InvalidParameterError, match="swa_full=True"):
        LlamaCppLanguageModel(llama(n_swa=8, swa_full=False))
    assert LlamaCppLanguageModel(llama(n_swa=8)).context_window == 64
    assert LlamaCppLanguageModel(llama(swa_full=False)).context_window == 64


def test_without_llama_cpp_the_extra_is_named(monkeypatch):
    loaded = llama()
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'longrag\[llama-cpp\]'"):
        LlamaCppLanguageModel(loaded)
