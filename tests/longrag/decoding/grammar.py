"""Tokenizers and constraints for the tests of the grammar of an output."""

import numpy as np

MODES = ("keys", "substring", "fm")
BASE = ["a", " ", "<", ">"]


class Pieces:
    """A tokenizer of given pieces; the longest that fits is taken."""

    def __init__(self, pieces):
        self.pieces = tuple(pieces)
        self.vocab_size = len(pieces)
        self.fingerprint = repr(pieces)

    def encode(self, text):
        ids = []
        while text:
            fitting = [piece for piece in self.pieces if piece and text.startswith(piece)]
            ids.append(self.pieces.index(max(fitting, key=len)))
            text = text[len(self.pieces[ids[-1]]) :]
        return ids

    def decode(self, ids):
        return "".join(self.pieces[id_] for id_ in ids)


def may_follow(moves, vocab_size):
    for tokens in (moves.banned, *([] if moves.allowed is None else [moves.allowed])):
        assert tokens.dtype == np.int64
        assert not tokens.flags.writeable
        assert (np.diff(tokens) > 0).all()
    if moves.allowed is None:
        return set(range(vocab_size)) - set(moves.banned.tolist())
    assert moves.closers <= set(moves.allowed.tolist())
    return set(moves.allowed.tolist())
