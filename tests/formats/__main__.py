"""Keep a file of every format as it is written now: ``python -m tests.formats``.

What is kept is never replaced: a format that has changed gets another version first. Read what was
kept, above all each ``expected.json``, before it is committed.
"""

import gc
import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from tests.formats import CASES
from tests.formats.cases import EXPECTED, Case, pack


def keep(case: Case, folder: Path) -> Path | None:
    """Keep one file, and return where; None where there is one of this version."""
    kept = case.kept(case.format.version)
    if kept.exists():
        return None
    made = folder / "made"
    made.mkdir()
    answer = case.write(made)
    gc.collect()
    for file in made.rglob("*.db"):
        # Into the file itself with what is still in its log.
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    pack(made, kept)
    answer = json.dumps(answer, indent=1, ensure_ascii=False)
    (kept / EXPECTED).write_text(f"{answer}\n", "utf-8")
    return kept


def main() -> int:
    """Keep what is not kept yet, and print where."""
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            kept = keep(case, Path(folder))
        if kept is not None:
            print(kept)
    return 0


raise SystemExit(main())
