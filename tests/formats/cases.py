"""What a case of a format is, and how it is packed into the repository."""

from __future__ import annotations

import gzip
import importlib.util
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SAVED = Path(__file__).with_name("saved")
EXPECTED = "expected.json"
_LARGEST = 8192


@dataclass(frozen=True)
class Format:
    """A format that is saved, and the module whose version number it has."""

    name: str
    module: str

    @property
    def version(self) -> int:
        module = importlib.import_module(self.module)
        named = getattr(module, "_VERSION", None)
        return named or int(re.findall(r"-(\d+)$", module._FORMAT)[0])


@dataclass(frozen=True)
class Case:
    """One thing that is saved in a format.

    Attributes:
        format: the format.
        name: the name of the case among those of its format.
        write: saves it in an empty folder, and returns what is asked of it, answered from memory.
        read: opens what is in a folder, and asks the same.
        equal: whether equal content gives equal files.
        beside: tables of another format in the same database.
    """

    format: Format
    name: str
    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    equal: bool = True
    beside: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.format.name}-{self.name}"

    def kept(self, version: int) -> Path:
        """Return where the files of a version are kept."""
        return SAVED / f"{self.format.name}-{version}" / self.name


def marked(values: Sequence[Any], names: Sequence[str] | None = None) -> list[Any]:
    """Return parameters of a test, by their names; what needs FAISS is left out without it."""
    lacks_faiss = importlib.util.find_spec("faiss") is None
    mark = pytest.mark.skipif(lacks_faiss, reason="the extra 'faiss' is not installed")
    return [
        pytest.param(value, id=name, marks=mark if "approximate" in name else ())
        for value, name in zip(values, names or map(str, values), strict=True)
    ]


def pack(source: Path, target: Path) -> None:
    """Copy files into the repository, large ones and databases compressed."""
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        kept = target / file.relative_to(source)
        kept.parent.mkdir(parents=True, exist_ok=True)
        content = file.read_bytes()
        if file.name.endswith(("-wal", "-shm")):
            continue
        if len(content) > _LARGEST:
            kept = kept.with_name(f"{kept.name}.gz")
            content = gzip.compress(content, mtime=0)
        kept.write_bytes(content)


def unpack(source: Path, target: Path) -> Path:
    """Copy kept files to where they may be opened, which can change a database."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(EXPECTED))
    for file in target.rglob("*.gz"):
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    return target
