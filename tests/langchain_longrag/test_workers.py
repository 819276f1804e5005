"""What users send to worker processes is pickled, and answers there as it does here."""

import pickle
import subprocess
import sys

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeListLLM
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_longrag import (
    CompressDocuments,
    EvidenceRetriever,
    ExtractiveChatModel,
    HybridRetriever,
    LocalEmbeddings,
    LongRAGIndex,
    MaxPRetriever,
    QueryTransformRetriever,
    RaptorIndex,
    RaptorRetriever,
    RepackDocuments,
)
from longrag.models import LsaEmbedder

TEXTS = (
    "The mill grinds rye. It burned down in 1684. Jan Smit built it again.",
    "The weir holds back the river. Salmon climb it in October.",
    "The church has a clock. It strikes at noon and at midnight.",
    "The ferry crosses at dawn. It carries horses and mail.",
)
QUESTION = "What does the mill grind?"


def answer(component):
    """Return what a component says to the question, as text."""
    if hasattr(component, "compress_documents"):
        documents = [Document(text, id=f"d{n}") for n, text in enumerate(TEXTS)]
        return repr([one.page_content for one in component.compress_documents(documents, QUESTION)])
    return repr(component.invoke(QUESTION))


@pytest.fixture(scope="module")
def components(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    documents = [
        Document(text, id=f"d{n}", metadata={"source": f"s{n}"}) for n, text in enumerate(TEXTS)
    ]
    embedding = LocalEmbeddings(LsaEmbedder(TEXTS))
    store = InMemoryVectorStore.from_documents(documents, embedding)
    units = LongRAGIndex(embedding=embedding, k=2)
    units.upsert(documents)
    opened = LongRAGIndex.open(folder / "index.db", embedding=embedding, k=2)
    opened.upsert(documents)
    tree = RaptorIndex(
        llm=FakeListLLM(responses=["Of the mill and the weir."]), embedding=embedding
    )
    tree.upsert(documents)
    retriever = MaxPRetriever(documents=documents, embedding=embedding, k=2)
    over_store = MaxPRetriever(vectorstore=store, unit_key="source", k=2)
    made = {
        "MaxPRetriever over documents": retriever,
        "MaxPRetriever over a store": over_store,
        "MaxPRetriever with retries": over_store.with_retry(),
        "LongRAGIndex": units,
        "LongRAGIndex in a database": opened,
        "RaptorIndex": tree,
        "RaptorRetriever": RaptorRetriever(index=tree),
        "EvidenceRetriever": EvidenceRetriever(index=units),
        "HybridRetriever": HybridRetriever(retriever=retriever),
        "QueryTransformRetriever": QueryTransformRetriever(
            retriever=retriever, llm=ExtractiveChatModel()
        ),
        "CompressDocuments": CompressDocuments(embedding=embedding),
        "RepackDocuments": RepackDocuments(),
    }
    path = folder / "sent.pickle"
    path.write_bytes(pickle.dumps({name: pickle.dumps(one) for name, one in made.items()}))
    run = subprocess.run(
        [sys.executable, "-c", WORKER, str(path)], check=False, capture_output=True, timeout=300
    )
    assert run.returncode == 0, run.stderr.decode()
    return made, pickle.loads(run.stdout)


WORKER = """
import pickle, sys
from tests.langchain_longrag import test_workers
sent = pickle.loads(open(sys.argv[1], "rb").read())
told = {name: test_workers.answer(pickle.loads(one)) for name, one in sent.items()}
sys.stdout.buffer.write(pickle.dumps(told))
"""


@pytest.mark.parametrize(
    "name",
    [
        *("MaxPRetriever over documents", "MaxPRetriever over a store"),
        *("MaxPRetriever with retries", "LongRAGIndex", "LongRAGIndex in a database"),
        *("RaptorIndex", "RaptorRetriever", "EvidenceRetriever", "HybridRetriever"),
        *("QueryTransformRetriever", "CompressDocuments", "RepackDocuments"),
    ],
)
def test_a_component_answers_in_another_process_as_it_does_here(components, name):
    made, told = components
    here = answer(made[name])
    assert told[name] == here
    assert "mill" in here
