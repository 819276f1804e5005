"""A builder that was killed or stopped in a model's call: the next one waits for nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Builds a tree of 20 documents, and notes every call of the language model.
COMMON = """
from longrag.indexing import TreeSettings
import os, sys, time
place, log, hangs = sys.argv[1:]
log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note():
    os.write(log, b"asked\\n")
    time.sleep(600 if hangs else 0)
PAGES = {f"d{n}": f"Page {n} is about otters and rivers." for n in range(20)}
SETTINGS = {"clusterer": "fast", "tree": TreeSettings(chunk_size=12)}
"""
BUILDS = {
    "llama_index": """
from llama_index.core.schema import Document
from llama_index.core.utils import set_global_tokenizer
from llama_index_longrag import RaptorIndex
from tests.fakes.llama_index import HashEmbedding, ScriptedLLM, tokenizer

class Noted(ScriptedLLM):
    def chat(self, *given, **settings):
        note()
        return super().chat(*given, **settings)
    def complete(self, *given, **settings):
        note()
        return super().complete(*given, **settings)

set_global_tokenizer(tokenizer)
llm = Noted(*["A summary."] * 99)
index = RaptorIndex.open(
    place, embed_model=HashEmbedding(), llm=llm, num_workers=1, **SETTINGS
)
index.refresh_ref_docs([Document(id_=id_, text=text) for id_, text in PAGES.items()])
print(len(index.ref_doc_info))
""",
    "langchain": """
from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_longrag import RaptorIndex
from tests.fakes.langchain import HashEmbeddings

def reply(prompt):
    note()
    return AIMessage("A summary.")

index = RaptorIndex.open(place, HashEmbeddings(), llm=RunnableLambda(reply), **SETTINGS)
index.upsert([Document(id=id_, page_content=text) for id_, text in PAGES.items()])
print(len(index.documents_by_id()))
""",
}


def start(build, place, log, manner):
    return subprocess.Popen(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            COMMON + BUILDS[build],
            str(place),
            str(log),
            manner,
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )


# Killed and not reaped by its parent, a process keeps its number.
@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGSTOP], ids=lambda end: end.name)
@pytest.mark.parametrize("build", BUILDS)
def test_a_build_goes_on_at_once_where_the_one_before_was_ended(build, ended_by, place, tmp_path):
    log = tmp_path / "asked"
    first = start(build, place, log, "hangs")
    try:
        while not log.exists() or not log.read_text():
            assert first.poll() is None
            time.sleep(0.05)
        # Stopped within a statement, it would keep the server's lock as long as it is stopped.
        time.sleep(1)
        os.kill(first.pid, ended_by)
        begin = time.monotonic()
        told, _ = start(build, place, log, "").communicate()
    finally:
        first.kill()
        first.communicate()
    assert told.split() == [b"20"]
    # A claim that is waited for holds it up for 300 s.
    assert time.monotonic() - begin < 150
