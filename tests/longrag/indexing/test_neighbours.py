"""Nearest neighbours by cosine: ties, zero vectors, blocks, and the links made of them."""

import numpy as np
import pytest

from longrag.errors import EmbeddingError, InvalidParameterError
from longrag.indexing import neighbours
from longrag.indexing.neighbours import nearest_neighbour_links, nearest_neighbours
from longrag.ingestion import group_documents

# Angles in degrees: 0 and 10 are mutual neighbours, 80 and 90 too, 35 is nearest to 10.
ANGLES = np.radians([0, 10, 35, 80, 90])
FAN = np.column_stack([np.cos(ANGLES), np.sin(ANGLES)])


def test_neighbours_stand_nearest_first_with_their_cosines():
    indices, cosines = nearest_neighbours(FAN, k=2)
    assert indices.tolist() == [[1, 2], [0, 2], [1, 0], [4, 2], [3, 2]]
    assert cosines[0] == pytest.approx([np.cos(np.radians(10)), np.cos(np.radians(35))], abs=1e-6)


def test_length_changes_nothing():
    lengths = np.array([1e-20, 1e15, 3, 1e-6, 1e6])[:, None] / 2
    assert nearest_neighbours(FAN * lengths, k=4)[0].tolist() == (
        nearest_neighbours(FAN, k=4)[0].tolist()
    )


def test_equal_vectors_are_ranked_by_index():
    indices, cosines = nearest_neighbours(np.ones((5, 7)), k=3)
    assert indices.tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2], [0, 1, 2]]
    assert (cosines == 1).all()


def test_a_zero_vector_is_near_nothing():
    indices, cosines = nearest_neighbours([[1, 0], [0, 0], [1, 1]], k=2)
    assert indices.tolist() == [[2, -1], [-1, -1], [0, -1]]
    assert cosines[1].tolist() == [-np.inf, -np.inf]
    assert nearest_neighbour_links([[1, 0], [0, 0], [1, 1]], k=2, min_similarity=-1) == [(0, 2)]


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_there_are_at_most_all_others(rows):
    indices, cosines = nearest_neighbours(np.eye(3)[:rows], k=5)
    assert indices.shape == cosines.shape == (rows, max(rows - 1, 0))
    assert (
        nearest_neighbour_links(np.eye(3)[:rows], mutual=False)
        == [(0, 1), (1, 0)][: 2 * (rows == 2)]
    )


def test_blocks_of_any_size_give_the_same_neighbours(monkeypatch):
    vectors = np.random.default_rng(0).standard_normal((60, 9))
    vectors[30:40] = vectors[:10]
    whole = nearest_neighbours(vectors, k=7)
    oracle = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = np.round(oracle @ oracle.T, 5)
    np.fill_diagonal(cosine, -2)
    assert whole[0].tolist() == np.argsort(-cosine, axis=1, kind="stable")[:, :7].tolist()
    for values in (1, 130, 60 * 60):
        monkeypatch.setattr(neighbours, "_BLOCK_VALUES", values)
        again = nearest_neighbours(vectors, k=7)
        assert again[0].tolist() == whole[0].tolist()
        assert (again[1] == whole[1]).all()


def test_mutual_links_leave_out_one_sided_ones():
    assert nearest_neighbour_links(FAN, k=1) == [(0, 1), (3, 4)]
    assert nearest_neighbour_links(FAN, k=1, mutual=False) == [
        (0, 1),
        (1, 0),
        (2, 1),
        (3, 4),
        (4, 3),
    ]


def test_links_below_the_least_similarity_are_left_out():
    near, far = np.cos(np.radians(11)), np.cos(np.radians(9))
    assert nearest_neighbour_links(FAN, k=1, min_similarity=near) == [(0, 1), (3, 4)]
    assert nearest_neighbour_links(FAN, k=1, min_similarity=far) == []


def test_opposite_vectors_are_linked_only_when_asked_for():
    pair = [[1.0, 0.0], [-1.0, 0.0]]
    assert nearest_neighbour_links(pair) == []
    assert nearest_neighbour_links(pair, min_similarity=-1.0) == [(0, 1)]


def test_the_links_group_documents():
    assert group_documents([10] * 5, nearest_neighbour_links(FAN, k=1), max_size=20) == [
        [0, 1],
        [2],
        [3, 4],
    ]


@pytest.mark.parametrize("k", [0, -1, 2.0, True, None])
def test_k_must_be_a_positive_integer(k):
    with pytest.raises(InvalidParameterError, match="k must be"):
        nearest_neighbours(FAN, k=k)


@pytest.mark.parametrize("value", [1.1, -2, float("nan"), "0.5"])
def test_the_least_similarity_must_be_a_cosine(value):
    with pytest.raises(InvalidParameterError, match="min_similarity"):
        nearest_neighbour_links(FAN, min_similarity=value)


def test_vectors_must_be_finite_rows_of_one_width():
    with pytest.raises(EmbeddingError, match="nan"):
        nearest_neighbours([[1.0, np.nan]], k=1)
    with pytest.raises(EmbeddingError):
        nearest_neighbours([[1.0], [1.0, 2.0]], k=1)
    with pytest.raises(InvalidParameterError, match="shape"):
        nearest_neighbours([1.0, 2.0], k=1)


def test_the_vectors_are_left_as_they_were():
    vectors = FAN.astype(np.float32)
    before = vectors.copy()
    nearest_neighbours(vectors, k=2)
    assert np.array_equal(vectors, before)
