"""Embed a corpus into a mapped matrix, killed in the middle and resumed.

    python benchmarks/scale_embedding.py --texts 1000000

The embedder draws a vector for each text, so that what is measured is all but the model. A second
process is killed after half of the batches; what a third embeds, and that the matrix is the one of
a run without a kill, is checked.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scale_memory import peak

from longrag.indexing import embed_to_file

WIDTH = 384
BATCH = 4096


class Texts(Sequence[str]):
    """Numbered texts, made when they are asked for."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, at: int | slice) -> str | Texts:  # type: ignore[override]
        found = self._numbers[at]
        return Texts(found) if isinstance(found, range) else f"This is text {found}."


class Drawing:
    """Draws the vectors of a batch by its first text; ends the process after some batches."""

    def __init__(self, kill_after: int | None = None) -> None:
        self.batches = 0
        self._kill_after = kill_after

    def __call__(self, texts: Sequence[str], role: str) -> NDArray[np.float32]:
        """Return random vectors, the same for the same batch."""
        if self.batches == self._kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        self.batches += 1
        random = np.random.default_rng(zlib.crc32(texts[0].encode()))
        return random.standard_normal((len(texts), WIDTH), np.float32)


def main() -> None:
    """Embed without and with a kill, and print a row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--killed-in", type=Path, help="embed into this folder and end by a kill")
    given = parser.parse_args()
    texts = Texts(range(given.texts))
    batches = -(-given.texts // BATCH)
    if given.killed_in:
        embed_to_file(texts, Drawing(batches // 2), given.killed_in, batch_size=BATCH)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        whole = embed_to_file(texts, Drawing(), Path(folder) / "whole", batch_size=BATCH)
        took = time.process_time() - begin
        killed = Path(folder) / "killed"
        command = [sys.executable, __file__, "--texts", str(given.texts), "--killed-in", killed]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        embedder = Drawing()
        begin = time.process_time()
        resumed = embed_to_file(texts, embedder, killed, batch_size=BATCH)
        again = time.process_time() - begin
        assert embedder.batches == batches - batches // 2
        assert all(
            np.array_equal(whole[at : at + BATCH], resumed[at : at + BATCH])
            for at in range(0, given.texts, BATCH)
        )
        size = sum(file.stat().st_size for file in (Path(folder) / "whole").iterdir())
    row = {"texts": given.texts, "cpu_s": took, "resumed_cpu_s": again}
    print(json.dumps(row | {"peak_mb": peak() / 1e6, "disk_mb": size / 1e6}))


if __name__ == "__main__":
    main()
