"""Servers for the tests over real stores."""

import pytest

from tests.stores.made import Servers


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    made = Servers(tmp_path_factory.mktemp("stores"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_fork_handlers(monkeypatch):
    # Milvus's client must not hold up the processes that PostgreSQL starts.
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")
