"""The protocol of clusterers, and the layer of nodes that they are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Layer:
    """The nodes of a tree that are clustered together, in the order of their documents.

    ``ids`` depend on the nodes' content alone. ``vectors`` are float32 of shape (nodes, width), as
    the embedder gave them; ``tokens`` are the sizes of the nodes' texts. ``anchors`` is the
    layer of leaves in which each node is represented by the leaf below it of the lowest ``rank``,
    which mostly stays the same when other leaves come or go; None where the nodes represent
    themselves. ``documents`` are the ids of the documents the nodes were made from, empty for a
    node made from several; the whole tuple may be empty. ``level`` is that of the
    summaries to be made, from 1 on.
    """

    ids: tuple[str, ...]
    vectors: NDArray[np.float32]
    tokens: tuple[int, ...]
    anchors: Layer | None = None
    documents: tuple[str, ...] = ()
    level: int = 1

    def take(self, rows: Sequence[int]) -> Layer:
        """Return the layer of some of the nodes, in the given order."""
        return Layer(
            tuple(self.ids[row] for row in rows),
            self.vectors[list(rows)],
            tuple(self.tokens[row] for row in rows),
            None if self.anchors is None else self.anchors.take(rows),
            tuple(self.documents[row] for row in rows) if self.documents else (),
            self.level,
        )


def rank(id_: str, purpose: str = "") -> float:
    """Return a number in [0, 1) that is pseudorandom and fixed by an id and a purpose."""
    digest = sha256(f"{purpose}:{id_}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


class Clusterer(Protocol):
    """Groups the nodes of one layer.

    Any callable will do. Three attributes are read where they exist. ``history_independent``
    (False): the groups depend on the set of nodes alone, and little on any one of them.
    ``typical_size`` (7): the expected mean size of a group, for estimates. ``block_size`` (5,000):
    the most nodes given at once, None for any number; larger layers are divided first. Its ``repr``
    tells it and its settings from others, as a dataclass's does: by it a resumed build finds
    its groups in the journal. A clusterer whose ``repr`` holds its address is called again.
    """

    def __call__(self, layer: Layer) -> Sequence[Sequence[int]]:
        """Return groups of indices into the layer; a node may be in several groups, or in none."""
