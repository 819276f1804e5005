"""Backups that are restored, and servers that are replaced, while processes have the index open."""

import os
import random
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from longrag.indexing.database import IndexDatabase
from tests.fakes.langchain import HashEmbeddings
from tests.fakes.llama_index import HashEmbedding
from tests.faults.histories import INDEX, RESTORES, History
from tests.faults.indexes import EVERY_KIND
from tests.faults.restores import DUMPS, FILES, REPLACED, Dump, File
from tests.faults.servers import Cluster
from tests.faults.workers import PATIENCE, Failed, call

HISTORIES = int(os.environ.get("LONGRAG_HISTORIES", "1"))
STEPS = 40


@pytest.fixture
def folder():
    """A folder in which a server that another user runs has its files, with a short path."""
    with tempfile.TemporaryDirectory(prefix="longrag-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(params=[*FILES, *DUMPS, *REPLACED])
def way(request, folder):
    if request.param in FILES:
        copying, placing, tidy = FILES[request.param]
        made = File(folder, copying, placing, tidy=tidy)
    elif request.param in DUMPS:
        made = Dump(folder, Cluster(request.getfixturevalue("postgres").pgdata), request.param)
    else:
        # It skips the test where PostgreSQL cannot run.
        request.getfixturevalue("postgres")
        made = REPLACED[request.param](folder)
    yield made
    made.close()


@pytest.fixture
def histories(crew, way):
    """Indexes of every kind in one database, which is restored as a whole."""
    made = []
    for number, kind in enumerate(EVERY_KIND):
        manner = ("sync", "async")[number % 2]
        rng = random.Random(number)
        made.append(History(crew, (*kind, manner), way.place, rng, name="/".join(kind)))
    return made


def back_up(way, histories):
    way.back_up()
    for history in histories:
        history.back_up()


def restore(way, histories):
    way.restore()
    for history in histories:
        history.restore()


@pytest.mark.parametrize("others", [0, 2], ids=["nobody else", "another process"])
def test_live_processes_see_and_change_what_was_restored(way, histories, others):
    for history in histories:
        (live,) = history.workers
        history.put(live, ["p", "q"])
        history.workers.append(history.open())
    back_up(way, histories)
    for history in histories:
        live, reader = history.workers
        history.put(live, ["p"])
        history.drop(live, "q")
        history.look(reader)
    restore(way, histories)
    for history in histories:
        live, reader = history.workers
        # As many changes as were discarded: the index has been changed as often as before.
        for number in range(others):
            visitor = history.open()
            history.put(visitor, [f"other{number}"])
            visitor.end("exit")
        history.look(live)
        history.put(live, ["u"])
        history.look(reader)
        history.put(reader, ["p"])
        history.check()


def test_a_change_that_was_begun_before_a_restore_is_made_from_what_was_restored(
    way, histories, tmp_path
):
    for history in histories:
        history.put(history.workers[0], ["p", "q"])
    back_up(way, histories)
    for number, history in enumerate(histories):
        (live,) = history.workers
        history.put(live, ["p"])
        history.put(live, ["r"])
        live.do(wait_at_door, str(tmp_path / f"door{number}"))
        live.begin(call, INDEX, "put", history.next_pages(["u", "q"]))
    for number, _ in enumerate(histories):
        wait_for(tmp_path / f"door{number} reached")
    restore(way, histories)
    for number, history in enumerate(histories):
        (live,) = history.workers
        for name in ("v", "w"):
            visitor = history.open()
            version = history.version
            history.put(visitor, [name])
            visitor.end("exit")
        (tmp_path / f"door{number}").touch()
        try:
            live.result()
        except Failed as error:
            # To refuse it is right too, as long as nothing of it is made.
            if not str(error).startswith(("StaleIndexError", "DatabaseError")):
                raise
        else:
            history.truth |= dict.fromkeys(["u", "q"], version - 1)
        history.check()


def wait_at_door(held, door):
    """Let all embedding in this process wait until there is a file."""

    def waiting(embed):
        def wait(*given):
            Path(f"{door} reached").touch()
            wait_for(Path(door))
            return embed(*given)

        return wait

    HashEmbeddings.vector = waiting(HashEmbeddings.vector)
    HashEmbedding._vector = waiting(HashEmbedding._vector)


def wait_for(path):
    given_up = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < given_up, f"{path} does not appear"
        time.sleep(0.005)


@pytest.mark.parametrize("how", ["rename", "overwrite", "remove"])
def test_an_index_with_other_settings_in_its_place_is_refused(history, tmp_path, how):
    place = history.place
    if how != "remove" and not isinstance(place, Path):
        return
    (live,) = history.workers
    if how == "remove":
        IndexDatabase(place, name=NAME[history.kind[1]], kind=saved_kind(history.kind)).remove()
    new = place if how == "remove" else tmp_path / "new.db"
    other = History(history.crew, history.kind, new, random.Random(0), chunk_size=24)
    other.put(other.workers[0], ["p", "s"])
    if how != "remove":
        other.end(other.workers[0], "exit")
        # All who look from now on open what has taken the place of the index.
        other.place = place
        new.replace(place) if how == "rename" else shutil.copyfile(new, place)
    for method, *values in (("pages",), ("put", {"t": 9}), ("drop", "b"), ("pages",)):
        with pytest.raises(Failed, match="StaleIndexError"):
            live.do(call, INDEX, method, *values)
        other.check()


NAME = {"LongRAGIndex": "longrag", "RaptorIndex": "raptor"}


def saved_kind(kind):
    framework, index, _ = kind
    core = {"LongRAGIndex": "corpus", "RaptorIndex": "tree"}[index]
    return f"llama-index {core}" if framework == "llama_index" else core


def test_random_restores_among_forks_changes_and_ends_lose_nothing_else(crew, way, request):
    for number in range(HISTORIES):
        # A short run tries every kind with one of the ways.
        rng = random.Random(f"{request.node.name} {number}")
        kind = (*rng.choice(EVERY_KIND), rng.choice(("sync", "async")))
        history = History(crew, kind, way.place, rng, way=way, name=f"history{number}")
        history.put(history.workers[0], ["page0"])
        history.back_up()
        history.run(RESTORES, STEPS)
        crew.dismiss()
