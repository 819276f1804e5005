"""A model of characters with a table of scores, and what a vLLM server says of it."""

import numpy as np

from longrag.models.language_model import Next
from tests.tiny_models import CharacterTokenizer, TableModel, random_table

ALPHABET = " \n<>abcdefghijklmnopqrstuvwxyzTM1684.[]"
TOKENIZER = CharacterTokenizer(ALPHABET)
SIZE = TOKENIZER.vocab_size
TABLE = random_table(SIZE, seed=3)


def ids(*numbers):
    return np.array(sorted(numbers), np.int64)


def agree(found, expected):
    assert [one.ids.tolist() for one in found] == [one.ids.tolist() for one in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=1e-6)
        assert (one.ids.dtype, one.logprobs.dtype) == (np.int64, np.float64)


def score(model, prompts, asked):
    with model.session(prompts) as session:
        return session.score(asked)


def assert_as_the_table(model, prompts, asked, table=TABLE, tokenizer=TOKENIZER):
    agree(score(model, prompts, asked), score(TableModel(tokenizer, table), prompts, asked))


ONE = [Next(0, (), 1)]
