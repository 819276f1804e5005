"""How a tree's clusters take in what came and let go of what went, where they stand.

Used for clusterers whose groups may change everywhere when one node does. The groups of the tree
before are kept; only those that a change touches are looked at again, so that a change pays for
the path from it to the root. What this costs in quality is measured in
``benchmarks/raptor_drift.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from longrag.indexing.clustering import Clusterer, Layer, cluster_layer
from longrag.indexing.tree import Tree
from longrag.types import TreeNode

Groups: TypeAlias = tuple[list[list[int]], list[int | None]]
"""Groups of indices into a layer, and for each the number of the old group it came from."""

# So many times its usual size is a group cut in two, long before it fills the token budget.
_TOO_LARGE = 3.0
_USUAL_SIZE = 7.0

# Newcomers of one document that are fewer join the groups there are.
_OWN_GROUP = 4


class OldGroups(NamedTuple):
    """The groups of a layer as they stood, in terms of the layer as it is.

    ``newcomers`` are the indices of nodes that were not there, those of the same documents
    together. Nodes of neither were in no group.
    """

    groups: list[list[int]]
    newcomers: list[list[int]]


class History:
    """What became of the nodes of the tree there was before, from the leaves up."""

    def __init__(self, before: Tree) -> None:
        self._before = before
        self._moved: dict[str, list[str]] = {}
        self._parents: list[str] = []

    def groups(self, layer: Sequence[TreeNode], level: int) -> OldGroups:
        """Return the groups that the summaries of a level stood for."""
        place = {node.id: index for index, node in enumerate(layer)}
        self._parents = [n.id for n in self._before.nodes.values() if n.level == level]
        groups = [
            sorted(
                {
                    place[now]
                    for child in self._before.nodes[parent].children
                    for now in self._moved.get(child, [child])
                    if now in place
                }
            )
            for parent in self._parents
        ]
        followed = {now for moved in self._moved.values() for now in moved}
        grouped = {index for group in groups for index in group}
        newcomers: dict[tuple[str, ...], list[int]] = {}
        for index, node in enumerate(layer):
            known = node.id in self._before.nodes or node.id in followed
            if index not in grouped and not known:
                newcomers.setdefault(node.doc_ids, []).append(index)
        return OldGroups(groups, list(newcomers.values()))

    def record(self, made: Iterable[tuple[int | None, str]]) -> None:
        """Remember which summaries came of which group, by the numbers ``groups`` gave them."""
        self._moved |= {parent: [] for parent in self._parents}
        for origin, id_ in made:
            if origin is not None:
                self._moved[self._parents[origin]].append(id_)


def regroup(
    layer: Layer, old: OldGroups | None, clusterer: Clusterer, *, max_tokens: int
) -> Groups:
    """Group a layer by its old groups, or afresh where there are none.

    Newcomers are fitted in, what grew too large is cut, and what shrank to one node is dissolved.
    Enough newcomers of one document are groups of their own, so that a document is paid for once;
    others join the group whose mean is nearest and has room.
    """
    if old is None or not any(old.groups):
        fresh = cluster_layer(clusterer, layer, max_tokens=max_tokens)
        return fresh, [None] * len(fresh)
    made = [(sorted(group), number) for number, group in enumerate(old.groups) if group]
    alone = [group[0] for group, _ in made if len(group) == 1]
    groups: list[tuple[list[int], int | None]] = [(g, number) for g, number in made if len(g) > 1]
    rest = set(alone)
    for newcomers in old.newcomers:
        rest.update(newcomers)
        if len(newcomers) >= _OWN_GROUP:
            own = _cluster(layer, newcomers, clusterer, max_tokens)
            groups += [(group, None) for group in own]
            rest.difference_update(*own)
    before = [len(group) for group, _ in groups]
    _join(layer, groups, sorted(rest), max_tokens)
    largest = _TOO_LARGE * getattr(clusterer, "typical_size", _USUAL_SIZE)
    result: dict[tuple[int, ...], int | None] = {}
    for (group, origin), size in zip(groups, before, strict=True):
        # A group that was large from the beginning is cut only when it grows.
        fits = len(group) <= max(largest, size)
        fits = fits and sum(layer.tokens[index] for index in group) <= max_tokens
        for part in [group] if fits else _cluster(layer, group, clusterer, max_tokens):
            result.setdefault(tuple(sorted(part)), origin)
    ordered = sorted(result)
    grouped = {index for group in ordered for index in group}
    if len(ordered) + len(layer.ids) - len(grouped) >= len(layer.ids):
        # Groups that share most of their nodes would pile up layers without end.
        fresh = cluster_layer(clusterer, layer, max_tokens=max_tokens)
        return fresh, [None] * len(fresh)
    return [list(group) for group in ordered], [result[group] for group in ordered]


def _cluster(
    layer: Layer, indices: Sequence[int], clusterer: Clusterer, max_tokens: int
) -> list[list[int]]:
    groups = cluster_layer(clusterer, layer.take(indices), max_tokens=max_tokens)
    return [[indices[place] for place in group] for group in groups]


def _join(
    layer: Layer,
    groups: list[tuple[list[int], int | None]],
    rest: Sequence[int],
    max_tokens: int,
) -> None:
    """Put each node into the nearest group with room; without one it stays in none."""
    if not groups or not rest:
        return
    norms = np.linalg.norm(layer.vectors.astype(np.float64), axis=1, keepdims=True)
    unit = layer.vectors / np.where(norms > 0, norms, 1)
    means = np.stack([unit[group].mean(axis=0) for group, _ in groups])
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    means /= np.where(lengths > 0, lengths, 1)
    sizes = [sum(layer.tokens[index] for index in group) for group, _ in groups]
    for index in rest:
        # Einsum adds each row in one order, whatever BLAS there is.
        near = np.round(np.einsum("ij,j->i", means, unit[index]), 6)
        for number in np.argsort(-near, kind="stable"):
            group, _ = groups[number]
            if sizes[number] + layer.tokens[index] <= max_tokens:
                if index not in group:
                    group.append(index)
                    sizes[number] += layer.tokens[index]
                break
