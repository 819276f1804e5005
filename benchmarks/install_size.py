"""What an installation weighs: the base, each extra on top of it, and what each command imports.

    python benchmarks/install_size.py --extras llama-index langchain pdf mcp

Every extra is installed into a copy of one fresh environment, so its row is what it adds, with the
packages that come along and their bytecode. Sizes are of files on disk, in MB of 1,000,000 bytes.
The time is that of the first answer in the fresh environment: `longrag index` of ten pages and
`longrag ask`, as wall time and processor time, nothing of it compiled or cached before.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGE_MB = 5
RUN = """
import json, sys
from longrag.__main__ import main
code = main()
tops = {name.partition(".")[0] for name in sys.modules}
known = {"numba", "scipy", "sklearn", "sqlalchemy", "umap", "torch", "numpy", "selectolax",
         "sentencex", "markdown_it", "yaml", "tqdm", "tenacity", "mcp", "pypdf"}
print("IMPORTS " + " ".join(sorted(tops & known)), file=sys.stderr)
sys.exit(code)
"""


def megabytes(folder: Path) -> float:
    """Return the size of all files below a folder."""
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file()) / 1e6


def packages(environment: Path) -> Path:
    """Return where an environment keeps its packages."""
    (found,) = environment.glob("lib/python*/site-packages")
    return found


def install(environment: Path, *wanted: str) -> None:
    """Install into an environment."""
    pip = [environment / "bin" / "python", "-m", "pip", "install", "-q", *wanted]
    subprocess.run(pip, check=True, stdout=subprocess.DEVNULL)


def run(environment: Path, folder: Path, *arguments: str) -> tuple[float, float, str]:
    """Run a command; return its wall and processor time, and what it imported."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [environment / "bin" / "python", "-c", RUN, *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    imported = done.stderr.rpartition("IMPORTS ")[2].strip()
    return time.perf_counter() - began, used, imported


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", nargs="*", default=[])
    parser.add_argument("--torch", default="torch", help="the requirement of the CPU build")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        base = folder / "base"
        subprocess.run([sys.executable, "-m", "venv", base], check=True)
        empty = megabytes(packages(base))
        install(base, str(ROOT))
        weighs = megabytes(packages(base)) - empty
        print(f"{'(none)':12} {weighs:7.0f} MB")
        for one in sorted(packages(base).iterdir(), key=lambda one: one.name):
            size = megabytes(one) if one.is_dir() else one.stat().st_size / 1e6
            if size >= LARGE_MB:
                print(f"    {one.name:20} {size:7.1f} MB")
        pages = folder / "pages"
        pages.mkdir()
        for page in sorted((ROOT / "docs" / "concepts").glob("*.md"))[:10]:
            shutil.copy(page, pages)
        commands = {
            "index": ["index", "pages", "--embedder", "lsa", "--quiet", "--build", "both"],
            "ask": ["ask", "What is a long unit?", "--json"],
            "explore": ["explore", "--question", "What is a long unit?", "--quiet"],
            "demo": ["demo", "pages", "What is a long unit?"],
        }
        told = {}
        for name, arguments in commands.items():
            wall, used, imported = run(base, folder, *arguments)
            told[name] = {"wall": round(wall, 2), "cpu": round(used, 2), "imports": imported}
            print(f"longrag {name:8} {wall:6.2f} s wall {used:6.2f} s CPU  {imported}", flush=True)
        print(json.dumps(told))
        for extra in options.extras:
            copy = folder / "extra"
            subprocess.run(["cp", "-al", base, copy], check=True)
            # Of torch the build for CPUs is meant, which an index may list under another version.
            torch = [options.torch] if extra in ("local", "riches", "gguf", "rerank") else []
            install(copy, *torch, f"{ROOT}[{extra}]")
            print(f"{extra:12} {megabytes(packages(copy)) - empty - weighs:7.0f} MB", flush=True)
            shutil.rmtree(copy)


if __name__ == "__main__":
    main()
