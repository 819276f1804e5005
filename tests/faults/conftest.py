"""Workers, one index of every kind in every database, and a network that can die."""

import os
import random
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.faults.histories import History
from tests.faults.indexes import EVERY_KIND
from tests.faults.proxy import Proxy
from tests.faults.workers import Crew

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    if not hasattr(os, "fork"):
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.skip("these faults are tried where processes fork"))


@pytest.fixture(scope="package")
def crew_of_all():
    made = Crew()
    yield made
    made.close()


@pytest.fixture
def crew(crew_of_all):
    yield crew_of_all
    crew_of_all.dismiss()


@pytest.fixture(params=EVERY_KIND, ids="-".join)
def kind(request):
    return (*request.param, "sync")


@pytest.fixture
def history(crew, place, kind):
    """An index with two pages, which one worker has opened."""
    made = History(crew, kind, place, random.Random(0))
    made.put(made.workers[0], ["a", "b"])
    return made


@pytest.fixture
def wire(postgres_url):
    """A proxy before the server of the database, whose URL through the proxy is ``url``."""
    server = urlsplit(postgres_url)
    made = Proxy(Path(parse_qs(server.query)["host"][0]) / ".s.PGSQL.5432")
    local = f"postgres@127.0.0.1:{made.port}{server.path}"
    made.url = f"postgresql+psycopg://{local}?sslmode=disable"
    yield made
    made.close()


@pytest.fixture
def distant(crew, postgres_url, wire, kind):
    """An index with two pages, which workers will open through the proxy."""
    made = History(crew, kind, postgres_url, random.Random(0))
    made.put(made.workers[0], ["a", "b"])
    made.place = wire.url
    return made
