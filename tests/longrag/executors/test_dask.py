"""Dask's own executor, unchanged, over two worker processes of which one is killed."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from longrag.executors import map_parts
from longrag.ingestion import UnitBuilder

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture
def executor(socket_enabled):
    distributed = pytest.importorskip(
        "distributed", reason="Dask is not installed: pip install distributed"
    )
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor(pure=False)


def die_at_first(folder, number):
    tried = Path(folder) / str(number)
    if number == 7 and not tried.exists():
        tried.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def test_a_worker_that_is_killed_loses_nothing(executor, tmp_path):
    results = map_parts(partial(die_at_first, str(tmp_path)), range(40), executor)
    assert list(results) == [number * number for number in range(40)]
    assert (tmp_path / "7").exists()


def test_units_are_made_alike(executor, corpus):
    spread = UnitBuilder(chunk_size=40, executor=executor).build(corpus)
    assert spread == UnitBuilder(chunk_size=40).build(corpus)
