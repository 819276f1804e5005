"""The tree of summaries: leaves cut from documents, and above them what sums them up (RAPTOR §3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A leaf, which is a stretch of a document, or the summary of a cluster of nodes.

    ``level`` is 0 for leaves. ``children`` are ids of nodes one level below, none for leaves;
    ``leaves`` the ids of all leaves beneath, a leaf's own among them, in the order of the corpus.
    ``doc_ids`` are the documents these come from, in the same order. A leaf is the characters
    ``[doc_start, doc_end)`` of its one document; a summary has 0 and 0. ``tokens`` counts the text.
    """

    id: str
    text: str
    level: int
    children: tuple[str, ...]
    leaves: tuple[str, ...]
    doc_ids: tuple[str, ...]
    tokens: int
    title: str = ""
    doc_start: int = 0
    doc_end: int = 0


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes by id, lower levels first, with one float32 vector a node in the same order.

    ``roots`` are the ids of the nodes without a parent, highest level first. A node may have
    several parents, since clusters are soft.
    """

    nodes: Mapping[str, TreeNode]
    vectors: NDArray[np.float32]
    roots: tuple[str, ...]

    @property
    def depth(self) -> int:
        """The number of levels, 0 for an empty tree."""
        return 1 + max((node.level for node in self.nodes.values()), default=-1)
