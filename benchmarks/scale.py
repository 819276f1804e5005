"""Time, memory and disk against size, for every part that grows with the corpus.

    python benchmarks/scale.py
    python benchmarks/scale.py --small
    python benchmarks/scale.py maxp keys

Each measurement is a process for itself, whose CPU time and largest memory the operating system
tells; memory includes pages of mapped files. Below its row stands what it printed. FAISS and
networkx run where they finish. All takes about a quarter of an hour, 20 GB of disk and 12 GB of
memory, most of it for eight readers of a million chunks; ``--small`` takes a minute.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
# Beyond these networkx takes minutes, and gigabytes.
_PEER_DOCUMENTS = 300_000
Command = list[str]


def grouping(sizes: list[int]) -> Iterator[tuple[str, Command]]:
    """Group documents with 18 links each, and the smaller corpora with networkx too."""
    for documents in sizes:
        links = str(18 * documents)
        command = ["grouping_scale.py", "--documents", str(documents), "--links", links]
        yield f"group {documents:,} documents", command
        if documents <= _PEER_DOCUMENTS:
            yield f"group {documents:,} documents with networkx", [*command, "--peer"]


def maxp(sizes: list[int]) -> Iterator[tuple[str, Command]]:
    """Draw, index and ask: by size, then by width and by kind at one size."""
    smallest = sizes[0]
    settings = [(size, 384, "clustered") for size in sizes]
    settings += [(smallest, width, "clustered") for width in (768, 1024)]
    settings += [(smallest, 384, kind) for kind in ("uniform", "outliers")]
    for chunks, width, kind in settings:
        folder = tempfile.mkdtemp()
        name = f"{chunks:,} x {width} {kind}"
        size = ["--chunks", str(chunks), "--width", str(width), "--kind", kind]
        try:
            yield f"draw {name}", ["scale_maxp.py", "draw", f"{folder}/maxp", *size]
            yield f"index {name}", ["scale_maxp.py", "build", f"{folder}/maxp"]
            yield f"ask {name}", ["scale_maxp.py", "ask", f"{folder}/maxp"]
        finally:
            shutil.rmtree(folder)


def keys(sizes: list[int]) -> Iterator[tuple[str, Command]]:
    """Index keys of twelve tokens on average."""
    for count in sizes:
        yield f"index {count:,} keys", ["key_index.py", "--peak", str(count)]


def embedding(sizes: list[int]) -> Iterator[tuple[str, Command]]:
    """Embed into a mapped file, with a kill."""
    for texts in sizes:
        yield f"embed {texts:,} texts", ["scale_embedding.py", "--texts", str(texts)]


def database(sizes: list[int]) -> Iterator[tuple[str, Command]]:
    """Build, open, change and ask an index in SQLite, pages of 22 chunks."""
    for pages in sizes:
        readers = "8" if pages > 200 else "2"
        command = ["database_index.py", "--pages", str(pages), "--readers", readers]
        yield f"database of {22 * pages:,} chunks", command


PARTS = {
    "grouping": (grouping, [20_000], [100_000, 300_000, 1_000_000, 5_000_000]),
    "maxp": (maxp, [100_000], [300_000, 1_000_000, 5_000_000]),
    "keys": (keys, [50_000], [833_333, 2_500_000, 8_333_333]),
    "embedding": (embedding, [20_000], [100_000, 1_000_000]),
    "database": (database, [200], [500, 5_000, 45_455]),
}


def measure(name: str, command: Command) -> None:
    """Run one measurement and print its row, and what it printed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, str(HERE / command[0]), *command[1:]],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert child.stdout is not None
    printed = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    cpu = usage.ru_utime + usage.ru_stime
    print(f"| {name} | {cpu:.1f} s CPU | {usage.ru_maxrss * 1024 / 1e9:.2f} GB |", flush=True)
    print(*(f"    {line}" for line in printed.splitlines()), sep="\n", flush=True)
    if child.returncode:
        sys.exit(f"{' '.join(command)} ended with {child.returncode}")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="all by default")
    parser.add_argument("--small", action="store_true", help="small sizes, in about a minute")
    parser.add_argument("--sizes", type=int, nargs="+", help="other sizes, of one part")
    given = parser.parse_args()
    for part in given.parts or PARTS:
        make, small, large = PARTS[part]
        for name, command in make(given.sizes or (small if given.small else large)):
            measure(name, command)


if __name__ == "__main__":
    main()
