"""The questions, passages and model that the benchmarks of RICHES with a real model share."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from public_data import rows
from riches_figures import SEED

from longrag.prompts import RICHES_MULTI_HOP, RICHES_SINGLE_HOP
from longrag.types import Document

SETS: Final = {
    "nq": ("b_singlehop/nq_open", RICHES_SINGLE_HOP),
    "hotpotqa": ("a_multihop/hotpotqa", RICHES_MULTI_HOP),
}
"""The files and the prompt template of each set."""

GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load_set(data: Path, name: str) -> tuple[list[Document], list[dict[str, Any]], str]:
    """Return the passages, the shuffled questions and the prompt template of a set."""
    path, template = SETS[name]
    documents = [
        Document(row["id"], row["text"], row["title"])
        for row in rows(data / f"{path}.corpus.jsonl.gz")
    ]
    questions = list(rows(data / f"{path}.questions.dev.jsonl.gz"))
    random.Random(SEED).shuffle(questions)
    return documents, questions, template


def embed_passages(
    documents: list[Document], embed: Callable[[list[str], str], np.ndarray], kept: Path
) -> np.ndarray:
    """Return a vector for each passage: those of the file, which is written if it is missing."""
    if not kept.exists():
        np.save(kept, embed([f"{d.title}. {d.text}" for d in documents], "document"))
    vectors: np.ndarray = np.load(kept)
    return vectors
