"""What any clusterer has to do: subclass, answer ``clusterer``, and pytest runs the rest.

class TestMine(ClustererSuite):
    @pytest.fixture
    def clusterer(self):
        return MyClusterer()
"""

import copy

import numpy as np
import pytest

from longrag.indexing.tree.clusterer import Layer
from longrag.indexing.tree.clustering import cluster_layer


def make_layer(vectors):
    """A layer of nodes of 100 tokens each."""
    vectors = np.asarray(vectors, np.float32)
    count = len(vectors)
    return Layer(tuple(f"node {row:05d}" for row in range(count)), vectors, (100,) * count)


def cluttered_layer(count, seed=0):
    """Nodes around topics of about seven, some of them copies, in no particular order."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(count // 7, 1), 24))
    vectors = centres[rng.integers(len(centres), size=count)]
    vectors += 0.5 * rng.standard_normal(vectors.shape)
    vectors[: count // 10] = vectors[count // 10 : 2 * (count // 10)]
    return make_layer(vectors)


class ClustererSuite:
    """The tests of one clusterer."""

    @pytest.fixture
    def clusterer(self):
        raise NotImplementedError

    @pytest.mark.parametrize("count", [1, 2, 3, 11, 12, 13, 50, 200])
    def test_groups_are_indices_into_the_layer(self, clusterer, count):
        groups = clusterer(cluttered_layer(count))
        for group in groups:
            assert all(0 <= int(index) < count for index in group)
            assert len(set(group)) == len(group) > 0

    def test_the_same_layer_has_the_same_groups(self, clusterer):
        layer = cluttered_layer(120)
        first = [list(group) for group in clusterer(layer)]
        assert [list(group) for group in copy.copy(clusterer)(layer)] == first

    def test_the_layer_is_left_as_it_is(self, clusterer):
        layer = cluttered_layer(60)
        vectors = layer.vectors.copy()
        layer.vectors.setflags(write=False)
        clusterer(layer)
        assert np.array_equal(layer.vectors, vectors)

    @pytest.mark.parametrize(
        "vectors",
        [
            np.zeros((30, 4)),
            np.ones((30, 4)),
            np.outer(np.arange(30), np.ones(4)),
            np.full((30, 1), 1e14),
        ],
        ids=["zero", "equal", "on a line", "of one huge number"],
    )
    def test_vectors_without_structure_do_not_stop_it(self, clusterer, vectors):
        groups = cluster_layer(clusterer, make_layer(vectors), max_tokens=3500)
        placed = {index for group in groups for index in group}
        assert len(groups) + 30 - len(placed) <= 22

    @pytest.mark.parametrize("max_tokens", [199, 200, 450, 3500])
    def test_a_tree_of_its_groups_fits_the_budget_and_ends(self, clusterer, max_tokens):
        layer, depth = cluttered_layer(150), 0
        while groups := cluster_layer(clusterer, layer, max_tokens=max_tokens):
            assert all(100 * len(group) <= max_tokens for group in groups)
            placed = {index for group in groups for index in group}
            left = sorted(set(range(len(layer.ids))) - placed)
            means = [layer.vectors[group].mean(axis=0) for group in groups]
            smaller = make_layer(np.array([*means, *layer.vectors[left]]))
            assert len(smaller.ids) <= 0.75 * len(layer.ids)
            layer, depth = smaller, depth + 1
        assert depth <= 18
        assert (len(layer.ids) == 150) if max_tokens < 200 else (len(layer.ids) == 1)

    def test_its_size_on_a_layer_is_near_what_it_says(self, clusterer):
        groups = cluster_layer(clusterer, cluttered_layer(400), max_tokens=3500)
        expected = getattr(clusterer, "typical_size", 7)
        assert 0.6 * expected <= np.mean([len(group) for group in groups]) <= 1.5 * expected

    def test_if_it_is_independent_of_history_the_order_does_not_matter(self, clusterer):
        if not getattr(clusterer, "history_independent", False):
            pytest.skip("it does not say that its groups depend on the set of nodes alone")
        layer = cluttered_layer(200)
        turned = layer.take(np.random.default_rng(1).permutation(200).tolist())
        found = [
            {frozenset(part.ids[index] for index in group) for group in clusterer(part)}
            for part in (layer, turned)
        ]
        assert found[0] == found[1]
