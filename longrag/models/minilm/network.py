"""The network of MiniLM in NumPy: a text's pieces go through six layers, and are averaged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from longrag.models.minilm.weights import EMBEDDINGS, LAYERS, Matrix, Tensors

_HEADS: Final = 12
_HEAD: Final = 32
_WIDTH: Final = _HEADS * _HEAD
_EPSILON: Final = np.float32(1e-12)
_FIRST, _LAST = 101, 102
"""What a text begins and ends with: [CLS] and [SEP]."""

# The normal distribution of 2x is (1 + tanh(x * P(x * x))) / 2, to 7e-8 of their product with x.
# Beyond 2.75 P only grows, and the distribution is 0 or 1 in float32.
_NORMAL: Final = tuple(
    map(
        np.float32,
        (
            1.5957684516906738,
            0.29067426919937134,
            -0.0010601517278701067,
            -0.007070750929415226,
            0.0020321900956332684,
            -0.00027329978183843195,
            1.4791749890719075e-05,
        ),
    )
)
# As many rows as stay in a core's cache while they are worked on.
_ROWS: Final = 16
# Sums of exponentials are far from where float32 ends, as sums of values by them are.
_MOST: Final = np.float32(1e34)


@dataclass(frozen=True, slots=True)
class _Linear:
    weight: Matrix
    bias: Matrix

    def __call__(self, rows: Matrix, room: Matrix | None = None) -> Matrix:
        """Return the products of rows, in the first of the room where there is one."""
        shape = len(rows), len(self.bias)
        made = None if room is None else room[: math.prod(shape)].reshape(shape)
        made = np.matmul(rows, self.weight, out=made)
        made += self.bias
        return made


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Matrix
    bias: Matrix

    def __call__(self, rows: Matrix) -> Matrix:
        """Scale rows to mean 0 and variance 1 in place, then by the weights."""
        rows -= rows.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", rows, rows) / np.float32(_WIDTH)
        rows *= (1 / np.sqrt(variance + _EPSILON))[:, None]
        rows *= self.weight
        rows += self.bias
        return rows


@dataclass(frozen=True, slots=True)
class _Layer:
    attended: _Linear
    """Queries, keys and values in one product; queries are scaled already."""
    joined: _Linear
    joined_norm: _Norm
    widened: _Linear
    """Made for half of what the function after it takes."""
    narrowed: _Linear
    narrowed_norm: _Norm

    def __call__(self, rows: Matrix, room: Matrix) -> Matrix:
        made = self.joined(_attention(self.attended(rows, room)))
        made += rows
        rows = self.joined_norm(made)
        wide = self.widened(rows, room)
        _gelu_of_twice(wide)
        made = self.narrowed(wide)
        made += rows
        return self.narrowed_norm(made)


class MiniLmNetwork:
    """Turns the numbers of texts' pieces into vectors.

    A vector depends on nothing but its text's numbers, the processor and the threads of NumPy's
    linear algebra: texts are never put into one product.

    Args:
        tensors: the weights.
    """

    def __init__(self, tensors: Tensors) -> None:
        named = tensors.others
        self._tensors = tensors
        # There is one kind of text, so its vector is part of every position's.
        self._positions = (
            named[f"{EMBEDDINGS}position_embeddings.weight"]
            + named[f"{EMBEDDINGS}token_type_embeddings.weight"][0]
        )
        self._norm = _norm(tensors, f"{EMBEDDINGS}LayerNorm")
        self._layers = [_layer(tensors, f"encoder.layer.{n}.") for n in range(LAYERS)]

    def __call__(self, texts: Sequence[list[int]]) -> Matrix:
        """Return vectors of unit length, of shape (texts, 384)."""
        each = [self._embedded([_FIRST, *numbers, _LAST]) for numbers in texts]
        # Asked for once: the widest rows of the longest text.
        room = np.empty(max(map(len, each), default=0) * 4 * _WIDTH, np.float32)
        for layer in self._layers:
            # A layer's weights stay in the cache from one text to the next.
            each = [layer(rows, room) for rows in each]
        made = np.empty((len(each), _WIDTH), np.float32)
        for number, rows in enumerate(each):
            mean = rows.mean(axis=0)
            made[number] = mean / np.sqrt(mean @ mean)
        return made

    def _embedded(self, numbers: list[int]) -> Matrix:
        rows = self._tensors.word_rows(numbers)
        rows += self._positions[: len(numbers)]
        return self._norm(rows)


def _layer(tensors: Tensors, name: str) -> _Layer:
    attended = f"{name}attention.self."
    return _Layer(
        _linear(
            tensors, {f"{attended}query": _HEAD**-0.5, f"{attended}key": 1, f"{attended}value": 1}
        ),
        _linear(tensors, {f"{name}attention.output.dense": 1}),
        _norm(tensors, f"{name}attention.output.LayerNorm"),
        _linear(tensors, {f"{name}intermediate.dense": 0.5}),
        _linear(tensors, {f"{name}output.dense": 1}),
        _norm(tensors, f"{name}output.LayerNorm"),
    )


def _linear(tensors: Tensors, factors: Mapping[str, float]) -> _Linear:
    """Put the columns of several side by side, each times its factor."""
    bias = np.concatenate(
        [tensors.others[f"{name}.bias"] * np.float32(factor) for name, factor in factors.items()]
    )
    height, width = tensors.others[f"{next(iter(factors))}.weight"].shape
    weight = np.empty((height, len(bias)), np.float32)
    for number, (name, factor) in enumerate(factors.items()):
        columns = slice(number * width, (number + 1) * width)
        tensors.put(f"{name}.weight", weight[:, columns], factor)
    return _Linear(weight, bias)


def _norm(tensors: Tensors, name: str) -> _Norm:
    return _Norm(tensors.others[f"{name}.weight"], tensors.others[f"{name}.bias"])


def _attention(rows: Matrix) -> Matrix:
    """Mix the values of all pieces, by the likeness of one's query to another's key.

    Args:
        rows: queries, keys and values; keys are changed.
    """
    heads = rows.reshape(len(rows), 3, _HEADS, _HEAD)
    # What all keys have in common counts for nothing. Without it the likeness of a piece is 0 on
    # average, so that the sum of its exponentials is never small, and hardly ever too large.
    heads[:, 1] -= heads[:, 1].mean(axis=0)
    mixed, sums = _mixed(heads, shifted=False)
    if not sums.max() < _MOST:
        mixed, sums = _mixed(heads, shifted=True)
    mixed /= sums
    return mixed.reshape(len(rows), _WIDTH)


def _mixed(heads: Matrix, *, shifted: bool) -> tuple[Matrix, Matrix]:
    """Return sums of values by the exponentials of likeness, and the sums of these.

    Shifted, the greatest likeness of a piece is 0, so that the exponentials are never too large.
    """
    count = len(heads)
    mixed = np.empty((count, _HEADS, _HEAD), np.float32)
    sums = np.empty((count, _HEADS, 1), np.float32)
    likeness = np.empty((count, count), np.float32)
    ones = np.ones((count, 1), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for head in range(_HEADS):
            query, key, value = heads[:, 0, head], heads[:, 1, head], heads[:, 2, head]
            np.matmul(query, key.T, out=likeness)
            if shifted:
                likeness -= likeness.max(axis=1, keepdims=True)
            np.exp(likeness, out=likeness)
            np.matmul(likeness, value, out=mixed[:, head])
            np.matmul(likeness, ones, out=sums[:, head])
    return mixed, sums


def _gelu_of_twice(rows: Matrix) -> None:
    """Replace each value by twice it times the normal distribution of twice it."""
    squares, factors = np.empty((2, min(_ROWS, len(rows)), rows.shape[1]), np.float32)
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        square, factor = squares[: len(some)], factors[: len(some)]
        np.multiply(some, some, out=square)
        np.multiply(square, _NORMAL[-1], out=factor)
        for coefficient in _NORMAL[-2:0:-1]:
            factor += coefficient
            factor *= square
        factor += _NORMAL[0]
        factor *= some
        np.tanh(factor, out=factor)
        factor += np.float32(1)
        some *= factor
