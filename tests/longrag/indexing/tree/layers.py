"""Layers of vectors with known topics, for the tests of clustering."""

import numpy as np

from longrag.indexing.tree.clusterer import Layer


def layer(vectors, tokens=100, ids=None):
    vectors = np.asarray(vectors, np.float32)
    count = len(vectors)
    sizes = (tokens,) * count if isinstance(tokens, int) else tuple(tokens)
    return Layer(tuple(ids or (f"{row:06d}" for row in range(count))), vectors, sizes)


def topics(number, members, *, noise=0.5, seed=0, width=48):
    """Well separated topics, with the topic of each node; nodes are not in topics' order."""
    rng = np.random.default_rng(seed)

    def unit(count):
        rows = rng.standard_normal((count, width))
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    labels = rng.permutation(np.repeat(np.arange(number), members))
    return (unit(number)[labels] + noise * unit(len(labels))).astype(np.float32), labels


class Fixed:
    """A third party's clusterer that answers what it was given, whatever the layer."""

    def __init__(self, groups, **attributes):
        self.groups = groups
        self.layers = []
        for name, value in attributes.items():
            setattr(self, name, value)

    def __call__(self, layer):
        self.layers.append(layer)
        return self.groups if len(self.layers) == 1 else []
