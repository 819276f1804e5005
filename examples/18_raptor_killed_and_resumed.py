"""Kill a build, limit it, let its model fail: run again, it goes on and pays nothing twice."""

import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

from langchain_longrag import LocalEmbeddings, RaptorIndex
from longrag.calls import CallSettings
from longrag.errors import CallLimitError, NoJournalWarning, SummaryError
from longrag.ingestion import read_documents
from longrag.models import LsaEmbedder

# LangChain marks the class this one extends as beta, and says so.
warnings.filterwarnings("ignore", "The class `DocumentIndex` is in beta")
# One build here has no journal, to compare its bill.
warnings.simplefilter("ignore", NoJournalWarning)
pages = read_documents("docs")
documents = [Document(page.text, id=page.id, metadata={"title": page.title}) for page in pages]
embedding = LocalEmbeddings(LsaEmbedder([page.text for page in pages]))
IN_FLIGHT = 4


class PaidModel:
    """Stands in for a service that writes a bill, and refuses prompts that hold some text."""

    def __init__(self, bill, refused=None):
        self.bill, self.refused, self.lock = bill, refused, threading.Lock()

    def __call__(self, prompt):
        if self.refused and self.refused in prompt:
            raise ConnectionError("429: come back later")
        with self.lock, self.bill.open("a") as bill:
            bill.write(".")
        time.sleep(0.02)
        return f"A summary of: {prompt[-800:-500]}"


def build(folder, *, refused=None, max_llm_calls=None, **settings):
    model = RunnableLambda(PaidModel(folder / "bill", refused))  # or any chat model
    # Without retries, so that one refusal is seen to end the build.
    calls = CallSettings(retry=None, max_llm_calls=max_llm_calls)
    settings |= {"max_concurrency": IN_FLIGHT, "calls": calls}
    return RaptorIndex.from_documents(documents, embedding, llm=model, **settings)


def bill(folder):
    return len((folder / "bill").read_text()) if (folder / "bill").exists() else 0


def resume(step, folder, **settings):
    before = bill(folder)
    try:
        index = build(folder, journal=folder / "journal.sqlite", **settings)
    except (CallLimitError, SummaryError) as error:
        index = None
        print(f"{step}: {bill(folder) - before} calls, then {type(error).__name__}")
        print(f"  {error}"[:180])
    else:
        print(f"{step}: {bill(folder) - before} calls, and done")
    return index


if __name__ == "__main__":
    if len(sys.argv) == 2:
        build(Path(sys.argv[1]), journal=Path(sys.argv[1]) / "journal.sqlite")
        sys.exit()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        undisturbed = build(Path(one))
        calls = bill(Path(one))
        print(f"undisturbed: {calls} calls")

        folder = Path(other)
        with subprocess.Popen([sys.executable, __file__, other]) as child:
            while bill(folder) < calls // 3 and child.poll() is None:
                time.sleep(0.002)
            child.kill()
        print(f"killed: {bill(folder)} calls")
        resume("limited", folder, max_llm_calls=5)
        resume("refused", folder, refused="The extractive reader")
        index = resume("resumed", folder)

        print("the same tree:", index.tree.nodes == undisturbed.tree.nodes)
        print(f"answers paid twice: {bill(folder) - calls}, which were in flight at the kill")
