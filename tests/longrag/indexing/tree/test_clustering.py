"""The clusterers find what is there, survive anything, and give the same groups on every run."""

import io
import json
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from longrag.errors import EmbeddingError, InvalidParameterError, MissingExtraError
from longrag.indexing.tree import mixtures
from longrag.indexing.tree.clusterer import Layer
from longrag.indexing.tree.clustering import cluster_layer, clusterer
from longrag.indexing.tree.geometry import directions, divide, kmeans, principal_components
from longrag.indexing.tree.mixtures import FastClusterer, PaperClusterer, best_mixture
from longrag.indexing.tree.partitions import ContiguousClusterer, GraphClusterer, StableClusterer
from longrag.indexing.tree.umap_reduction import reduce_dimension

ROOT = Path(__file__).parents[4]
CHEAP = ("fast", "contiguous", "graph", "stable")
ALL = ("paper", *CHEAP)


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


def labels_of(groups, count):
    labels = np.full(count, -1)
    for label, group in enumerate(groups):
        labels[group] = label
    return labels


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


# --- by name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("paper", PaperClusterer),
        ("fast", FastClusterer),
        ("contiguous", ContiguousClusterer),
        ("graph", GraphClusterer),
        ("stable", StableClusterer),
    ],
)
def test_a_name_makes_its_clusterer_with_the_seed(name, kind):
    made = clusterer(name, random_state=7)
    assert type(made) is kind
    assert getattr(made, "random_state", 7) == 7
    assert made.history_independent is (name == "stable")
    assert 5 <= made.typical_size <= 10


def test_a_callable_passes_through():
    def own(layer):
        return []

    assert clusterer(own) is own


@pytest.mark.parametrize("name", ["umap", "", "Paper", None, 3, ["fast"]])
def test_another_name_is_refused_with_the_names_there_are(name):
    with pytest.raises(InvalidParameterError, match="'paper', 'fast', 'contiguous'"):
        clusterer(name)


def test_graph_without_networkx_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(MissingExtraError, match=r"longrag\[graph\]"):
        clusterer("graph")


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        (PaperClusterer, "dimension", 0),
        (PaperClusterer, "threshold", 1.0),
        (PaperClusterer, "threshold", float("nan")),
        (PaperClusterer, "threshold", "0.1"),
        (PaperClusterer, "min_variance", 0.0),
        (PaperClusterer, "min_variance", float("inf")),
        (PaperClusterer, "min_variance", "1e-6"),
        (PaperClusterer, "local_neighbors", 1),
        (PaperClusterer, "random_state", -1),
        (PaperClusterer, "random_state", 2**32),
        (FastClusterer, "size", 1),
        (FastClusterer, "size", 7.5),
        (FastClusterer, "dimension", True),
        (FastClusterer, "block", 13),
        (ContiguousClusterer, "size", 0),
        (GraphClusterer, "neighbors", 0),
        (GraphClusterer, "resolution", 0),
        (StableClusterer, "most", 7),
        (StableClusterer, "block", 0),
    ],
)
def test_a_setting_that_is_not_allowed_is_refused_by_name(kind, setting, value):
    with pytest.raises(InvalidParameterError, match=setting):
        kind(**{setting: value})


def test_settings_stand_in_the_representation_and_cannot_change():
    made = FastClusterer(size=5)
    assert "size=5" in repr(made)
    assert made == FastClusterer(size=5) != FastClusterer()
    with pytest.raises(AttributeError):
        made.size = 6


# --- each clusterer


@pytest.mark.parametrize(
    ("count", "sizes"), [(0, []), (1, [1]), (8, [8]), (20, [7, 7, 6]), (22, [8, 7, 7])]
)
def test_windows_follow_the_order_and_the_last_is_no_stump(count, sizes):
    groups = ContiguousClusterer()(layer(np.ones((count, 3))))
    assert [len(group) for group in groups] == sizes
    assert [row for group in groups for row in group] == list(range(count))


@pytest.mark.parametrize("name", ["paper", "fast", "graph", "stable"])
def test_topics_that_lie_apart_are_found(name):
    vectors, truth = topics(12, 7)
    groups = cluster_layer(clusterer(name), layer(vectors), max_tokens=3500)
    assert adjusted_rand_score(truth, labels_of(groups, len(truth))) > 0.9


@pytest.mark.parametrize("name", ["fast", "graph", "stable"])
def test_the_lengths_of_the_vectors_do_not_matter(name):
    vectors, _ = topics(20, 7)
    lengths = np.random.default_rng(0).uniform(0.01, 100, (len(vectors), 1))
    made = clusterer(name)
    assert made(layer(vectors)) == made(layer(vectors * lengths))


def test_communities_are_those_of_two_cliques_joined_by_a_bridge():
    corner = np.eye(8)
    rows = [corner[0] + 0.1 * corner[k] for k in range(1, 5)]
    rows += [corner[7] + 0.1 * corner[k] for k in range(1, 5)]
    assert sorted(GraphClusterer(neighbors=3)(layer(rows))) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_wards_linkage_is_cut_as_scikit_learn_cuts_it():
    rng = np.random.default_rng(3)
    points = rng.standard_normal((80, 5))
    for number in (2, 3, 11, 40, 79):
        theirs = AgglomerativeClustering(number, linkage="ward").fit_predict(points)
        ours = mixtures._ward(points, number)
        assert np.array_equal(ours[:, None] == ours, theirs[:, None] == theirs)


def test_a_node_between_two_clusters_is_in_both():
    points = np.array([[-3.0], [-2.0], [-1.0], [0.1], [1.0], [2.0], [3.0]])
    posterior = mixtures._spherical_posterior(points, np.array([0, 0, 0, 0, 1, 1, 1]))
    # By hand: means -1.475 and 2, 7.3075 within squares over 7 - 2 degrees of freedom.
    squares = (0.1 - np.array([-1.475, 2.0])) ** 2
    weights = np.array([4, 3]) * np.exp(-squares / 2 / (7.3075 / 5))
    assert posterior[3] == pytest.approx(weights / weights.sum(), rel=1e-3)
    groups = mixtures.memberships(posterior, 0.1)
    assert [group.tolist() for group in groups] == [[0, 1, 2, 3, 4], [3, 4, 5, 6]]


def test_wards_linkage_takes_a_matrix_that_looks_like_distances():
    assert mixtures._ward(np.array([[0.0, 1.0], [1.0, 0.0]]), 1).tolist() == [0, 0]


def test_components_in_which_nobody_is_are_no_groups():
    posterior = np.array([[0.85, 0.15, 0.0], [0.95, 0.05, 0.0], [0.04, 0.96, 0.0]])
    groups = mixtures.memberships(posterior, 0.1)
    assert [group.tolist() for group in groups] == [[0, 1], [0, 2]]
    assert [g.tolist() for g in mixtures.memberships(posterior, 0.97)] == [[0, 1], [2]]


def test_one_gaussian_has_the_bic_of_scikit_learn():
    points = np.random.default_rng(0).standard_normal((60, 4)) @ np.diag([1, 2, 3, 0.1])
    data = mixtures._Quadratic(points - points.mean(axis=0), 1e-6)
    bic, posterior = data.fit(1, np.random.default_rng(0))
    theirs = GaussianMixture(1, reg_covar=1e-6).fit(points)
    assert bic == pytest.approx(theirs.bic(points), rel=1e-9)
    assert np.array_equal(posterior, np.ones((60, 1)))


def test_several_gaussians_have_the_bic_and_the_posteriors_of_scikit_learn():
    rng = np.random.default_rng(1)
    points = np.vstack([rng.normal(8 * k, 1 + k, (70, 3)) for k in range(3)])
    data = mixtures._Quadratic(points - points.mean(axis=0), 1e-6)
    bic, posterior = data.fit(3, np.random.default_rng(0))
    theirs = GaussianMixture(3, reg_covar=1e-6, random_state=0).fit(points)
    assert bic == pytest.approx(theirs.bic(points), rel=1e-3)
    order = np.argsort(posterior.T @ points[:, 0] / posterior.sum(axis=0))
    their_order = np.argsort(theirs.means_[:, 0])
    other = theirs.predict_proba(points)[:, their_order]
    assert np.abs(posterior[:, order] - other).max() < 0.05


def test_bic_chooses_the_number_of_gaussians_there_are():
    rng = np.random.default_rng(2)
    points = np.vstack([rng.normal(20 * k, 1, (40, 3)) for k in range(5)])
    posterior = best_mixture(points, most=15, min_variance=1e-6, random_state=0)
    assert posterior.shape == (200, 5)
    assert posterior.sum(axis=1) == pytest.approx(1)


def test_fits_that_fail_are_passed_over(monkeypatch):
    real = mixtures._Quadratic.fit

    def sometimes(self, number, rng):
        if number != 3:
            raise np.linalg.LinAlgError("singular")
        return real(self, number, rng)

    points = np.random.default_rng(0).standard_normal((30, 2))
    monkeypatch.setattr(mixtures._Quadratic, "fit", sometimes)
    assert best_mixture(points, most=5, min_variance=1e-6, random_state=0).shape == (30, 3)
    monkeypatch.setattr(mixtures._Quadratic, "fit", lambda *_: sometimes(*_[:1], 1, None))
    assert best_mixture(points, most=5, min_variance=1e-6, random_state=0).shape == (30, 1)


def test_main_axes_are_the_same_from_rows_and_from_columns():
    unit = directions(np.random.default_rng(0).standard_normal((30, 30)).astype(np.float32))
    wide = np.hstack([unit, np.zeros((30, 5), np.float32)])
    tall = principal_components(unit[:, :20], 4)
    few = principal_components(wide[:, :20], 4)
    assert np.allclose(np.abs(tall), np.abs(few), atol=1e-5)
    by_rows = principal_components(wide, 4)
    centred = unit.astype(np.float64) - unit.mean(axis=0)
    exact = np.linalg.svd(centred, compute_uv=False)[:4]
    assert np.linalg.norm(by_rows, axis=0) == pytest.approx(exact, rel=1e-4)


def test_k_means_labels_points_by_the_nearest_mean():
    points, truth = topics(6, 40, noise=0.2)
    labels = kmeans(points, 6, np.random.default_rng(0))
    means = np.stack([points[labels == k].mean(axis=0) for k in np.unique(labels)])
    nearest = ((points[:, np.newaxis] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert adjusted_rand_score(nearest, labels) == 1.0
    assert adjusted_rand_score(truth, labels) > 0.7


def test_blocks_hold_every_point_once_and_are_small_enough():
    for points in (topics(30, 40)[0], np.ones((999, 3)), np.eye(500)):
        parts = list(divide(points, most=100, random_state=0))
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(points)))
        assert max(map(len, parts)) <= 100
        assert len(parts) <= len(points) / 100 * 8


def test_a_layout_keeps_topics_apart_and_is_the_same_twice():
    vectors, truth = topics(4, 20)
    unit = directions(vectors)
    first, again = (reduce_dimension(unit, neighbors=10, width=3, random_state=5) for _ in "12")
    assert np.array_equal(first, again)
    assert first.shape == (80, 3)
    assert first.dtype == np.float64
    other = reduce_dimension(unit, neighbors=10, width=3, random_state=6)
    assert not np.array_equal(first, other)
    near = np.argsort(((first[:, np.newaxis] - first) ** 2).sum(axis=2), axis=1)[:, 1:6]
    assert (truth[near] == truth[:, np.newaxis]).mean() > 0.95


def test_two_threads_in_umap_end_neither_the_process_nor_differ():
    vectors, _ = topics(6, 8)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: PaperClusterer()(layer(vectors)), range(4)))
    assert found[1:] == found[:1] * 3


# --- guards


@pytest.mark.parametrize("bad", [[[0, 12]], [[-1, 2]], [[0.0, 1.0]], [["0", "1"]], [[True, 2]], 3])
def test_a_clusterer_that_answers_nonsense_is_named(bad):
    with pytest.raises(InvalidParameterError, match="groups of Fixed must be lists of indices"):
        cluster_layer(Fixed(bad), layer(np.eye(12)), max_tokens=1000)


def test_repeated_indices_and_groups_count_once_and_everything_is_in_order():
    answer = [[11, 10, 9, 8], (3, 2, 2, 1, 0), np.array([8, 9, 10, 11]), [7, 6, 5, 4, 3], []]
    groups = cluster_layer(Fixed(answer), layer(np.eye(12)), max_tokens=1000)
    assert groups == [[0, 1, 2, 3], [3, 4, 5, 6, 7], [8, 9, 10, 11]]
    assert all(type(index) is int for group in groups for index in group)


def test_a_small_layer_that_fits_is_one_group_and_nobody_is_asked():
    own = Fixed([[0, 1]])
    assert cluster_layer(own, layer(np.eye(11)), max_tokens=1100) == [list(range(11))]
    assert own.layers == []
    assert cluster_layer(own, layer(np.eye(11)), max_tokens=1099) != [list(range(11))]
    assert len(own.layers) == 1


def test_layers_without_two_nodes_that_fit_have_no_groups():
    own = Fixed([[0, 1]])
    assert cluster_layer(own, layer(np.empty((0, 3))), max_tokens=10) == []
    assert cluster_layer(own, layer(np.ones((1, 3))), max_tokens=1000) == []
    assert cluster_layer(own, layer(np.ones((20, 3)), tokens=51), max_tokens=101) == []
    assert own.layers == []


def test_a_group_over_the_budget_is_clustered_again():
    class Halves:
        def __call__(self, layer):
            middle = len(layer.ids) // 2
            return [range(middle), range(middle, len(layer.ids))]

    groups = cluster_layer(Halves(), layer(np.eye(16)), max_tokens=400)
    assert groups == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_what_clustering_cannot_divide_is_divided_evenly_by_order():
    def one(layer):
        return [range(len(layer.ids))]

    groups = cluster_layer(one, layer(np.ones((14, 3))), max_tokens=500)
    assert [len(group) for group in groups] == [5, 5, 4]
    assert [row for group in groups for row in group] == list(range(14))


def test_a_clusterer_that_peels_off_one_node_at_a_time_comes_to_an_end():
    calls = []

    def peel(layer):
        calls.append(len(layer.ids))
        return [[0], range(1, len(layer.ids))]

    groups = cluster_layer(peel, layer(np.ones((3000, 2))), max_tokens=700)
    assert len(calls) == 2
    assert all(2 <= len(group) <= 7 for group in groups)
    assert {row for group in groups for row in group} == set(range(3000))


def test_a_clusterer_whose_groups_overlap_by_much_comes_to_an_end():
    rng = np.random.default_rng(0)
    asked = 0

    def four_of_most(part):
        nonlocal asked
        asked += 1
        size = int(0.7 * len(part.ids))
        return [rng.choice(len(part.ids), size, replace=False) for _ in range(4)]

    groups = cluster_layer(four_of_most, layer(topics(100, 4)[0]), max_tokens=3500)
    assert asked <= 5
    assert max(len(group) for group in groups) <= 35
    assert len({row for group in groups for row in group}) > 300


def test_a_node_alone_joins_the_nearest_group_with_room():
    rows = np.zeros((12, 3))
    rows[:6] = [1, 0, 0]
    rows[6:11] = [0, 1, 0]
    rows[11] = [0.9, 0.5, 0]
    answer = [range(6), range(6, 11), [11]]
    near = cluster_layer(Fixed(answer), layer(rows), max_tokens=700)
    assert near == [[0, 1, 2, 3, 4, 5, 11], [6, 7, 8, 9, 10]]
    full = cluster_layer(Fixed(answer), layer(rows), max_tokens=600)
    assert full == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    tokens = [100] * 11 + [500]
    left_out = cluster_layer(Fixed(answer), layer(rows, tokens), max_tokens=600)
    assert left_out == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]


def test_a_node_alone_that_is_in_another_group_too_stays_there():
    answer = [range(6), range(6, 12), [3]]
    assert cluster_layer(Fixed(answer), layer(np.eye(12)), max_tokens=9999) == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9, 10, 11],
    ]


def test_nodes_in_no_group_are_left_out():
    answer = [range(4), range(6, 12)]
    groups = cluster_layer(Fixed(answer), layer(np.eye(12)), max_tokens=9999)
    assert groups == [[0, 1, 2, 3], [6, 7, 8, 9, 10, 11]]


@pytest.mark.parametrize("answer", [[], [[0, 1]], list(combinations(range(12), 2))])
def test_a_layer_that_would_not_shrink_is_cut_into_windows(answer):
    groups = cluster_layer(Fixed(answer), layer(np.eye(12)), max_tokens=500)
    assert groups == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]


def test_where_neighbours_do_not_fit_the_small_nodes_are_grouped():
    tokens = [90, 10] * 10
    groups = cluster_layer(Fixed([]), layer(np.eye(20), tokens), max_tokens=60)
    assert groups == [[1, 3, 5, 7, 9, 11], [13, 15, 17, 19]]


def test_a_large_layer_is_given_in_blocks_and_a_linear_clusterer_gets_it_whole():
    vectors, _ = topics(40, 10)
    own = Fixed([], block_size=150)
    own.groups = [[0, 1]]
    cluster_layer(own, layer(vectors), max_tokens=9999)
    assert sum(len(part.ids) for part in own.layers) == 400
    assert max(len(part.ids) for part in own.layers) <= 150
    whole = Fixed([[0, 1]], block_size=None)
    cluster_layer(whole, layer(vectors), max_tokens=9999)
    assert [len(part.ids) for part in whole.layers] == [400]


@pytest.mark.parametrize("block", [0, -1, 2.5, True])
def test_a_block_size_that_is_no_positive_integer_is_refused(block):
    asked = Fixed([])
    asked.block_size = block
    with pytest.raises(InvalidParameterError, match="block_size"):
        cluster_layer(asked, layer(np.eye(20)), max_tokens=1000)


def test_a_block_has_the_ids_vectors_and_tokens_of_its_nodes():
    vectors, _ = topics(10, 8)
    seen = []

    class Watch:
        block_size = 30

        def __call__(self, part):
            seen.append(part)
            return [range(len(part.ids))]

    whole = layer(vectors, tokens=range(80))
    cluster_layer(Watch(), whole, max_tokens=10**6)
    for part in seen:
        for name, vector, tokens in zip(part.ids, part.vectors, part.tokens, strict=True):
            assert np.array_equal(vector, vectors[int(name)])
            assert tokens == int(name)


@pytest.mark.parametrize("max_tokens", [0, -5, 1.5, True, None, "100"])
def test_a_budget_that_is_no_positive_integer_is_refused(max_tokens):
    with pytest.raises(InvalidParameterError, match="max_tokens"):
        cluster_layer(clusterer("fast"), layer(np.eye(12)), max_tokens=max_tokens)


def test_a_layer_of_unequal_parts_or_of_no_numbers_is_refused():
    uneven = Layer(("a", "b"), np.eye(3, dtype=np.float32), (1, 1, 1))
    with pytest.raises(InvalidParameterError, match="ids, vectors and tokens of one length"):
        cluster_layer(clusterer("fast"), uneven, max_tokens=10)
    broken = layer(np.full((3, 3), np.nan))
    with pytest.raises(EmbeddingError, match=r"layer\.vectors"):
        cluster_layer(clusterer("fast"), broken, max_tokens=1000)


# --- hostile inputs


def hostile(rng):
    """Random, tight, duplicate, tiny, collinear, zero and huge inputs."""
    kind = rng.integers(8)
    count = int(rng.integers(1, 15)) if kind == 3 else int(rng.integers(2, 90))
    width = int(rng.choice([1, 2, 3, 16, 64]))
    rows = rng.standard_normal((count, width))
    if kind == 1:
        rows = np.repeat(rows[:3], -(-count // 3), axis=0)[:count] + 1e-7 * rows
    elif kind == 2:
        rows = rows[rng.integers(max(count // 10, 1), size=count)]
    elif kind == 4:
        rows = np.outer(np.linspace(-1, 1, count), rows[0]) + rng.choice([0, 1]) * rows[-1]
    elif kind == 5:
        rows[rng.random(count) < rng.choice([0.2, 1.0])] = 0
    elif kind == 6:
        rows *= rng.choice([1e-30, 1e14], (count, 1))
    elif kind == 7:
        rows = np.ones_like(rows)
    tokens = rng.integers(0, int(rng.choice([2, 100, 400])) + 1, count).tolist()
    return layer(rows, tokens, ids=[f"{x:04d}" for x in rng.permutation(count)])


def check(groups, given, max_tokens):
    count = len(given.ids)
    assert all(len(group) >= 2 and group == sorted(set(group)) for group in groups)
    assert groups == sorted(groups)
    assert len({tuple(group) for group in groups}) == len(groups)
    assert all(sum(given.tokens[row] for row in group) <= max_tokens for group in groups)
    placed = {row for group in groups for row in group}
    assert placed <= set(range(count))
    fits = count > 1 and sum(sorted(given.tokens)[:2]) <= max_tokens
    assert bool(groups) == fits
    if groups:
        assert len(groups) + count - len(placed) < count
        if 2 * max(given.tokens) <= max_tokens:
            assert len(groups) + count - len(placed) <= 0.75 * count


@pytest.mark.parametrize("name", CHEAP)
def test_nothing_crashes_on_hostile_inputs(name):
    rng = np.random.default_rng(CHEAP.index(name))
    made = clusterer(name)
    for _ in range(250):
        given = hostile(rng)
        max_tokens = int(rng.choice([1, 150, 800, 3500]))
        check(cluster_layer(made, given, max_tokens=max_tokens), given, max_tokens)


def test_the_papers_clusterer_does_not_crash_on_hostile_inputs():
    rng = np.random.default_rng(1)
    made = clusterer("paper")
    for _ in range(40):
        given = hostile(rng)
        check(cluster_layer(made, given, max_tokens=3500), given, 3500)


@pytest.mark.parametrize("count", range(1, 16))
def test_the_papers_clusterer_takes_the_smallest_layers(count):
    vectors = np.random.default_rng(count).standard_normal((count, 20))
    groups = PaperClusterer()(layer(vectors))
    assert {row for group in groups for row in group} == set(range(count))
    small = PaperClusterer(dimension=1, max_neighbors=2, local_neighbors=2)(layer(vectors))
    assert {row for group in small for row in group} == set(range(count))


# --- the same groups on every run

SCRIPT = """
    import json, sys
    import numpy as np
    from longrag.indexing.tree.clustering import cluster_layer, clusterer
    from longrag.indexing.tree.clusterer import Layer
    vectors = np.random.default_rng(0).standard_normal((150, 40)).astype(np.float32)
    layer = Layer(tuple(f"node {row}" for row in range(150)), vectors, (100,) * 150)
    names = ("paper", "fast", "graph", "stable")
    found = [cluster_layer(clusterer(n), layer, max_tokens=3500) for n in names]
    print(json.dumps(found), file=out)
"""


def test_groups_are_the_same_in_another_process_with_other_hashes_and_threads():
    script = textwrap.dedent(SCRIPT)
    environment = {**os.environ, "PYTHONHASHSEED": "4", "PYTHONPATH": str(ROOT)}
    environment |= {"OPENBLAS_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"}
    command = [sys.executable, "-W", "error::UserWarning", "-c", "import sys; out = sys.stdout\n"]
    command[-1] += script
    theirs = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=100
    )
    ours = io.StringIO()
    exec(script, {"out": ours})
    assert json.loads(theirs.stdout) == json.loads(ours.getvalue())


# --- stable


def changed(before, after):
    """Count the groups of node ids that there were not before."""
    old, new = (
        {frozenset(part.ids[row] for row in group) for group in groups}
        for part, groups in (before, after)
    )
    return len(new - old)


def test_five_new_leaves_among_two_thousand_change_few_stable_groups():
    vectors, _ = topics(286, 7, noise=1.2, width=96)
    rng = np.random.default_rng(0)
    made = clusterer("stable")
    whole = layer(vectors)
    after = (whole, cluster_layer(made, whole, max_tokens=3500))
    counts = []
    for _ in range(6):
        centre = vectors[rng.integers(len(vectors))]
        new = set(np.argsort(-(vectors @ centre))[:5].tolist())
        part = whole.take([row for row in range(len(vectors)) if row not in new])
        counts.append(changed((part, cluster_layer(made, part, max_tokens=3500)), after))
    assert np.mean(counts) <= 8


def test_stable_groups_are_of_a_few_nodes_each():
    vectors, _ = topics(150, 7, noise=1.2)
    sizes = [len(group) for group in StableClusterer()(layer(vectors))]
    assert 5 <= np.mean(sizes) <= 8
    assert max(sizes) <= 12
    assert np.mean(np.array(sizes) < 4) < 0.02
    assert sum(sizes) == len(vectors)


def test_stable_groups_of_equal_nodes_are_of_a_few_nodes_each():
    groups = cluster_layer(clusterer("stable"), layer(np.ones((500, 4))), max_tokens=3500)
    assert max(map(len, groups)) <= 12
    assert len(groups) < 250


def test_large_stable_layers_are_divided_where_the_nodes_are():
    vectors, _ = topics(60, 10)
    few = StableClusterer(block=150)
    groups = few(layer(vectors))
    assert sorted(row for group in groups for row in group) == list(range(600))
    moved = np.random.default_rng(0).permutation(600)
    whole = layer(vectors)
    again = few(whole.take(moved.tolist()))
    assert {frozenset(group) for group in groups} == {
        frozenset(moved[group].tolist()) for group in again
    }
    alike = StableClusterer(block=50)(layer(np.ones((400, 3))))
    assert sorted(row for group in alike for row in group) == list(range(400))
