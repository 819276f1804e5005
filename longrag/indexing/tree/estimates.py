"""What building a tree would cost, counted without asking a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from longrag.calls import Embed, Generate, Request, run
from longrag.indexing.tree.builder import build_tree
from longrag.indexing.tree.clusterer import Clusterer, Layer
from longrag.indexing.tree.partitions import ContiguousClusterer
from longrag.indexing.tree.settings import TreeBuilder
from longrag.indexing.tree.stable import StableClusterer, by_document
from longrag.types import Document


@dataclass(frozen=True, slots=True)
class TreeEstimate:
    """The model calls that a build would make; tokens are those of the builder's counter."""

    leaves: int
    llm_calls: int
    prompt_tokens: int
    completion_tokens: int
    embedded_texts: int
    embedded_tokens: int


def estimate_tree(documents: Sequence[Document], builder: TreeBuilder) -> TreeEstimate:
    """Count the calls of a build without making them: a dry run with groups of the usual size.

    The leaves are those of the build. How they group is not known before they are embedded:
    expect the calls to be off by up to a third, less for windows of neighbours, and more for a few
    long documents. ``StableClusterer`` makes groups within documents, and so does the dry run.

    Raises:
        InvalidDocumentError: a document cannot be ingested.
    """
    clusterer = builder.clustering()
    size = max(round(getattr(clusterer, "typical_size", ContiguousClusterer().size)), 2)
    windows: Clusterer = ContiguousClusterer(size=size)
    if isinstance(clusterer, StableClusterer):
        windows = _ByDocument(windows, clusterer.most)
    dry = replace(builder, clusterer=windows)
    tally = _Tally(builder)
    tree = run(build_tree(documents, dry), tally.answer)
    return tally.estimate(sum(not node.level for node in tree.nodes.values()))


@dataclass(frozen=True, slots=True)
class _ByDocument:
    """Cuts the nodes of each document into windows; ``most`` nodes or fewer are one group."""

    windows: Clusterer
    most: int

    def __call__(self, layer: Layer) -> list[list[int]]:
        """Return groups of indices into the layer."""
        groups = []
        for part in by_document(layer):
            rows = part.tolist()
            whole = len(rows) <= self.most
            found = [range(len(rows))] if whole else self.windows(layer.take(rows))
            groups += [[rows[place] for place in group] for group in found if len(group) > 1]
        return groups


class _Tally:
    """Answers requests with stand-ins and counts what they would have cost."""

    def __init__(self, builder: TreeBuilder) -> None:
        self._count = builder.count_tokens
        # A summarizer from outside the package may not say how long its summaries are.
        self._length = int(getattr(builder.summarizing(), "summary_tokens", 100))
        self.calls = self.prompt = self.texts = self.embedded = 0

    def answer(self, request: Request) -> Any:
        match request:
            case Generate(prompt=prompt):
                self.calls += 1
                self.prompt += self._count(prompt)
                return " ".join(["word"] * self._length)
            case Embed(texts=texts):
                self.texts += len(texts)
                self.embedded += sum(map(self._count, texts))
                return np.ones((len(texts), 1), np.float32)
            case _:
                raise NotImplementedError(type(request).__name__)

    def estimate(self, leaves: int) -> TreeEstimate:
        return TreeEstimate(
            leaves=leaves,
            llm_calls=self.calls,
            prompt_tokens=self.prompt,
            completion_tokens=self.calls * self._length,
            embedded_texts=self.texts,
            embedded_tokens=self.embedded,
        )
