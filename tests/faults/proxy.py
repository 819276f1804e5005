"""A proxy between a client of PostgreSQL and its server that can swallow what either says.

``python -m tests.faults.proxy SOCKET`` writes the port of 127.0.0.1 that it listens at, and then
reads one line for each mode that it is to be in:

- ``forward``: both sides hear each other.
- ``swallow``: it reads what they say, and nobody hears it.
- ``stall``: it reads nothing more, so that what they say fills their buffers.
- ``mute``: it accepts new connections and never answers.

It writes the mode back once it is in it.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
_MOST = 1 << 16


class Proxy:
    """A proxy in a process, since tests may open no sockets of the network."""

    def __init__(self, server: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.proxy", str(server)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self._read())

    def turn(self, mode: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{mode}\n")
        self._process.stdin.flush()
        assert self._read() == mode

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Wires:
    """The connections of a proxy, and the mode it is in."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._mode = "forward"
        self._others: dict[socket.socket, socket.socket | None] = {}
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._chosen = selectors.DefaultSelector()
        for one in (self._listener, sys.stdin):
            self._chosen.register(one, selectors.EVENT_READ)
        tell(self._listener.getsockname()[1])

    def serve(self) -> None:
        """Forward what is said, as far as the mode lets it, until nobody gives modes any more."""
        while True:
            for key, _ in self._chosen.select():
                if key.fileobj is sys.stdin:
                    mode = sys.stdin.readline().strip()
                    if not mode:
                        return
                    self._turn(mode)
                elif key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._others:
                    self._pass_on(key.fileobj)

    def _turn(self, mode: str) -> None:
        # What was kept from the other side is lost, so that its connection is of no use any more.
        lost = [] if mode != "forward" else [*self._others]
        for one in lost:
            self._end(one)
        if mode in ("stall", "mute"):
            for one in self._others:
                with suppress(KeyError):
                    self._chosen.unregister(one)
        self._mode = mode
        tell(mode)

    def _accept(self) -> None:
        client = self._listener.accept()[0]
        self._others[client] = None
        if self._mode == "forward":
            upstream = socket.socket(socket.AF_UNIX)
            upstream.connect(self._server)
            self._others |= {client: upstream, upstream: client}
        if self._mode in ("forward", "swallow"):
            for one in {client, self._others[client]} - {None}:
                self._chosen.register(one, selectors.EVENT_READ)

    def _pass_on(self, one: socket.socket) -> None:
        other = self._others[one]
        try:
            said = one.recv(_MOST)
            if said and other is not None and self._mode == "forward":
                other.sendall(said)
        except OSError:
            said = b""
        if not said and self._mode == "forward":
            self._end(one)
        elif not said:
            # That one side has hung up is swallowed too.
            self._chosen.unregister(one)

    def _end(self, one: socket.socket) -> None:
        """Close a connection and what it leads to."""
        for end in {one, self._others.get(one)} & self._others.keys():
            del self._others[end]
            with suppress(KeyError):
                self._chosen.unregister(end)
            end.close()


def tell(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    Wires(sys.argv[1]).serve()
