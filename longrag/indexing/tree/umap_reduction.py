"""Reduces the width of vectors with UMAP, the same on every run."""

from __future__ import annotations

import threading
import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longrag.errors import MissingExtraError
from longrag.indexing.neighbours import nearest_neighbours
from longrag.indexing.tree.geometry import Floats, principal_components

# UMAP's compiled loops end the process when two threads are in them at once, on machines where
# numba has only its own thread pool.
_LOCK = threading.Lock()

# What the class `umap.UMAP` passes on when it is given nothing.
_DEFAULTS: dict[str, Any] = {
    "initial_alpha": 1.0,
    "gamma": 1.0,
    "negative_sample_rate": 5,
    "n_epochs": None,
    "metric": "cosine",
    "metric_kwds": {},
    "densmap": False,
    "densmap_kwds": {},
    "output_dens": False,
}


def check_umap(clusterer: str) -> None:
    """Refuse a clusterer that needs UMAP, before anything is paid for.

    Raises:
        MissingExtraError: UMAP is not installed.
    """
    if find_spec("umap") is None:
        raise MissingExtraError(f"The clusterer {clusterer!r}", "umap")


def reduce_dimension(
    unit: NDArray[np.float32], *, neighbors: int, width: int, random_state: int
) -> Floats:
    """Reduce directions to a few dimensions with UMAP, shape (n, width).

    UMAP's own functions lay out the graph of the exact nearest neighbours, in one thread, from the
    principal components.
    """
    near, cosines = nearest_neighbours(unit, k=max(min(neighbors, len(unit)) - 1, 1))
    indices = np.hstack([np.arange(len(unit))[:, np.newaxis], near]).astype(np.int32)
    distances = np.hstack([np.zeros((len(unit), 1)), 1 - cosines]).astype(np.float32)
    rng = np.random.RandomState(random_state)
    start = _first_layout(unit, width, rng)
    with _LOCK:
        layout = _umap()(unit, indices, distances, start, rng)
    return layout if np.isfinite(layout).all() else start.astype(np.float64)


def _first_layout(
    unit: NDArray[np.float32], width: int, rng: np.random.RandomState
) -> NDArray[np.float32]:
    """Scale principal components to 10, with the noise that UMAP gives its own first layouts."""
    start = np.zeros((len(unit), width))
    main = principal_components(unit, width)
    start[:, : main.shape[1]] = main * (10 / max(float(np.abs(main).max()), 1e-12))
    return (start + rng.normal(scale=1e-4, size=start.shape)).astype(np.float32)


@cache
def _umap() -> Any:
    # UMAP takes seconds to import, and warns where TensorFlow is absent.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Tensorflow not installed", ImportWarning)
        from umap.umap_ import find_ab_params, fuzzy_simplicial_set, simplicial_set_embedding
    import numba

    curve = find_ab_params(1.0, 0.1)

    def embed(
        unit: NDArray[np.float32],
        indices: NDArray[np.int32],
        distances: NDArray[np.float32],
        start: NDArray[np.float32],
        rng: np.random.RandomState,
    ) -> Floats:
        threads = numba.get_num_threads()
        # With more threads sums are added up in another order.
        numba.set_num_threads(1)
        try:
            graph, *_ = fuzzy_simplicial_set(
                unit,
                indices.shape[1],
                random_state=rng,
                metric="cosine",
                knn_indices=indices,
                knn_dists=distances,
            )
            layout, _ = simplicial_set_embedding(
                unit,
                graph,
                n_components=start.shape[1],
                init=start,
                random_state=rng,
                **_DEFAULTS,
                **dict(zip("ab", curve, strict=True)),
            )
        finally:
            numba.set_num_threads(threads)
        return np.asarray(layout, dtype=np.float64)

    return embed
