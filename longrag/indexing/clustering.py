"""From one layer of a tree to the groups that are summarised next: the seam and its guards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Layer:
    """The nodes of a tree that are clustered together, in the order of their documents.

    ``ids`` depend on the nodes' content alone. ``vectors`` are float32 of shape (nodes, width), as
    the embedder gave them; ``tokens`` are the sizes of the nodes' texts.
    """

    ids: tuple[str, ...]
    vectors: NDArray[np.float32]
    tokens: tuple[int, ...]


class Clusterer(Protocol):
    """Groups the nodes of one layer."""

    def __call__(self, layer: Layer) -> Sequence[Sequence[int]]:
        """Return groups of indices into the layer; a node may be in several groups, or in none."""
