"""Changing the groups of a tree where nodes came or went, and keeping all others.

Used for clusterers that depend on history: asked again, they might group everything otherwise when
one node changes. Only groups that a change touches are made again, so that it pays for the path
from it to the root. What this costs in quality is measured in ``benchmarks/raptor_drift.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from typing import NamedTuple, TypeAlias

from longrag.indexing.tree.clusterer import Clusterer, Layer
from longrag.indexing.tree.clustering import cluster_layer, join_nearest
from longrag.indexing.tree.tree import Tree
from longrag.types import TreeNode

Groups: TypeAlias = tuple[list[list[int]], list[int | None]]
"""Groups of indices into a layer, and for each the number of the old group it came from."""

# A group of this many times the usual size is clustered again, long before it fills the budget.
_TOO_LARGE = 3.0
_USUAL_SIZE = 7.0

# The fewest newcomers of one document that form separate groups.
_OWN_GROUP = 4


class OldGroups(NamedTuple):
    """The old groups of a layer, as indices into the present layer.

    ``sizes`` are their sizes in the old tree. ``newcomers`` are the indices of nodes that the old
    tree did not have, listed by document. All other nodes were in no group.
    """

    groups: list[list[int]]
    sizes: list[int]
    newcomers: list[list[int]]


class History:
    """Follows the nodes of the old tree into the new one, from the leaves up."""

    def __init__(self, before: Tree) -> None:
        self._before = before
        self._moved: dict[str, list[str]] = {}
        self._parents: list[str] = []

    def groups(self, layer: Sequence[TreeNode], level: int) -> OldGroups:
        """Return the groups that the summaries of a level were made from."""
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
        sizes = [len(self._before.nodes[parent].children) for parent in self._parents]
        return OldGroups(groups, sizes, list(newcomers.values()))

    def record(self, made: Iterable[tuple[int | None, str]]) -> None:
        """Record which summaries were made from which group, by the numbers of ``groups``."""
        self._moved |= {parent: [] for parent in self._parents}
        for origin, id_ in made:
            if origin is not None:
                self._moved[self._parents[origin]].append(id_)


def regroup(
    layer: Layer,
    old: OldGroups | None,
    clusterer: Clusterer,
    *,
    max_tokens: int,
    executor: Executor | None = None,
) -> Groups:
    """Group a layer by its old groups, or from scratch without any.

    Newcomers are fitted in, what grew too large is cut, and what shrank to one node is dissolved.
    Enough newcomers of one document form separate groups, so that a document is paid for once;
    others join the group whose mean is nearest and has room. A layer from scratch that is clustered
    in blocks has these clustered in the executor.
    """
    if old is not None and any(old.groups):
        adapted = _adapt_groups(layer, old, clusterer, max_tokens)
        groups = sorted(adapted)
        # Groups that share most of their nodes would pile up layers without end.
        if len(groups) < len({index for group in groups for index in group}):
            return [list(group) for group in groups], [adapted[group] for group in groups]
    fresh = cluster_layer(clusterer, layer, max_tokens=max_tokens, executor=executor)
    return fresh, [None] * len(fresh)


def _adapt_groups(
    layer: Layer, old: OldGroups, clusterer: Clusterer, max_tokens: int
) -> dict[tuple[int, ...], int | None]:
    """Return what the old groups have become, each with its number."""
    kept = [(group, number) for number, group in enumerate(old.groups) if len(group) > 1]
    groups = [group for group, _ in kept]
    origins: list[int | None] = [number for _, number in kept]
    sizes = [old.sizes[number] for _, number in kept]
    rest = {index for group in old.groups for index in group}.difference(*groups)
    for newcomers in old.newcomers:
        rest.update(newcomers)
        if len(newcomers) >= _OWN_GROUP:
            own = _cluster(layer, newcomers, clusterer, max_tokens)
            groups += own
            origins += [None] * len(own)
            sizes += map(len, own)
            rest.difference_update(*own)
    largest = _TOO_LARGE * getattr(clusterer, "typical_size", _USUAL_SIZE)
    adapted: dict[tuple[int, ...], int | None] = {}
    joined = join_nearest(layer, groups, sorted(rest), max_tokens)
    for group, origin, size in zip(joined, origins, sizes, strict=True):
        # A group that the clusterer made this large is cut only when it grows.
        fits = len(group) <= max(largest, size)
        fits = fits and sum(layer.tokens[index] for index in group) <= max_tokens
        for part in [group] if fits else _cluster(layer, group, clusterer, max_tokens):
            adapted.setdefault(tuple(sorted(part)), origin)
    return adapted


def _cluster(
    layer: Layer, indices: Sequence[int], clusterer: Clusterer, max_tokens: int
) -> list[list[int]]:
    groups = cluster_layer(clusterer, layer.take(indices), max_tokens=max_tokens)
    return [[indices[place] for place in group] for group in groups]
