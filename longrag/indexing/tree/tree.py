"""A tree of summaries as a value: nodes, their vectors, and statistics of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from longrag.errors import IndexFormatError
from longrag.types import TreeNode


@dataclass(frozen=True, slots=True)
class LevelStatistics:
    """The means over the summaries of one level, or of all (RAPTOR, Appendix C).

    ``compression`` is the mean of the ratios of a summary's tokens to those of all its children.
    """

    summaries: int
    summary_tokens: float
    children: float
    compression: float


@dataclass(frozen=True, slots=True)
class TreeStatistics:
    """What a tree is made of: nodes by level from the leaves up, and how summaries compress."""

    nodes: tuple[int, ...]
    levels: Mapping[int, LevelStatistics]
    all_levels: LevelStatistics


class Tree:
    """The nodes of one or several RAPTOR trees with their vectors; never changed.

    Nodes are in the order of their levels, within a level in the order of their documents.

    Args:
        nodes: each after its children.
        vectors: float32 of shape (nodes, width), one a node, as the embedder gave them.

    Raises:
        IndexFormatError: two nodes have one id, a child is missing or follows its parent, or there
            is not one vector a node.
    """

    def __init__(self, nodes: Sequence[TreeNode], vectors: NDArray[np.float32]) -> None:
        if len(nodes) != len(vectors):
            raise IndexFormatError(f"a tree of {len(nodes)} nodes has {len(vectors)} vectors")
        known: dict[str, TreeNode] = {}
        for node in nodes:
            missing = next((child for child in node.children if child not in known), None)
            if missing is not None:
                raise IndexFormatError(
                    f"node {node.id!r} of the tree has a child {missing!r} that is not there"
                )
            if node.id in known:
                raise IndexFormatError(f"node {node.id!r} of the tree comes twice")
            known[node.id] = node
        self.nodes: Mapping[str, TreeNode] = MappingProxyType(known)
        self.vectors = vectors

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def row(self) -> Mapping[str, int]:
        """The row of each node in ``vectors``."""
        return {id_: row for row, id_ in enumerate(self.nodes)}

    @cached_property
    def parents(self) -> Mapping[str, tuple[str, ...]]:
        """The parents of each node: none for a root, several where clusters overlap."""
        found: dict[str, list[str]] = {id_: [] for id_ in self.nodes}
        for node in self.nodes.values():
            for child in node.children:
                found[child].append(node.id)
        return {id_: tuple(parents) for id_, parents in found.items()}

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """The nodes that are in no summary, in order."""
        return tuple(id_ for id_, parents in self.parents.items() if not parents)

    @cached_property
    def in_order(self) -> tuple[TreeNode, ...]:
        """The node of each row."""
        return tuple(self.nodes.values())

    @cached_property
    def levels(self) -> NDArray[np.int64]:
        """The level of each row."""
        return np.array([node.level for node in self.in_order], np.int64)

    @property
    def depth(self) -> int:
        """The highest level; 0 for leaves alone, -1 for an empty tree."""
        return int(self.levels.max(initial=-1))

    @cached_property
    def _leaves(self) -> Mapping[str, tuple[TreeNode, ...]]:
        rows: dict[str, tuple[int, ...]] = {}
        for row, node in enumerate(self.nodes.values()):
            below = {leaf for child in node.children for leaf in rows[child]}
            rows[node.id] = tuple(sorted(below)) if node.children else (row,)
        return {id_: tuple(self.in_order[row] for row in own) for id_, own in rows.items()}

    @cached_property
    def _of_documents(self) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = {}
        for node in self.nodes.values():
            if len(node.doc_ids) == 1:
                found.setdefault(node.doc_ids[0], []).append(node.id)
        return found

    def of_document(self, doc_id: str) -> tuple[str, ...]:
        """Return the ids of the nodes that were made from this document alone, in order."""
        return tuple(self._of_documents.get(doc_id, ()))

    def leaves(self, node_id: str) -> tuple[TreeNode, ...]:
        """Return the leaves below a node, in the order of their documents."""
        return self._leaves[node_id]

    def statistics(self) -> TreeStatistics:
        """Measure the tree (RAPTOR, Appendix C)."""
        by_level: dict[int, list[TreeNode]] = {level: [] for level in range(self.depth + 1)}
        for node in self.nodes.values():
            by_level[node.level].append(node)
        summaries = [node for node in self.nodes.values() if node.level]
        return TreeStatistics(
            nodes=tuple(len(nodes) for nodes in by_level.values()),
            levels={level: self._measure(nodes) for level, nodes in by_level.items() if level},
            all_levels=self._measure(summaries),
        )

    def _measure(self, summaries: Sequence[TreeNode]) -> LevelStatistics:
        if not summaries:
            return LevelStatistics(0, 0.0, 0.0, 0.0)
        children = [[self.nodes[child].tokens for child in node.children] for node in summaries]
        return LevelStatistics(
            summaries=len(summaries),
            summary_tokens=fmean(node.tokens for node in summaries),
            children=fmean(map(len, children)),
            compression=fmean(
                node.tokens / max(sum(own), 1)
                for node, own in zip(summaries, children, strict=True)
            ),
        )
