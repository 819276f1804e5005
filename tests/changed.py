"""Print the tests that mirror what differs from a branch: the first ones to run after a change.

    python -m tests.changed [BRANCH]

BRANCH is ``main`` by default; committed, uncommitted and new files all count. A module is mapped to
the test modules of its room that bear its name (``longrag/retrieval/maxp.py`` to
``tests/longrag/retrieval/test_maxp*.py``), or to the whole room where none does. What the table of
all frameworks shows is in ``tests/conformance`` and always named.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
PACKAGES = ("longrag", "llama_index_longrag", "langchain_longrag")
ALWAYS = ("tests/house/test_house.py",)
SHARED = ("tests/conformance/test_one_table.py",)


def changed_files(branch: str, root: Path = ROOT) -> list[str]:
    """Return the paths that differ from where `branch` was left, new files included."""

    def lines(*command: str) -> list[str]:
        done = subprocess.run(
            ["git", *command], cwd=root, capture_output=True, text=True, check=True
        )
        return done.stdout.split("\n")[:-1]

    (base,) = lines("merge-base", "HEAD", branch)
    new = lines("ls-files", "--others", "--exclude-standard")
    return sorted({*lines("diff", "--name-only", "--diff-filter=d", base), *new})


def mirrors_of(path: str, root: Path = ROOT) -> list[str]:
    """Return the test modules or folders that cover the file at `path`."""
    file = PurePosixPath(path)
    if file.suffix == ".py" and file.parts[0] == "tests":
        return _of_test_file(file, root)
    if file.suffix not in (".py", ".pyi") or file.parts[0] not in PACKAGES:
        return []
    room = _nearest(PurePosixPath("tests") / file.parent, root)
    if file.stem == "__init__":
        return [] if len(room.parts) < 3 else [str(room)]
    named = sorted((root / room).glob(f"test_{file.stem}*.py"))
    if named:
        return [str(one.relative_to(root).as_posix()) for one in named]
    # The folder of a whole package is no first answer: its room names the test.
    return [] if len(room.parts) < 3 else [str(room)]


def _of_test_file(file: PurePosixPath, root: Path) -> list[str]:
    """Return a test module itself, or those that import a helper."""
    if file.name.startswith("test_"):
        return [str(file)]
    if file.name in ("conftest.py", "__init__.py"):
        return [] if len(file.parts) < 4 else [str(file.parent)]
    module = ".".join(file.with_suffix("").parts)
    users = [one for one in (root / "tests").rglob("test_*.py") if module in one.read_text("utf-8")]
    return sorted(one.relative_to(root).as_posix() for one in users)


def _nearest(folder: PurePosixPath, root: Path) -> PurePosixPath:
    """Return the folder, or the first above it that exists."""
    while not (root / folder).is_dir():
        folder = folder.parent
    return folder


def first_tests(files: list[str], root: Path = ROOT) -> list[str]:
    """Return the tests to run first for changed `files`, each once and none inside another."""
    found = {test for file in files for test in mirrors_of(file, root)}
    if any(file.startswith(PACKAGES) for file in files):
        found.update(SHARED)
    found.update(ALWAYS)
    return sorted(
        one for one in found if not any(str(up) in found for up in PurePosixPath(one).parents)
    )


if __name__ == "__main__":
    sys.stdout.write("\n".join(first_tests(changed_files(*(sys.argv[1:] or ["main"])))) + "\n")
