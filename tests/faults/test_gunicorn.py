"""Gunicorn with indexes opened before it forks: it is reloaded, and its workers are killed."""

import http.client
import importlib.util
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.indexes import opened
from tests.faults.workers import PATIENCE, ROOT

SECONDS = float(os.environ.get("LONGRAG_SECONDS", "4"))
WORKERS, CLIENTS = 4, 4
INDEXES = [("langchain", "LongRAGIndex"), ("llama_index", "RaptorIndex")]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gunicorn") is None, reason="gunicorn is not installed"
)


class Gunicorn:
    """A real server at a socket of a folder."""

    def __init__(self, *places):
        self._folder = tempfile.TemporaryDirectory(prefix="longrag-")
        self.socket = Path(self._folder.name) / "s"
        self.log = Path(self._folder.name) / "log"
        settings = ["--preload", "--workers", str(WORKERS), "--timeout", "60"]
        settings += ["--graceful-timeout", "10", "--bind", f"unix:{self.socket}"]
        settings += ["--log-file", str(self.log), "--no-control-socket"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *settings, "tests.faults.served:application"],
            cwd=ROOT,
            env={**os.environ, "LONGRAG_PLACES": " ".join(map(str, places))},
        )
        given_up = time.monotonic() + PATIENCE
        while not self.socket.exists():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < given_up
            time.sleep(0.05)

    def ask(self, path):
        """Return the answer to a request, or None where the worker ended before it answered."""
        connection = _Connection("localhost", timeout=PATIENCE)
        connection.address = str(self.socket)
        with closing(connection):
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                content = response.read()
            except (OSError, http.client.HTTPException):
                return None
        assert response.status == 200, self.log.read_text()[-6000:]
        return json.loads(content)

    def close(self):
        self.process.terminate()
        self.process.wait()
        self._folder.cleanup()


class _Connection(http.client.HTTPConnection):
    address = ""

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.address)


@pytest.fixture
def server(tmp_path, postgres_url):
    made = Gunicorn(tmp_path / "index.db", postgres_url)
    made.places = [tmp_path / "index.db", postgres_url]
    yield made
    made.close()


class Client(threading.Thread):
    """Changes its pages of an index and asks for all of them, until it is told to stop.

    ``known`` is the last version of each page that was acknowledged, and ``tried`` the last one
    that was asked for.
    """

    def __init__(self, server, number, index, stop):
        super().__init__()
        self._server, self._index, self._stop_asked = server, index, stop
        self._rng = random.Random(number)
        self._names = [f"client{number}page{at}" for at in range(3)]
        self.known, self.tried = {}, {}
        self.acknowledged = self.asked = 0
        self.faults = []

    def run(self):
        try:
            while not self._stop_asked.is_set() and not self.faults:
                self._change() if self._rng.random() < 0.5 else self._look()
        except Exception as error:  # noqa: BLE001 - the test is told of every error
            self.faults.append(repr(error))

    def _change(self):
        name = self._rng.choice(self._names)
        self.tried[name] = version = self.tried.get(name, 0) + 1
        if self._server.ask(f"/{self._index}/put/{name}/{version}") is not None:
            self.known[name] = version
            self.acknowledged += 1

    def _look(self):
        found = self._server.ask(f"/{self._index}/pages")
        if found is not None:
            self.asked += 1
            self.compare(found)

    def compare(self, found):
        """Note what was lost; a change whose worker ended may have been made, or may not."""
        for name in self._names:
            if not self.known.get(name, 0) <= found.get(name, 0) <= self.tried.get(name, 0):
                self.faults.append((name, found.get(name), self.known, self.tried))
            self.known[name] = found.get(name, 0)


def test_workers_that_are_reloaded_and_killed_lose_no_acknowledged_change(server):
    stop = threading.Event()
    count = len(server.places) * len(INDEXES)
    clients = [Client(server, number, number % count, stop) for number in range(CLIENTS * 2)]
    for client in clients:
        client.start()
    ended = time.monotonic() + SECONDS
    kills = reloads = 0
    rng = random.Random(0)
    answered = set()
    while time.monotonic() < ended and not any(client.faults for client in clients):
        time.sleep(0.2)
        worker = server.ask("/0/worker")
        answered.add(worker)
        if rng.random() < 0.5:
            server.process.send_signal(signal.SIGHUP)
            reloads += 1
        elif worker is not None:
            os.kill(worker, signal.SIGKILL)
            kills += 1
    # On a busy machine a client may have got no answer between two kills.
    given_up = time.monotonic() + PATIENCE
    while not all((client.acknowledged and client.asked) or client.faults for client in clients):
        assert time.monotonic() < given_up
        time.sleep(0.1)
    stop.set()
    for client in clients:
        client.join()
    assert [client.faults for client in clients] == [[] for _ in clients]
    assert kills
    assert reloads
    assert all(client.acknowledged and client.asked for client in clients)
    for number in range(count):
        framework, kind = INDEXES[number % len(INDEXES)]
        place = server.places[number // len(INDEXES)]
        found = opened(framework, kind, place, name=f"{framework} {kind}").pages()
        for client in clients[number::count]:
            client.compare(found)
            assert client.faults == []
    told = sum(client.acknowledged for client in clients), sum(client.asked for client in clients)
    print(f"{told[0]} changes, {told[1]} reads, {kills} kills, {reloads} reloads")  # noqa: T201
