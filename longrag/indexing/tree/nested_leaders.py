"""A clusterer whose groups depend on the set of nodes alone, and change little with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from longrag.indexing.tree.clusterer import Layer, rank
from longrag.indexing.tree.geometry import check_above, check_integer, check_seed, directions

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]

# The most products of nodes and leaders that are held in memory at once.
_PRODUCTS = 1 << 24

# One in five nodes may be a leader's companion: with more, too many changes would move a leader.
_COMPANIONS = 0.2
_COMPANION_WEIGHT = np.float32(0.25)


@dataclass(frozen=True, slots=True, kw_only=True)
class StableClusterer:
    """Clusters around nested leaders: a change of one node changes few groups.

    Every leaf has a rank, a number in [0, 1) that a hash of its id gives. At level l a node leads
    when the rank of its anchor is below ``1 / spacing ** l``, so that the leaders of a level are
    some of those of the level below. A leader represents a weighted mean of itself and its
    companion, the nearest of the nodes that another hash chooses, which is nearer to the middle of
    what is around it. Every node joins the nearest leader; where that makes fewer than ``least``
    nodes, they join other leaders. A cell of more than ``most`` nodes is divided by average
    linkage. A node that is left alone takes part in the next layer as it is.

    A summary is placed by its anchor, the leaf below it of the lowest rank. So a new text moves
    nothing, a new node that leads no group changes its own cell and the path to the root, and one
    in ``spacing`` also takes nodes from its neighbours.

    The nodes of one document are clustered among themselves, where there are at least ``least`` of
    them, and all others together: so most of a document's tree is made of it alone.

    Layers above ``block`` nodes are first divided by the sides of random hyperplanes on which the
    nodes are, which depend on ``random_state`` and the width alone.

    Args:
        spacing: How many nodes there are for a leader, above 1.
        least: The fewest nodes of a cell.
        most: The most nodes of a group.
        block: The most nodes among which leaders are looked for.
        random_state: Seeds the hyperplanes.
    """

    history_independent: ClassVar[bool] = True
    typical_size: ClassVar[float] = 7.0
    block_size: ClassVar[None] = None

    spacing: float = 7.4
    least: int = 2
    most: int = 14
    block: int = 20_000
    random_state: int = 0

    def __post_init__(self) -> None:
        check_above("spacing", self.spacing, 1)
        check_integer("least", self.least, at_least=1)
        check_integer("most", self.most, at_least=max(2 * self.least, 2))
        check_integer("block", self.block, at_least=2)
        check_seed(self.random_state)

    def __call__(self, layer: Layer) -> list[list[int]]:
        """Return groups of indices into the layer, by the anchors of its nodes."""
        anchors = layer.anchors or layer
        ranks = np.array([rank(id_) for id_ in anchors.ids])
        unit = directions(anchors.vectors)
        leads = ranks < self.spacing**-layer.level
        accompanies = np.array([rank(id_, "companion") for id_ in anchors.ids]) < _COMPANIONS
        groups = []
        for rows in self._parts(layer):
            # Ranks are pseudorandom, so the order says nothing about the documents.
            order = rows[np.lexsort((rows, ranks[rows]))]
            for cell in self._cells(unit[order], ranks[order]):
                inside = order[cell]
                found = self._groups(unit[inside], leads[inside], accompanies[inside])
                groups += [sorted(inside[group].tolist()) for group in found if len(group) > 1]
        return groups

    def _parts(self, layer: Layer) -> list[Integers]:
        """Divide the rows into those of each document that has enough of them, and all others."""
        parts: defaultdict[str, list[int]] = defaultdict(list)
        for row, document in enumerate(layer.documents or ("",) * len(layer.ids)):
            parts[document].append(row)
        others = parts.pop("", [])
        own = [rows for rows in parts.values() if len(rows) >= self.least]
        others += [row for rows in parts.values() if len(rows) < self.least for row in rows]
        return [np.array(rows, np.int64) for rows in (*own, others) if rows]

    def _cells(self, unit: Floats, ranks: NDArray[np.float64]) -> Iterator[Integers]:
        """Divide nodes by one hyperplane after the other; nodes in one place, by their ranks."""
        everything = np.arange(len(unit))
        if len(unit) <= self.block:
            yield everything
            return
        rng = np.random.default_rng(self.random_state)
        planes = rng.standard_normal((32, unit.shape[1])).astype(np.float32)
        # Beyond six decimals float32 products are rounding.
        sides = np.round(unit @ planes.T, 6) > 0
        bits = np.floor(ranks[:, np.newaxis] * 2.0 ** np.arange(1, 49)) % 2 > 0
        sides = np.hstack([sides, bits])
        waiting = [(everything, 0)]
        while waiting:
            cell, depth = waiting.pop()
            if len(cell) <= self.block or depth == sides.shape[1]:
                yield cell
                continue
            side = sides[cell, depth]
            waiting += [(part, depth + 1) for part in (cell[side], cell[~side]) if len(part)]

    def _groups(
        self, unit: Floats, leads: NDArray[np.bool_], accompanies: NDArray[np.bool_]
    ) -> Iterator[Integers]:
        """Group nodes that are in the order of their ranks, so that leaders come first."""
        if len(unit) <= self.most:
            yield np.arange(len(unit))
            return
        centres = _centres(unit, max(int(leads.sum()), 1), np.flatnonzero(accompanies))
        leaders = _nearest(unit, centres, np.arange(len(centres)))
        # A leader is in its own cell, whoever else is nearer to another's.
        leaders[: len(centres)] = np.arange(len(centres))
        sizes = np.bincount(leaders, minlength=len(centres))
        large = sizes >= self.least
        if large.any() and not large.all():
            moved = np.flatnonzero(~large[leaders])
            leaders[moved] = _nearest(unit[moved], centres, np.flatnonzero(large))
        order = np.argsort(leaders, kind="stable")
        for cell in np.split(order, np.flatnonzero(np.diff(leaders[order])) + 1):
            yield from self._divide(cell, unit)

    def _divide(self, cell: Integers, unit: Floats) -> Iterator[Integers]:
        """Divide a cell until no part is too large; small parts join the nearest with room."""
        if len(cell) <= self.most:
            yield cell
            return
        groups = _divide_by_linkage(unit[cell], self.most)
        small = [row for part in groups if len(part) < self.least for row in part]
        groups = [part for part in groups if len(part) >= self.least]
        means = [directions(unit[cell[part]].mean(axis=0)[np.newaxis])[0] for part in groups]
        for row in small:
            fitting = [place for place, part in enumerate(groups) if len(part) < self.most]
            if fitting:
                near = np.einsum("ij,j->i", np.stack(means)[fitting], unit[cell[row]])
                # Beyond six decimals float32 products are rounding.
                groups[fitting[int(np.round(near, 6).argmax())]].append(row)
            else:
                groups.append([row])
                means.append(unit[cell[row]])
        yield from (cell[sorted(part)] for part in groups)


def _centres(unit: Floats, count: int, companions: Integers) -> Floats:
    """Return what the first ``count`` nodes represent: the means of them and their companions."""
    leaders = unit[:count]
    near = _nearest(leaders, unit, companions, but=np.arange(count))
    added = np.where(near[:, np.newaxis] < 0, 0, _COMPANION_WEIGHT * unit[near])
    return directions(leaders + added)


def _nearest(
    unit: Floats, centres: Floats, allowed: Integers, but: Integers | None = None
) -> Integers:
    """Return the nearest allowed centre of each row, the first one of several, -1 without any.

    ``but`` is a centre for each row that does not count as its own.
    """
    nearest = np.full(len(unit), -1)
    if not len(allowed):
        return nearest
    step = max(_PRODUCTS // len(allowed), 1)
    for first in range(0, len(unit), step):
        rows = slice(first, first + step)
        # Beyond six decimals float32 products are rounding.
        cosines = np.round(unit[rows] @ centres[allowed].T, 6)
        if but is not None:
            cosines[but[rows, np.newaxis] == allowed] = -2
        best = cosines.argmax(axis=1)
        found = np.take_along_axis(cosines, best[:, np.newaxis], axis=1)[:, 0] > -2
        nearest[rows] = np.where(found, allowed[best], -1)
    return nearest


def _divide_by_linkage(unit: Floats, most: int) -> list[list[int]]:
    """Divide nodes along the tree of average linkage into the largest parts of at most ``most``."""
    # sklearn takes a second to import.
    from sklearn.cluster import AgglomerativeClustering

    count = len(unit)
    tree = AgglomerativeClustering(None, linkage="average", distance_threshold=0)
    merges = tree.fit(unit.astype(np.float64)).children_
    members = [[row] for row in range(count)]
    for one, other in merges.tolist():
        members.append(members[one] + members[other])
    parts, waiting = [], [2 * count - 2]
    while waiting:
        node = waiting.pop()
        if len(members[node]) <= most:
            parts.append(sorted(members[node]))
        else:
            waiting += merges[node - count].tolist()
    return sorted(parts)
