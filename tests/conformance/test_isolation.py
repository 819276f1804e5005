"""Questions beside changes, in both frameworks: no error, no torn answer, no lost change.

Thirty-two threads, and over a database four processes too, ask each index while one thread changes
it. A change gives every document another version at once, so an answer with two versions is torn.
``LONGRAG_SECONDS=60`` asks for a minute in place of a second.
"""

import multiprocessing
import os
import re
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest
from langchain_core.documents import Document as LangChainDocument
from llama_index.core import Document as LlamaDocument

import langchain_longrag
import llama_index_longrag
from tests.fakes.langchain import HashEmbeddings
from tests.fakes.llama_index import HashEmbedding, tokenizer

SECONDS = float(os.environ.get("LONGRAG_SECONDS", "1"))
THREADS, PROCESSES = 32, 4
VERSION = re.compile(r"version (\d+)")
NAMES = ("harbour", "orchard", "railway", "glacier")


def text(name, version):
    return f"The {name} was described in version {version}. Its keeper wrote the {name} down."


class LlamaIndexes:
    """LlamaIndex's indexes of one kind."""

    def __init__(self, kind, path=None):
        settings = {"embed_model": HashEmbedding(), "tokenizer": tokenizer}
        self.kind = kind
        made = getattr(llama_index_longrag, kind)
        if kind == "RaptorIndex":
            settings |= {"summarizer": "extractive", "num_workers": 1}
        if path is None:
            self.index = made.from_documents([], **settings)
        else:
            self.index = made.open(path, **settings)

    def change(self, version):
        self.index.refresh_ref_docs(
            [LlamaDocument(text=text(name, version), id_=name) for name in NAMES]
        )

    def ask(self):
        if self.kind == "RaptorIndex":
            retriever = self.index.as_retriever(token_budget=10_000, redundancy=None)
        else:
            retriever = self.index.as_retriever(similarity_top_k=10)
        return [node.get_content() for node in retriever.retrieve("the keeper of the harbour")]


class LangChains:
    """LangChain's indexes of one kind."""

    def __init__(self, kind, path=None):
        settings = {"embedding": HashEmbeddings()}
        made = getattr(langchain_longrag, kind)
        if kind == "RaptorIndex":
            settings |= {"summarizer": "extractive", "token_budget": 10_000, "redundancy": None}
        else:
            settings |= {"k": 10}
        self.index = made(**settings) if path is None else made.open(path, **settings)

    def change(self, version):
        self.index.upsert(
            [LangChainDocument(id=name, page_content=text(name, version)) for name in NAMES]
        )

    def ask(self):
        return [found.page_content for found in self.index.invoke("the keeper of the harbour")]


FRAMEWORKS = {"llama_index": LlamaIndexes, "langchain": LangChains}


def read(index, stopped):
    """Ask until it is said to stop and once more; return how often, and the version at last."""
    asked, last = 0, -1
    while True:
        ended = stopped()
        texts = index.ask()
        (version,) = {int(found) for one in texts for found in VERSION.findall(one)}
        assert all(any(name in one for one in texts) for name in NAMES)
        assert version >= last
        last, asked = version, asked + 1
        if ended:
            return asked, last


def read_in_process(framework, kind, path, mark):
    return read(FRAMEWORKS[framework](kind, path), Path(mark).exists)


def change_until(index, stopped):
    version = 1
    while not stopped():
        index.change(version)
        version += 1
    return version - 1


@pytest.mark.parametrize("where", ["memory", "database"])
@pytest.mark.parametrize("kind", ["LongRAGIndex", "RaptorIndex"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_answers_beside_changes_are_whole_and_no_change_is_lost(framework, kind, where, tmp_path):
    path = str(tmp_path / "index.db") if where == "database" else None
    mark = tmp_path / "stop"
    index = FRAMEWORKS[framework](kind, path)
    index.change(0)
    stop = threading.Event()
    context = multiprocessing.get_context("forkserver")
    with (
        ProcessPoolExecutor(PROCESSES, mp_context=context) as processes,
        ThreadPoolExecutor(THREADS + 1) as threads,
    ):
        elsewhere = []
        if path:
            elsewhere = [
                processes.submit(read_in_process, framework, kind, path, str(mark))
                for _ in range(PROCESSES)
            ]
        writer = threads.submit(change_until, index, stop.is_set)
        readers = [threads.submit(read, index, mark.exists) for _ in range(THREADS)]
        time.sleep(SECONDS)
        stop.set()
        try:
            last = writer.result()
        finally:
            # The readers ask once more after the last change.
            mark.touch()
        found = [reader.result() for reader in (*readers, *elsewhere)]
    assert last >= 1
    assert {version for _, version in found} == {last}
    assert all(asked >= 1 for asked, _ in found)
