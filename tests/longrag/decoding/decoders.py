"""Small decoders over one corpus of letters, and models that follow a script."""

import numpy as np

from longrag.decoding import RichesDecoder
from longrag.indexing import KeyIndex
from tests.tiny_models import CharacterTokenizer, TableModel, random_table

ALPHABET = "ab .[]\nwxyz"
TOKENIZER = CharacterTokenizer(ALPHABET)
MARKS = ("[", "]")
KEYS = ["ab.", "aba.", "b a.", "bb."]
SIZE = TOKENIZER.vocab_size


def index_of(keys=KEYS, **settings_):
    return KeyIndex.from_keys(keys, tokenizer=TOKENIZER, markers=MARKS, **settings_)


def noise(seed, sharpness=2.0, **settings_):
    return TableModel(TOKENIZER, random_table(SIZE, seed, sharpness=sharpness), **settings_)


def script(*texts, tokenizer=TOKENIZER):
    """A model that would rather write the first of the texts that agrees with what it wrote."""
    size = tokenizer.vocab_size

    def probabilities(prefix):
        written = tokenizer.decode(prefix[1:])
        vector = np.full(size, 1e-6)
        for rank, text in enumerate(texts):
            if text.startswith(written):
                rest = text[len(written) :]
                token = tokenizer.encode(rest[0])[0] if rest else size - 1
                vector[token] += 0.5 / (rank + 1)
        return vector / vector.sum()

    return TableModel(tokenizer, probabilities)


def decoder(model, index=None, **settings_):
    corpus = index_of() if index is None else index
    return RichesDecoder(model, corpus, markers=MARKS, **settings_)
