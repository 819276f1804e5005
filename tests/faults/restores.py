"""Ways to back an index up and to restore it while processes have it open.

``back_up`` takes what is there now, and ``restore`` brings the last backup back, while no
transaction runs. ``place`` is where the index is, all the time.
"""

from __future__ import annotations

import shutil
import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path

from tests.faults.servers import Address, Cluster, append_settings, own_file

DATABASE = "restored"


class Way(ABC):
    """A way to back up and to restore."""

    place: str | Path

    @abstractmethod
    def back_up(self) -> None: ...

    @abstractmethod
    def restore(self) -> None: ...

    def close(self) -> None:
        """Stop what runs for it alone."""
        return


class File(Way):
    """A SQLite file, which one way copies and another puts in place.

    Args:
        folder: an empty folder.
        copying: "backup" by SQLite's functions, "vacuum" by its statement, "copy" of the file.
        placing: "backup" by SQLite's functions, "rename" or "overwrite" of the file.
        tidy: whether the log and the shared memory beside the file are removed first.
    """

    def __init__(self, folder: Path, copying: str, placing: str, *, tidy: bool) -> None:
        self.place = folder / "index.db"
        self._copy = folder / "copy.db"
        self._copying, self._placing, self._tidy = copying, placing, tidy

    def back_up(self) -> None:
        self._copy.unlink(missing_ok=True)
        if self._copying == "copy":
            log = self.place.with_name("index.db-wal")
            assert not log.exists() or not log.stat().st_size
            shutil.copy(self.place, self._copy)
            return
        with closing(sqlite3.connect(self.place)) as source:
            if self._copying == "vacuum":
                source.execute("VACUUM INTO ?", (str(self._copy),))
            else:
                with closing(sqlite3.connect(self._copy)) as target:
                    source.backup(target)

    def restore(self) -> None:
        if self._placing == "backup":
            with (
                closing(sqlite3.connect(self._copy)) as source,
                closing(sqlite3.connect(self.place)) as target,
            ):
                source.backup(target)
            return
        if self._tidy:
            for suffix in ("-wal", "-shm"):
                self.place.with_name(f"index.db{suffix}").unlink(missing_ok=True)
        if self._placing == "rename":
            new = self._copy.with_name("new.db")
            shutil.copy(self._copy, new)
            new.replace(self.place)
        else:
            # The file stays the same one, with other bytes.
            shutil.copyfile(self._copy, self.place)


class Dump(Way):
    """A database of PostgreSQL, dumped and restored.

    Args:
        folder: an empty folder.
        cluster: the server.
        how: "psql" or "pg_restore" over what is there, or "recreate" the database.
    """

    def __init__(self, folder: Path, cluster: Cluster, how: str) -> None:
        self._cluster, self._how = cluster, how
        self._dump = cluster.own(folder / "dumps") / "dump"
        address = cluster.socket.parent
        self.place = f"postgresql+psycopg://postgres@/{DATABASE}?host={address}"
        cluster.sql(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        cluster.sql(f"CREATE DATABASE {DATABASE}")

    def back_up(self) -> None:
        form = ("--clean", "--if-exists") if self._how == "psql" else ("-Fc",)
        self._cluster.client("pg_dump", DATABASE, *form, "-f", str(self._dump))

    def restore(self) -> None:
        run = self._cluster.client
        if self._how == "psql":
            run("psql", DATABASE, "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", str(self._dump))
        elif self._how == "pg_restore":
            run("pg_restore", DATABASE, "--clean", "--if-exists", "-1", str(self._dump))
        else:
            self._cluster.sql(f"DROP DATABASE {DATABASE} WITH (FORCE)")
            self._cluster.sql(f"CREATE DATABASE {DATABASE}")
            run("pg_restore", DATABASE, str(self._dump))


class Replaced(Way):
    """A server whose place another server takes, which has not seen the last changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self.clusters = [Cluster(folder / "first")]
        self._address = Address()
        self._address.lead_to(self.clusters[-1])
        self.clusters[-1].sql(f"CREATE DATABASE {DATABASE}")
        self.place = self._address.url(DATABASE)

    def _next(self) -> Path:
        self._made += 1
        return self._folder / f"next{self._made}"

    def _take_place(self, cluster: Cluster) -> None:
        cluster.wait_for("NOT pg_is_in_recovery()")
        self.clusters.append(cluster)
        self._address.lead_to(cluster)

    def close(self) -> None:
        for cluster in self.clusters:
            cluster.close()
        self._address.close()


class PointInTime(Replaced):
    """A base backup, and the archive of the log up to a point in time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        first = self.clusters[-1]
        self._archive = first.own(folder / "archive")
        first.sql("ALTER SYSTEM SET archive_mode = on")
        first.sql(f"ALTER SYSTEM SET archive_command = 'cp %p {self._archive}/%f'")
        first.restart()
        self._base = first.base_backup(self._next())
        self._point = ""

    def back_up(self) -> None:
        self._point = f"point{self._made}_{id(object())}"
        self.clusters[-1].sql(f"SELECT pg_create_restore_point('{self._point}')")

    def restore(self) -> None:
        old = self.clusters[-1]
        ((segment,),) = old.sql("SELECT pg_walfile_name(pg_switch_wal())")
        old.wait_for(
            f"coalesce((SELECT last_archived_wal >= '{segment}' FROM pg_stat_archiver), false)"
        )
        old.stop()
        append_settings(
            self._base,
            restore_command=f"cp {self._archive}/%f %p",
            recovery_target_name=self._point,
            recovery_target_action="promote",
        )
        own_file(self._base, "recovery.signal")
        new = Cluster(self._base)
        self._take_place(new)
        # Restored once more, it is to begin from here.
        self._base = new.base_backup(self._next())
        self.back_up()


class Promoted(Replaced):
    """A streaming replica that has lost its primary, and is promoted when that ends."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._replica: Cluster | None = None

    def back_up(self) -> None:
        if self._replica is not None:
            self._replica.close()
        primary = self.clusters[-1]
        self._replica = replica = Cluster(primary.base_backup(self._next(), "-R"))
        ((seen,),) = primary.sql("SELECT pg_current_wal_lsn()")
        replica.wait_for(f"pg_last_wal_replay_lsn() >= '{seen}'")
        # It would apply what it has received before it is promoted, so it may receive nothing.
        replica.sql("ALTER SYSTEM SET primary_conninfo = ''")
        replica.sql("SELECT pg_reload_conf()")
        replica.wait_for("NOT EXISTS (SELECT 1 FROM pg_stat_wal_receiver)")

    def restore(self) -> None:
        assert self._replica is not None
        self.clusters[-1].stop()
        new, self._replica = self._replica, None
        new.sql("SELECT pg_promote()")
        self._take_place(new)
        self.back_up()

    def close(self) -> None:
        if self._replica is not None:
            self._replica.close()
        super().close()


FILES: dict[str, tuple[str, str, bool]] = {
    "backup": ("backup", "backup", False),
    "vacuum, backup": ("vacuum", "backup", False),
    "copy, rename": ("copy", "rename", False),
    "vacuum, rename, tidy": ("vacuum", "rename", True),
    "copy, overwrite": ("copy", "overwrite", False),
    "backup, overwrite, tidy": ("backup", "overwrite", True),
}
DUMPS: tuple[str, ...] = ("psql", "pg_restore", "recreate")
REPLACED: dict[str, type[Replaced]] = {"point in time": PointInTime, "promoted": Promoted}
