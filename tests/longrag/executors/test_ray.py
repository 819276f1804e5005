"""A real local Ray cluster of two nodes, of which one is killed in the middle of the work."""

import sys
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from longrag.errors import InvalidDocumentError, MissingExtraError
from longrag.executors import map_parts
from longrag.executors.ray import RayExecutor
from longrag.ingestion import UnitBuilder, read_documents


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"longrag\[ray\]"):
        RayExecutor()


@pytest.fixture(scope="module")
def cluster():
    """The head and one more node, each with one processor; the tests end and replace the other."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'longrag[ray]'")
    from ray.cluster_utils import Cluster

    nodes = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    # Workers must find the tests and the package that run here.
    paths = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    ray.init(address=nodes.address, runtime_env={"env_vars": paths}, log_to_driver=False)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture
def second(cluster):
    node = cluster.add_node(num_cpus=1, resources={"second": 1})
    cluster.wait_for_nodes()
    yield node
    if node in cluster.worker_nodes:
        cluster.remove_node(node, allow_graceful=True)


def square(number):
    return number * number


def square_or_wait_for_death(folder, doomed, number):
    """Square a number; on the node that is to be killed, leave a mark and wait for that."""
    import ray

    if ray.get_runtime_context().get_node_id() == doomed:
        (Path(folder) / str(number)).touch()
        time.sleep(300)
    return number * number


def refuse(number):
    raise InvalidDocumentError(f"document {number}")


def test_it_is_an_executor_like_others(cluster, second):
    with RayExecutor(num_cpus=1) as executor:
        assert isinstance(executor, Executor)
        assert executor.submit(pow, 2, exp=5).result() == 32
        assert list(map_parts(square, range(40), executor)) == [n * n for n in range(40)]
        assert list(executor.map(square, range(5))) == [0, 1, 4, 9, 16]
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(square, 1)


def test_a_refusal_keeps_its_kind(cluster):
    with RayExecutor() as executor, pytest.raises(InvalidDocumentError, match="document 3"):
        list(map_parts(refuse, [3], executor))


def test_a_node_that_is_killed_loses_nothing(cluster, second, tmp_path):
    work = partial(square_or_wait_for_death, str(tmp_path), second.node_id)
    with RayExecutor(num_cpus=1) as executor, ThreadPoolExecutor(1) as threads:
        results = threads.submit(list, map_parts(work, range(2000), executor))
        while not (begun := list(tmp_path.iterdir())):
            assert not results.done()
            time.sleep(0.01)
        cluster.remove_node(second, allow_graceful=False)
        found = results.result()
    assert found == [number * number for number in range(2000)]
    # What the dead node had begun was done by the other.
    assert int(begun[0].name) in range(2000)


def test_a_corpus_is_read_and_cut_alike(cluster, second, tmp_path, corpus):
    for number, page in enumerate(corpus * 3):
        (tmp_path / f"{number:03d}.md").write_text(page.text, encoding="utf-8")
    with RayExecutor() as executor:
        spread = read_documents(tmp_path, executor=executor)
        units = UnitBuilder(chunk_size=40, executor=executor).build(spread)
    alone = read_documents(tmp_path)
    assert spread == alone
    assert units == UnitBuilder(chunk_size=40).build(alone)
