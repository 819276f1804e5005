"""Read and clean documents in several processes, and leave the grouping to the index.

LlamaIndex's parallel ingestion hands each worker a slice of the documents. What concerns one
document at a time, such as reading or cleaning, may be done there. Grouping concerns all of them:
a LongUnitNodeParser inside such a pipeline would group every slice on its own, so the documents go
to the index whole, and the index cuts them in processes too.
"""

import re
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from llama_index.core import Document
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import TransformComponent

from llama_index_longrag import LocalEmbedding, LongRAGIndex
from longrag.ingestion import read_documents
from longrag.models import LsaEmbedder


class RemoveComments(TransformComponent):
    """What is done to one document, and needs no other."""

    def __call__(self, nodes, **kwargs):
        for node in nodes:
            node.set_content(re.sub(r"<!--.*?-->", "", node.get_content(), flags=re.DOTALL))
        return nodes


def main():
    folder = Path(tempfile.mkdtemp())
    for number in range(12):
        linked = f"It belongs to [the next one]({(number + 1) % 12}.md)." if number % 4 < 3 else ""
        text = f"# Mill {number}\n\n<!-- draft -->The mill of town {number} grinds rye. {linked}\n"
        (folder / f"{number}.md").write_text(text)

    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        pages = read_documents(folder, executor=processes)
        documents = [
            Document(text=page.text, id_=page.id, metadata={"title": page.title}) for page in pages
        ]
        cleaned = IngestionPipeline(transformations=[RemoveComments()], disable_cache=True).run(
            documents=documents, num_workers=2
        )
        index = LongRAGIndex(
            cleaned,
            embed_model=LocalEmbedding(embedder=LsaEmbedder([page.text for page in pages])),
            executor=processes,
        )
    for unit in index.corpus.index.units:
        print(unit.doc_ids)
    assert "draft" not in "".join(unit.text for unit in index.corpus.index.units)


if __name__ == "__main__":
    main()
