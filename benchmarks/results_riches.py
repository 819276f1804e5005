"""The table of RICHES, for which a language model is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from results_bench import Bench, column, milliseconds, read_tokens, table

from longrag.evaluation.harness import Pipeline, with_controls

if TYPE_CHECKING:
    from longrag.models import TransformersLanguageModel

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUOTED = 25
"""Questions that RICHES answers."""


def riches(bench: Bench) -> Iterator[tuple[str, str]]:
    """RICHES beside searches that read one passage, and more."""
    assert bench.smollm2 is not None
    given = {"embedder": "minilm", "token_budget": 500}
    best = [
        replace(Pipeline.named(one, k=1, **given), name=f"{one}, the best one")
        for one in ("passages", "hybrid")
    ]
    more = replace(Pipeline.named("passages", **given), name="passages, 500 tokens")
    own = replace(Pipeline.named("riches", embedder="minilm"), name="RICHES, SmolLM2's first quote")
    model = _decodable(bench.smollm2)
    compared = with_controls([*best, more, own])
    report = bench.evaluate("nq_open", compared, QUOTED, language_model=model)
    columns = {
        "R": column(report, "R"),
        "answer is read": column(report, "AR"),
        "tokens read": read_tokens(report),
        "CPU ms a question": milliseconds(report),
    }
    yield "riches", table(columns, "system")


@cache
def _decodable(folder: Path) -> TransformersLanguageModel:
    # Imported here, since the other tables need neither torch nor the weights.
    import torch

    from longrag.models import TransformersLanguageModel
    from longrag.models.transformers.dtypes import native_dtype

    torch.set_num_threads(1)
    return TransformersLanguageModel.load(str(folder), gguf_file=GGUF, dtype=native_dtype())
