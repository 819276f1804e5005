"""Clusterers in the space of the vectors that others turned to after RAPTOR, for comparison."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.cluster import AgglomerativeClustering

from longrag.indexing.neighbours import nearest_neighbour_links
from longrag.indexing.tree.clusterer import Clusterer, Layer


@dataclass(frozen=True)
class Agglomerative:
    """Average linkage without a reduction of dimensions, as RAGFlow has had it."""

    typical_size: float = 7.0
    block_size: None = None

    def __call__(self, layer: Layer) -> list[list[int]]:
        """Return groups of indices into the layer."""
        count = max(round(len(layer.ids) / self.typical_size), 1)
        labels = AgglomerativeClustering(count, linkage="average").fit_predict(_unit(layer))
        order = np.argsort(labels, kind="stable")
        return [part.tolist() for part in np.split(order, np.cumsum(np.bincount(labels))[:-1])]


@dataclass(frozen=True)
class NearestMerges:
    """Merges the nearest nodes first, up to a size: after the tree of merges of Psi-RAG.

    The links of nodes to their nearest neighbours are taken from the strongest on; one that would
    make a group of more than ``most`` nodes is passed over.
    """

    most: int = 10
    neighbors: int = 10
    typical_size: float = 6.0
    block_size: None = None

    def __call__(self, layer: Layer) -> list[list[int]]:
        """Return groups of indices into the layer."""
        unit = _unit(layer)
        links = np.array(list(nearest_neighbour_links(unit, k=self.neighbors)), np.int64)
        strength = np.einsum("ij,ij->i", unit[links[:, 0]], unit[links[:, 1]])
        groups = {row: [row] for row in range(len(unit))}
        group_of = list(range(len(unit)))
        for one, other in links[np.argsort(-strength, kind="stable")].tolist():
            kept, gone = group_of[one], group_of[other]
            if kept != gone and len(groups[kept]) + len(groups[gone]) <= self.most:
                for row in groups[gone]:
                    group_of[row] = kept
                groups[kept] += groups.pop(gone)
        return [sorted(group) for group in groups.values()]


def _unit(layer: Layer) -> np.ndarray:
    return layer.vectors / np.linalg.norm(layer.vectors, axis=1, keepdims=True)


RIVALS: dict[str, Clusterer] = {"agglomerative": Agglomerative(), "merges": NearestMerges()}
"""By the names under which benchmarks take them."""
