"""The network of MiniLM in NumPy: a text's pieces go through six layers, and are averaged."""

from __future__ import annotations

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

# The logistic function of x * P(x * x) is the normal distribution of x, to 7e-8 of their product
# with x. Beyond 5.5 the factor stays as it is there: the distribution is 0 or 1 in float32.
_NORMAL: Final = tuple(
    map(
        np.float32,
        (
            1.5957684516906738,
            0.07266856729984283,
            -6.625948299188167e-05,
            -0.0001104804832721129,
            7.938242561067455e-06,
            -2.668943182015937e-07,
            3.6112670631638366e-09,
        ),
    )
)
_FARTHEST: Final = np.float32(5.5**2)
# As many rows as stay in a core's cache while they are worked on.
_ROWS: Final = 32


@dataclass(frozen=True, slots=True)
class _Linear:
    weight: Matrix
    bias: Matrix

    def __call__(self, rows: Matrix) -> Matrix:
        made: Matrix = rows @ self.weight
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
    narrowed: _Linear
    narrowed_norm: _Norm

    def __call__(self, rows: Matrix) -> Matrix:
        made = self.joined(_attention(self.attended(rows)))
        made += rows
        rows = self.joined_norm(made)
        wide = self.widened(rows)
        _gelu(wide)
        made = self.narrowed(wide)
        made += rows
        return self.narrowed_norm(made)


class MiniLmNetwork:
    """Turns the numbers of a text's pieces into a vector.

    The vector depends on nothing but the numbers, the processor and the threads of NumPy's linear
    algebra: texts are never put into one product.

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

    def __call__(self, pieces: list[int]) -> Matrix:
        """Return a vector of unit length, of shape (384,)."""
        numbers = [_FIRST, *pieces, _LAST]
        rows = self._tensors.word_rows(numbers)
        rows += self._positions[: len(numbers)]
        rows = self._norm(rows)
        for layer in self._layers:
            rows = layer(rows)
        mean: Matrix = rows.mean(axis=0)
        mean /= np.sqrt(mean @ mean)
        return mean


def _layer(tensors: Tensors, name: str) -> _Layer:
    parts = [_linear(tensors, f"{name}attention.self.{one}") for one in ("query", "key", "value")]
    scale = np.float32(_HEAD**-0.5)
    parts[0] = _Linear(parts[0].weight * scale, parts[0].bias * scale)
    return _Layer(
        _Linear(
            np.concatenate([one.weight for one in parts], axis=1),
            np.concatenate([one.bias for one in parts]),
        ),
        _linear(tensors, f"{name}attention.output.dense"),
        _norm(tensors, f"{name}attention.output.LayerNorm"),
        _linear(tensors, f"{name}intermediate.dense"),
        _linear(tensors, f"{name}output.dense"),
        _norm(tensors, f"{name}output.LayerNorm"),
    )


def _linear(tensors: Tensors, name: str) -> _Linear:
    return _Linear(tensors.others[f"{name}.weight"], tensors.others[f"{name}.bias"])


def _norm(tensors: Tensors, name: str) -> _Norm:
    return _Norm(tensors.others[f"{name}.weight"], tensors.others[f"{name}.bias"])


def _attention(rows: Matrix) -> Matrix:
    """Mix the values of all pieces, by the likeness of one's query to another's key."""
    count = len(rows)
    heads = rows.reshape(count, 3, _HEADS, _HEAD)
    mixed = np.empty((count, _HEADS, _HEAD), np.float32)
    likeness = np.empty((count, count), np.float32)
    for head in range(_HEADS):
        query, key, value = heads[:, 0, head], heads[:, 1, head], heads[:, 2, head]
        np.matmul(query, key.T, out=likeness)
        likeness -= likeness.max(axis=1, keepdims=True)
        np.exp(likeness, out=likeness)
        mixed[:, head] = (likeness @ value) / likeness.sum(axis=1, keepdims=True)
    return mixed.reshape(count, _WIDTH)


def _gelu(rows: Matrix) -> None:
    """Multiply each value by the normal distribution of it, in place."""
    squares, factors = np.empty((2, min(_ROWS, len(rows)), rows.shape[1]), np.float32)
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        square, factor = squares[: len(some)], factors[: len(some)]
        np.multiply(some, some, out=square)
        np.minimum(square, _FARTHEST, out=square)
        np.multiply(square, _NORMAL[-1], out=factor)
        for coefficient in _NORMAL[-2:0:-1]:
            factor += coefficient
            factor *= square
        factor += _NORMAL[0]
        factor *= some
        np.negative(factor, out=factor)
        with np.errstate(over="ignore"):
            # Divided by infinity, a large negative number is nothing.
            np.exp(factor, out=factor)
        factor += np.float32(1)
        some /= factor
