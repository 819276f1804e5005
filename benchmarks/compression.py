"""Time what compression adds to the embedder, per unit of 4,096 tokens.

    python benchmarks/compression.py
    python benchmarks/compression.py --units 40 --repeats 7
    python benchmarks/compression.py --minilm

The units are cut from Markdown pages of the manual in ``docs/`` (English) and, with ``--text``,
from any other file. The embedder answers at once with vectors drawn beforehand, so that what is
timed is cutting into sentences, counting, multiplying, choosing and joining; ``--minilm`` times
the MiniLM embedder on the same sentences for comparison (extra ``local``). Each time is the median
over the units of the least of the repeats, on one thread.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The BLAS library reads these once, when numpy is imported.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[variable] = "1"

import numpy as np  # noqa: E402

from longrag.calls import run  # noqa: E402
from longrag.ingestion import chunk_spans, split_sentences  # noqa: E402
from longrag.models import count_tokens  # noqa: E402
from longrag.refinement import compress_extractive  # noqa: E402

UNIT_TOKENS = 4096
QUERY = "How are retrieved units cut to a number of tokens?"
DOCS = Path(__file__).parents[1] / "docs"


def units_of(text: str, limit: int) -> list[str]:
    """Cut a text into full units of whole sentences."""
    spans = chunk_spans(text, chunk_size=UNIT_TOKENS)
    units = [text[start:end] for start, end in spans]
    return [unit for unit in units if count_tokens(unit) > 0.9 * UNIT_TOKENS][:limit]


def milliseconds(work: Callable[[], Any], repeats: int) -> float:
    """Return the least time of some runs."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - begin))
    return min(times)


def main() -> None:
    """Print a row of the table for each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--minilm", action="store_true")
    asked = parser.parse_args()
    pages = [asked.text] if asked.text else sorted(DOCS.rglob("*.md"))
    units = units_of("\n\n".join(page.read_text("utf-8") for page in pages), asked.units)
    vectors = np.random.default_rng(0).standard_normal((4096, 384), dtype=np.float32)

    def drawn(request: Any) -> Any:
        return vectors[: len(request.texts)]

    def compressed(unit: str) -> Any:
        return run(compress_extractive(QUERY, [unit]), drawn)

    steps: dict[str, Callable[[str], Any]] = {
        "compress_extractive, embedder left out": compressed,
        "of it: split_sentences": split_sentences,
        "of it: count_tokens of the whole": count_tokens,
    }
    if asked.minilm:
        from longrag.models import MiniLmEmbedder

        embedder = MiniLmEmbedder()
        steps["MiniLM on the sentences, for comparison"] = lambda unit: embedder(
            [unit[start:end] for start, end in split_sentences(unit)], "document"
        )
    compressed(units[0])
    sentences = statistics.median(len(split_sentences(unit)) for unit in units)
    kept = statistics.median(
        result.tokens / result.original_tokens for result in map(compressed, units)
    )
    print(f"{len(units)} units, {sentences:.0f} sentences a unit, {kept:.3f} of the tokens kept")
    for name, step in steps.items():
        repeats = 1 if name.startswith("MiniLM") else asked.repeats
        times = [milliseconds(lambda u=unit, s=step: s(u), repeats) for unit in units]
        print(f"{name:45} {statistics.median(times):9.2f} ms a unit")


if __name__ == "__main__":
    main()
