"""The first minute: how long each command takes that a new user gives, beside other programs.

    python benchmarks/first_minute.py --chunks 1000
    python benchmarks/first_minute.py --index FOLDER

Commands run one after the other, in processes of their own, with compiled bytecode. The pages are
the first of PowerShell's documentation in ``shared/data`` beside the checkout, or in the folder
named by LONGRAG_DATA, or those of FOLDER. Rows of MiniLM need the extra ``local``, and the row of
`llm` that program on the path. A row is the quickest and the median of five runs by the clock, and
the processor time of the quickest. The machine should be idle: its load is printed too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.public_data import DATA, rows
from longrag.models.minilm.weights import installed_weights

LONGRAG = [sys.executable, "-m", "longrag"]
QUESTION = "How do I start a background job?"


def timed(command: Sequence[str], folder: Path) -> tuple[float, float]:
    """Run a command; return its seconds by the clock and of processor time."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run(
        command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def row(name: str, command: Sequence[str], folder: Path, runs: int = 5) -> None:
    """Print the row of a command, whose bytecode and caches are made by a run before."""
    if runs > 1:
        timed(command, folder)
    found = sorted(timed(command, folder) for _ in range(runs))
    median = statistics.median(wall for wall, _ in found)
    print(f"| {name} | {found[0][0]:.2f} | {median:.2f} | {found[0][1]:.2f} |", flush=True)


def write_pages(folder: Path, chunks: int, embedder: str) -> str:
    """Write as many pages as give the chunks, index them, and return the file's counts."""
    folder.mkdir()
    pages = list(rows(DATA / "d_docs" / "powershell.markdown.jsonl.gz"))
    made, counts = 0, {"chunks": 0}
    while counts["chunks"] < chunks and made < len(pages):
        some = pages[made : made + 10]
        made += len(some)
        for page in some:
            path = folder / f"{page['id']}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(page["markdown"], "utf-8")
        index = [*LONGRAG, "index", str(folder), "--file", f"{embedder}.db", "--json"]
        done = subprocess.run(
            [*index, "--embedder", embedder],
            cwd=folder.parent,
            check=True,
            capture_output=True,
            text=True,
        )
        counts = json.loads(done.stdout)["counts"]
    return ", ".join(f"{number:,} {name}" for name, number in counts.items())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chunks", type=int, default=1000, help="chunks that are asked")
    parser.add_argument("--index", metavar="FOLDER", help="index this folder by each embedder")
    asked = parser.parse_args()
    embedders = ["lsa", "minilm"] if installed_weights() else ["lsa"]
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| command | quickest, s | median, s | processor, s |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.index:
            for embedder in embedders:
                command = [*LONGRAG, "index", str(Path(asked.index).resolve()), "--quiet"]
                command += ["--embedder", embedder, "--file", f"{embedder}.db"]
                row(f"`longrag index` by {embedder}", command, folder, runs=1)
            return
        row("`python -c pass`", [sys.executable, "-c", "pass"], folder)
        if shutil.which("llm"):
            row("`llm --help`", ["llm", "--help"], folder)
        row("`longrag --help`", [*LONGRAG, "--help"], folder)
        for embedder in embedders:
            held = write_pages(folder / embedder, asked.chunks, embedder)
            command = [*LONGRAG, "ask", QUESTION, "--file", f"{embedder}.db"]
            row(f"`longrag ask` by {embedder} over {held}", command, folder)
            for words in folder.glob(f"{embedder}.db.cache/*-words"):
                shutil.rmtree(words)
            row("the same, where no words were kept beside the file", command, folder, runs=1)


if __name__ == "__main__":
    main()
