"""Clusterers that partition a layer: by order, by communities, and by the set of nodes alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from longrag.errors import MissingExtraError
from longrag.indexing.neighbours import nearest_neighbour_links, nearest_neighbours
from longrag.indexing.tree.clusterer import Layer
from longrag.indexing.tree.geometry import check_integer, check_positive, check_seed, directions

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContiguousClusterer:
    """Clusters neighbours in the order of the documents (RAPTOR, Appendix B, `recency` tree).

    The windows' sizes differ by at most one, so that the last is no stump.

    Args:
        size: About how many nodes are in a window, at least 2; 7 in the paper.
    """

    history_independent: ClassVar[bool] = False
    block_size: ClassVar[None] = None

    size: int = 7

    def __post_init__(self) -> None:
        check_integer("size", self.size, at_least=2)

    @property
    def typical_size(self) -> float:
        """The expected mean number of nodes in a cluster."""
        return float(self.size)

    def __call__(self, layer: Layer) -> list[list[int]]:
        """Return groups of indices into the layer."""
        count = len(layer.ids)
        windows = max(round(count / self.size), 1)
        return [part.tolist() for part in np.array_split(np.arange(count), windows) if len(part)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphClusterer:
    """Clusters by communities of the graph that links mutual nearest neighbours.

    Louvain's method, as networkx has it, finds the communities; of its levels the first is used,
    whose communities are small. Links are weighted by cosine. Needs the extra ``graph``.

    Args:
        neighbors: How many nearest neighbours of a node are considered.
        resolution: Above 1 communities become smaller, below 1 larger.
        random_state: Seeds the order in which nodes are visited.

    Raises:
        MissingExtraError: networkx is not installed.
    """

    history_independent: ClassVar[bool] = False
    typical_size: ClassVar[float] = 6.0
    block_size: ClassVar[int] = 5000

    neighbors: int = 7
    resolution: float = 1.0
    random_state: int = 0

    def __post_init__(self) -> None:
        check_integer("neighbors", self.neighbors, at_least=1)
        check_positive("resolution", self.resolution)
        check_seed(self.random_state)
        if find_spec("networkx") is None:
            raise MissingExtraError("GraphClusterer", "graph")

    def __call__(self, layer: Layer) -> list[list[int]]:
        """Return groups of indices into the layer."""
        # networkx is an optional dependency.
        import networkx as nx

        unit = directions(layer.vectors)
        graph: nx.Graph[int] = nx.Graph()
        graph.add_nodes_from(range(len(unit)))
        for one, other in nearest_neighbour_links(unit, k=self.neighbors):
            graph.add_edge(one, other, weight=max(float(unit[one] @ unit[other]), 1e-6))
        levels = nx.algorithms.community.louvain_partitions(
            graph, resolution=self.resolution, seed=self.random_state
        )
        return [sorted(community) for community in next(levels)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StableClusterer:
    """Clusters that depend on the set of nodes alone, and of which a change changes few.

    The nodes of one document are clustered among themselves, where there are at least ``least`` of
    them, and all others together: so most of a document's tree is made of it alone.

    The nodes are visited in an order that is random but fixed by their ids (of all orders, the one
    in which a greedy choice changes least when nodes come and go: one node on average). A node that
    is not linked to a leader becomes a leader; the others belong to the nearest leader they are
    linked to. Links are between mutual nearest neighbours. Clusters below ``least`` nodes are then
    given to their neighbours, and those above ``most`` are halved. So what a change does stays
    among its neighbours; and since a summary stands where its anchor does, it does not move when
    its text changes, and the layers above change little more than the path to the root.

    Layers above ``block`` nodes are first divided by the sides of random hyperplanes on which the
    nodes are, which depend on ``random_state`` and the width alone, so that time is near-linear.

    Args:
        neighbors: How many nearest neighbours of a node are considered.
        least: The fewest nodes a cluster has, unless none of their neighbours is in a larger one.
        most: The most nodes a cluster has.
        block: The most nodes among which neighbours are looked for.
        random_state: Seeds the order and the hyperplanes.
    """

    history_independent: ClassVar[bool] = True
    typical_size: ClassVar[float] = 7.0
    block_size: ClassVar[None] = None

    neighbors: int = 14
    least: int = 4
    most: int = 12
    block: int = 10_000
    random_state: int = 0

    def __post_init__(self) -> None:
        check_integer("neighbors", self.neighbors, at_least=1)
        check_integer("least", self.least, at_least=1)
        check_integer("most", self.most, at_least=max(2 * self.least, 2))
        check_integer("block", self.block, at_least=2)
        check_seed(self.random_state)

    def __call__(self, layer: Layer) -> list[list[int]]:
        """Return groups of indices into the layer, by the anchors of its nodes."""
        anchors = layer.anchors or layer
        return [group for rows in self._parts(layer) for group in self._grouped(anchors, rows)]

    def _parts(self, layer: Layer) -> list[list[int]]:
        """Divide the rows into those of each document that has enough of them, and all others."""
        if not layer.documents:
            return [list(range(len(layer.ids)))]
        parts: defaultdict[str, list[int]] = defaultdict(list)
        for row, document in enumerate(layer.documents):
            parts[document].append(row)
        others = parts.pop("", [])
        own = [rows for rows in parts.values() if len(rows) >= self.least]
        others += [row for rows in parts.values() if len(rows) < self.least for row in rows]
        return [*own, others]

    def _grouped(self, layer: Layer, rows: Sequence[int]) -> Iterator[list[int]]:
        order = sorted(rows, key=lambda row: (layer.ids[row], layer.vectors[row].tobytes()))
        if not order:
            return
        unit = directions(layer.vectors[order])
        turns = np.array([self._turn(layer.ids[row]) for row in order], np.uint64)
        for cell in self._cells(unit, turns):
            for group in self._clusters(unit[cell], turns[cell]):
                yield sorted(order[row] for row in cell[group])

    def _turn(self, node: str) -> int:
        text = f"{self.random_state}:{node}".encode("utf-8", "surrogatepass")
        return int.from_bytes(sha256(text).digest()[:8], "big")

    def _cells(self, unit: NDArray[np.float32], turns: NDArray[np.uint64]) -> Iterator[Integers]:
        """Divide nodes by one hyperplane after the other; nodes in one place, by their turns."""
        everything = np.arange(len(unit))
        if len(unit) <= self.block:
            yield everything
            return
        rng = np.random.default_rng(self.random_state)
        planes = rng.standard_normal((32, unit.shape[1])).astype(np.float32)
        # Beyond six decimals float32 products are rounding.
        sides = np.round(unit @ planes.T, 6) > 0
        bits = turns[:, np.newaxis] >> np.arange(64, dtype=np.uint64) & np.uint64(1)
        sides = np.hstack([sides, bits.astype(bool)])
        waiting = [(everything, 0)]
        while waiting:
            cell, depth = waiting.pop()
            if len(cell) <= self.block or depth == sides.shape[1]:
                yield cell
                continue
            side = sides[cell, depth]
            waiting += [(part, depth + 1) for part in (cell[side], cell[~side]) if len(part)]

    def _clusters(self, unit: NDArray[np.float32], turns: NDArray[np.uint64]) -> Iterator[Integers]:
        if len(unit) <= self.most:
            yield np.arange(len(unit))
            return
        near = nearest_neighbours(unit, k=self.neighbors)[0].tolist()
        leaders = self._merged(_leaders(near, np.argsort(turns, kind="stable").tolist()), near)
        clusters = defaultdict(list)
        for node, leader in enumerate(leaders):
            clusters[leader].append(node)
        for leader in sorted(clusters):
            yield from _halved(np.array(clusters[leader]), unit, self.most)

    def _merged(self, leaders: list[int], near: list[list[int]]) -> list[int]:
        """Give the nodes of small clusters to the nearest neighbour's cluster that is not small."""
        sizes = Counter(leaders)
        return [
            leader
            if sizes[leader] >= self.least
            else next((leaders[n] for n in near[node] if sizes[leaders[n]] >= self.least), leader)
            for node, leader in enumerate(leaders)
        ]


def _leaders(near: list[list[int]], order: list[int]) -> list[int]:
    """Choose leaders greedily in an order; return the leader of each node, its own for a leader."""
    sets = [frozenset(row) for row in near]
    # Nearest first, so that the first leader among them is the nearest one.
    links = [[other for other in row if node in sets[other]] for node, row in enumerate(near)]
    leads: set[int] = set()
    for node in order:
        if not any(other in leads for other in links[node]):
            leads.add(node)
    return [
        node if node in leads else next(other for other in links[node] if other in leads)
        for node in range(len(near))
    ]


def _halved(group: Integers, unit: NDArray[np.float32], most: int) -> Iterator[Integers]:
    """Halve a group between its two members farthest apart until no part is too large."""
    if len(group) <= most:
        yield group
        return
    cosines = np.round(unit[group] @ unit[group].T, 6)
    one, other = np.unravel_index(cosines.argmin(), cosines.shape)
    nearer = np.argsort(cosines[:, other] - cosines[:, one], kind="stable")
    for half in (nearer[: len(group) // 2], nearer[len(group) // 2 :]):
        yield from _halved(np.sort(group[half]), unit, most)
