"""Indexes over one storage: what another writer, a crash and a kill leave of them."""

import subprocess
import sys
from pathlib import Path

import pytest
from llama_index.core import load_index_from_storage
from llama_index.core.schema import Document
from llama_index.core.storage.storage_context import StorageContext
from llama_index.core.vector_stores.simple import SimpleVectorStore

from llama_index_longrag import LongRAGIndex, RaptorIndex
from longrag.errors import IndexFormatError, StaleIndexError
from tests.fakes.llama_index import HashEmbedding

ROOT = Path(__file__).parents[3]


def page(number):
    return Document(id_=f"d{number}", text=f"Page {number} is about otters.")


def built(kind, count=3):
    own = {"summarizer": "extractive", "chunk_size": 12} if kind is RaptorIndex else {}
    pages = [page(n) for n in range(count)]
    return kind.from_documents(pages, embed_model=HashEmbedding(), **own)


def loaded(storage):
    return load_index_from_storage(storage, embed_model=HashEmbedding())


@pytest.mark.parametrize("kind", [LongRAGIndex, RaptorIndex])
def test_a_second_writer_over_one_storage_is_told_and_nothing_is_lost(kind):
    first = built(kind)
    second = loaded(first.storage_context)
    first.insert(page(7))
    for change in (
        lambda: second.insert(page(8)),
        lambda: second.delete_ref_doc("d0"),
        lambda: second.refresh_ref_docs([page(9)]),
    ):
        with pytest.raises(StaleIndexError, match="another process or object"):
            change()
    again = loaded(first.storage_context)
    again.insert(page(8))
    assert sorted(loaded(first.storage_context).ref_doc_info) == ["d0", "d1", "d2", "d7", "d8"]


def test_chunks_whose_vectors_were_lost_are_embedded_again():
    index = built(LongRAGIndex)
    before = SimpleVectorStore.from_dict(index.storage_context.vector_store.to_dict())
    index.insert(page(7))
    storage = StorageContext.from_defaults(
        docstore=index.storage_context.docstore,
        index_store=index.storage_context.index_store,
        vector_store=before,
    )
    again = loaded(storage)
    assert [text for _, text in again._embed_model.asked] == ["Page 7 is about otters."]
    query = "otters on page 7"
    assert [one.score for one in again.as_retriever().retrieve(query)] == [
        one.score for one in index.as_retriever().retrieve(query)
    ]
    again.insert(page(8))
    assert len(loaded(storage)._embed_model.asked) == 0


@pytest.mark.parametrize("kind", [LongRAGIndex, RaptorIndex])
def test_a_folder_is_written_whole_and_read_again(kind, tmp_path):
    index = built(kind)
    index.persist(tmp_path / "saved")
    index.insert(page(7))
    index.persist(tmp_path / "saved")
    again = kind.from_persist_dir(str(tmp_path / "saved"), embed_model=HashEmbedding())
    assert sorted(again.ref_doc_info) == ["d0", "d1", "d2", "d7"]
    assert len(list((tmp_path / "saved").iterdir())) == 2
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(IndexFormatError, match=r"notes\.txt"):
        index.persist(tmp_path / "other")


KILLED = """
import os, random, signal, sys
from pathlib import Path
from llama_index_longrag import LongRAGIndex
from tests.fakes.llama_index import HashEmbedding
from tests.llama_index_longrag.indices.test_shared_storage import built, page

folder, random = sys.argv[1], random.Random(3)
index = built(LongRAGIndex)
index.persist(folder)
calls = 0

def dying(left):
    def hook(event, args):
        nonlocal left
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "shutil.rmtree"):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    return hook

known, killed = 3, 0
for number in range(20):
    left = random.randrange(40)
    index.insert(page(100 + number))
    child = os.fork()
    if not child:
        sys.addaudithook(dying(left))
        index.persist(folder)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    killed += status != 0
    again = LongRAGIndex.from_persist_dir(folder, embed_model=HashEmbedding())
    found = len(again.ref_doc_info)
    assert found == 4 + number or (status and found == known), (found, known, status)
    known = found
print(killed)
"""


def test_a_folder_is_as_before_or_after_when_a_save_is_killed(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path / "saved")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5
