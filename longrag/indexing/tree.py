"""A tree of summaries as a value: nodes, their vectors, and what can be read off them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from longrag.errors import IndexFormatError
from longrag.types import TreeNode


class Tree:
    """The nodes of one or several RAPTOR trees with their vectors; never changed.

    Nodes stand in the order of their levels, within a level in the order of their documents.

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
            if missing is not None or node.id in known:
                raise IndexFormatError(
                    f"node {node.id!r} of the tree comes twice"
                    if missing is None
                    else f"node {node.id!r} of the tree has a child {missing!r} that is not there"
                )
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

    @property
    def depth(self) -> int:
        """The highest level; 0 for leaves alone, -1 for an empty tree."""
        return max((node.level for node in self.nodes.values()), default=-1)

    @cached_property
    def _leaf_ids(self) -> Mapping[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for node in self.nodes.values():
            own = (found[child] for child in node.children)
            found[node.id] = frozenset().union(*own) if node.children else frozenset((node.id,))
        return found

    def leaves(self, node_id: str) -> tuple[TreeNode, ...]:
        """Return the leaves beneath a node, in the order of their documents."""
        own = sorted(self._leaf_ids[node_id], key=self.row.__getitem__)
        return tuple(self.nodes[id_] for id_ in own)
