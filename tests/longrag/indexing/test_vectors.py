import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from longrag.errors import EmbeddingError, InvalidParameterError
from longrag.indexing.vectors import (
    BLOCK_ROWS,
    blocks,
    check_vectors,
    exact_inner_products,
    largest_norm,
    pack,
)


def test_a_complying_array_comes_back_as_it_is():
    vectors = np.ones((2, 3), dtype=np.float32)
    assert check_vectors(vectors, name="vectors") is vectors


@pytest.mark.parametrize(
    "given_vectors",
    [
        [[1, 2], [3, 4]],
        np.array([[1, 2], [3, 4]], dtype=np.uint8),
        np.array([[1.0, 3.0], [2.0, 4.0]]).T,
        np.array([[1, 9, 2, 9], [3, 9, 4, 9]], dtype=np.float16)[:, ::2],
    ],
)
def test_numbers_of_any_type_and_layout_become_contiguous_float32(given_vectors):
    checked = check_vectors(given_vectors, name="vectors")
    assert checked.dtype == np.float32
    assert checked.flags.c_contiguous
    assert checked.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_no_rows_are_allowed():
    assert check_vectors(np.empty((0, 5)), name="vectors").shape == (0, 5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([[1.0, 2.0], [3.0]], "of one width"),
        ([["1.0", "2.0"]], "must be real numbers"),
        ([[None, 1.0]], "must be real numbers"),
        ([[True, False]], "got values of type bool"),
        ([[1 + 2j]], "got values of type complex"),
        ([[1.0, 2.0, 3.0]], "3 values each, where 2 are expected"),
        ([[0.0, 0.0], [1.0, math.nan]], r"vectors\[1\] holds nan"),
        ([[0.0, math.inf]], r"vectors\[0\] holds inf"),
        ([[0.0, -math.inf]], r"vectors\[0\] holds -inf"),
        ([[0.0, 1e300]], r"vectors\[0\] holds inf"),
        ([[0.0, -2e15]], "at most 1e\\+15 in magnitude"),
    ],
)
def test_what_an_embedder_must_not_return_is_an_embedding_error(wrong, message):
    with pytest.raises(EmbeddingError, match=message):
        check_vectors(wrong, name="vectors", width=2)


def test_the_row_with_a_nan_is_named_beyond_the_first_block():
    vectors = np.zeros((BLOCK_ROWS + 7, 2), dtype=np.float32)
    vectors[BLOCK_ROWS + 3, 1] = np.nan
    with pytest.raises(EmbeddingError, match=rf"queries\[{BLOCK_ROWS + 3}\] holds nan"):
        check_vectors(vectors, name="queries")


@pytest.mark.parametrize("wrong", [3.0, [1.0, 2.0], np.zeros((2, 2, 2)), np.zeros((4, 0)), []])
def test_another_shape_than_rows_of_values_is_refused(wrong):
    with pytest.raises(InvalidParameterError, match=r"vectors\.shape must be"):
        check_vectors(wrong, name="vectors")


def test_a_single_row_is_taken_only_where_that_is_asked_for():
    assert check_vectors([1, 2], name="queries", one_row=True).tolist() == [[1.0, 2.0]]
    with pytest.raises(InvalidParameterError, match="shape"):
        check_vectors([], name="queries", one_row=True)


def test_packing_reorders_a_copy_and_rounds_to_the_storage_type():
    vectors = np.array([[1.0, 0.1], [2.0, 0.2]], dtype=np.float32)
    packed = pack(vectors, np.array([1, 0]), name="vectors", storage="float16")
    assert packed.dtype == np.float16
    assert packed.tolist() == np.float16([[2.0, 0.2], [1.0, 0.1]]).tolist()
    assert vectors.tolist() == np.float32([[1.0, 0.1], [2.0, 0.2]]).tolist()
    same = pack(vectors, np.array([0, 1]), name="vectors", storage="float32")
    assert not np.shares_memory(same, vectors)


def test_float16_refuses_what_it_cannot_hold():
    fits = np.array([[65504.0]], dtype=np.float32)
    assert pack(fits, np.array([0]), name="vectors", storage="float16")[0, 0] == 65504
    with pytest.raises(EmbeddingError, match=r"vectors\[0\] holds 65505.0; float16"):
        pack(fits + 1, np.array([0]), name="vectors", storage="float16")


@pytest.mark.parametrize("count", [0, 1, BLOCK_ROWS, BLOCK_ROWS + 1])
def test_blocks_cover_each_row_once(count):
    covered = [row for rows in blocks(count) for row in range(rows.start, rows.stop)]
    assert covered == list(range(count))


def test_the_largest_norm_survives_values_whose_squares_vanish_in_float32():
    vectors = np.full((2, 4), 1e-30, dtype=np.float32)
    assert largest_norm(vectors) == pytest.approx(2e-30)
    assert largest_norm(vectors[:0]) == 0.0


finite = st.floats(-1e3, 1e3, width=32)
widths = st.shared(st.integers(1, 70), key="width")


@given(
    vectors=widths.flatmap(lambda width: arrays(np.float32, (7, width), elements=finite)),
    query=widths.flatmap(lambda width: arrays(np.float32, width, elements=finite)),
    storage=st.sampled_from(["float32", "float16"]),
)
def test_the_exact_product_is_the_true_one_but_for_one_rounding(vectors, query, storage):
    stored = pack(vectors, np.arange(7), name="vectors", storage=storage)
    exact = exact_inner_products(stored, np.arange(7), query)
    true = [math.fsum(pairs) for pairs in stored.astype(np.float64) * query.astype(np.float64)]
    # The sum's roundings are those of float64.
    sums = len(query) * 2.0**-52 * np.linalg.norm(query) * largest_norm(stored)
    assert (np.abs(exact - true) <= 2.0**-24 * np.abs(true) + sums + 2.0**-149).all()


@given(
    width=st.sampled_from([1, 2, 3, 8, 127, 128, 129, 384, 1000]),
    rows=st.lists(st.integers(0, 39), min_size=1, max_size=12),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_exact_product_of_a_pair_does_not_depend_on_its_neighbours(width, rows, seed):
    generator = np.random.default_rng(seed)
    vectors = generator.standard_normal((40, width)).astype(np.float32)
    query = generator.standard_normal(width).astype(np.float32)
    together = exact_inner_products(vectors, np.arange(40), query)
    assert exact_inner_products(vectors, np.array(rows), query).tolist() == together[rows].tolist()
    for row in rows:
        assert exact_inner_products(vectors, np.array([row]), query)[0] == together[row]


def test_the_exact_product_keeps_what_float32_sums_lose():
    vectors = np.array([[1e8, 1.0, -1e8]], dtype=np.float32)
    query = np.ones(3, dtype=np.float32)
    assert exact_inner_products(vectors, np.array([0]), query).tolist() == [1.0]


def test_a_vanishing_product_is_an_ordinary_zero():
    vectors = np.array([[-1e-30], [0.0]], dtype=np.float32)
    query = np.array([1e-30], dtype=np.float32)
    products = exact_inner_products(vectors, np.arange(2), query)
    assert np.signbit(products).tolist() == [False, False]
