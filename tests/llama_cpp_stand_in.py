"""The part of llama-cpp-python that is used, over a table of probabilities instead of weights.

As the real one it keeps what was read in its memory, from which it predicts: to set
``n_tokens`` back and not to cut the memory gives wrong numbers or an error, as it does there.
"""

import ctypes
from types import SimpleNamespace

import numpy as np


class Llama:
    """``tokens`` are bytes; ``n_swa`` and ``recurrent`` are what the weights would tell."""

    def __init__(
        self, tokens, probabilities, *, n_ctx=64, n_batch=4, ends=(), bos=None, **settings
    ):
        self.tokens = list(tokens)
        self.probabilities = probabilities
        self.ends = set(ends)
        self.bos = bos
        self.recurrent = settings.pop("recurrent", False)
        self.adds_space = settings.pop("adds_space", False)
        self.n_swa = settings.pop("n_swa", 0)
        self.model_path = settings.pop("model_path", "models/stand-in.gguf")
        self.metadata = {"general.name": "any", "tokenizer.ggml.model": "gpt2"}
        self.context_params = SimpleNamespace(
            embeddings=settings.pop("embedding", False), swa_full=settings.pop("swa_full", True)
        )
        assert not settings, settings
        self.n_batch = n_batch
        self.model = self
        self.n_tokens = 0
        self.input_ids = np.zeros(n_ctx, np.intc)
        self.fails = False
        self.read = []
        self._ctx = _Context(self, n_ctx)

    def n_ctx(self):
        return len(self.input_ids)

    def n_vocab(self):
        return len(self.tokens)

    def token_bos(self):
        return -1 if self.bos is None else self.bos

    def tokenize(self, text, add_bos=True, special=False):
        ids = [self.bos] if add_bos and self.bos is not None else []
        if text and self.adds_space:
            text = b" " + text
        while text:
            fitting = [
                token
                for token, piece in enumerate(self.tokens)
                if piece and text.startswith(piece) and (special or token not in self.named())
            ]
            ids.append(max(fitting, key=lambda token: len(self.tokens[token])))
            text = text[len(self.tokens[ids[-1]]) :]
        return ids

    def named(self):
        return self.ends | {self.bos}

    def reset(self):
        self.n_tokens = 0
        if self.recurrent:
            self._ctx.memory.clear()

    def eval(self, tokens):
        self._ctx.kv_cache_seq_rm(-1, self.n_tokens, -1)
        for begin in range(0, len(tokens), self.n_batch):
            batch = tokens[begin : begin + self.n_batch]
            self._ctx.decode(batch, self.n_tokens)
            self.input_ids[self.n_tokens : self.n_tokens + len(batch)] = batch
            self.n_tokens += len(batch)
        self.read.append(len(tokens))


class _Context:
    def __init__(self, llama, n_ctx):
        self.llama = llama
        self.n_ctx = n_ctx
        self.memory = []
        self.logits = None

    def kv_cache_seq_rm(self, sequence, begin, end):
        assert end == -1
        if self.llama.recurrent and 0 < begin < len(self.memory):
            return False
        del self.memory[begin:]
        return True

    def decode(self, batch, position):
        if self.llama.fails:
            raise RuntimeError("llama_decode returned -3")
        if position != len(self.memory) or position + len(batch) > self.n_ctx:
            raise RuntimeError("llama_decode returned 1")
        self.memory.extend(int(token) for token in batch)
        with np.errstate(divide="ignore"):
            logits = np.log(self.llama.probabilities(tuple(self.memory))) + 3
        self.logits = (ctypes.c_float * len(logits))(*logits)

    def get_logits_ith(self, index):
        assert index == -1
        return ctypes.cast(self.logits, ctypes.POINTER(ctypes.c_float))


def llama_model_get_vocab(model):
    return model


def llama_model_n_swa(model):
    return model.n_swa


def llama_vocab_is_eog(vocabulary, token):
    return token in vocabulary.ends


def llama_token_to_piece(vocabulary, token, buffer, size, *lstrip_and_special):
    assert lstrip_and_special == (0, True)
    piece = vocabulary.tokens[token]
    if len(piece) > size:
        return -len(piece)
    buffer[: len(piece)] = piece
    return len(piece)
