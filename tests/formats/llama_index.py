"""What LlamaIndex's adapter saves: folders of its storage, databases, and images."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import llama_index.core
from llama_index.core import Document
from llama_index.core.schema import ImageNode

from llama_index_longrag import LongRAGIndex, MediaQueryEngine, RaptorIndex
from longrag.indexing import TreeSettings
from longrag.retrieval import TreeSearchSettings
from tests.fakes.llama_index import HashEmbedding, tokenizer
from tests.formats.cases import Case, Format
from tests.formats.content import PAGES, QUESTIONS, SIZES, WIDTH, near
from tests.formats.core import DATABASE, FILE, MEDIA
from tests.images import flag
from tests.llama_index_longrag.retrieval.test_multimodal import THRESHOLDS, Colours, never

TREE = {"clusterer": "contiguous", "tree": TreeSettings(chunk_size=16), "summarizer": "extractive"}


def model() -> HashEmbedding:
    return HashEmbedding(width=WIDTH)


def documents() -> list[Document]:
    return [
        Document(
            id_=id_,
            text=text,
            metadata={"title": title, "number": number},
            excluded_embed_metadata_keys=["number"],
        )
        for number, (id_, (title, text)) in enumerate(PAGES.items())
    ]


def found(index: Any, **settings: Any) -> Any:
    retriever = index.as_retriever(**settings)
    return {
        question: [
            [one.node.node_id, near(one.score), one.node.metadata.get("doc_ids"), one.node.text]
            for one in retriever.retrieve(question)
        ]
        for question in QUESTIONS
    }


def units(index: LongRAGIndex) -> Any:
    return {
        "found": found(index, similarity_top_k=2, retriever_mode="maxp"),
        "metadata": {id_: one.metadata for id_, one in sorted(index.ref_doc_info.items())},
    }


def nodes(index: RaptorIndex) -> Any:
    return {
        "found": found(index, search=TreeSearchSettings(levels=[0]), similarity_top_k=5),
        "levels": [node.level for node in index.tree.nodes.values()],
        "documents": sorted(index.ref_doc_info),
    }


def of_its_own_tokens(run: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Count tokens as the core does, without a file of merges."""

    def counted(folder: Path) -> Any:
        with mock.patch.object(llama_index.core, "global_tokenizer", tokenizer):
            return run(folder)

    return counted


def write_units(folder: Path) -> Any:
    index = LongRAGIndex.from_documents(documents(), embed_model=model(), **SIZES)
    index.persist(folder)
    return units(index)


def write_tree(folder: Path) -> Any:
    index = RaptorIndex.from_documents(documents(), embed_model=model(), **TREE)
    index.persist(folder)
    return nodes(index)


def write_storage(folder: Path) -> Any:
    index = LongRAGIndex.from_documents(documents(), embed_model=model(), **SIZES)
    index.storage_context.persist(folder)
    return units(index)


def read_units(folder: Path) -> Any:
    return units(LongRAGIndex.from_persist_dir(str(folder), embed_model=model()))


def read_tree(folder: Path) -> Any:
    return nodes(RaptorIndex.from_persist_dir(str(folder), embed_model=model()))


def write_database_units(folder: Path) -> Any:
    index = LongRAGIndex.open(folder / FILE, embed_model=model(), **SIZES)
    index.refresh_ref_docs(documents())
    return units(index)


def read_database_units(folder: Path) -> Any:
    return units(LongRAGIndex.open(folder / FILE, embed_model=model()))


def write_database_tree(folder: Path) -> Any:
    index = RaptorIndex.open(folder / FILE, embed_model=model(), **TREE)
    index.refresh_ref_docs(documents())
    return nodes(index)


def read_database_tree(folder: Path) -> Any:
    return nodes(RaptorIndex.open(folder / FILE, embed_model=model()))


def write_media(folder: Path) -> Any:
    images = {"red": "A red square.", "blue": "Blue."}
    nodes = [
        ImageNode(id_=name, image=b64encode(flag(name)).decode(), text=text, metadata={"page": 4})
        for name, text in images.items()
    ]
    engine = MediaQueryEngine(nodes, **MEDIA_SETTINGS)
    engine.persist(str(folder))
    return media(engine)


def read_media(folder: Path) -> Any:
    return media(MediaQueryEngine.from_persist_dir(str(folder), **MEDIA_SETTINGS))


def media(engine: MediaQueryEngine) -> Any:
    (found,) = engine.query("red").source_nodes
    return [found.node.node_id, near(found.score), found.node.text, found.node.metadata]


MEDIA_SETTINGS: dict[str, Any] = {"embed_model": Colours(), "image_generator": never, **THRESHOLDS}

STORAGE = Format("llama_index_storage", "llama_index_longrag.indices.folders")

CASES = [
    Case(format_, name, of_its_own_tokens(write), of_its_own_tokens(read), equal=False)
    for format_, name, write, read in (
        (STORAGE, "units", write_units, read_units),
        (STORAGE, "tree", write_tree, read_tree),
        (STORAGE, "storage_context", write_storage, read_units),
        (MEDIA, "llama_index", write_media, read_media),
        (DATABASE, "llama_index_units", write_database_units, read_database_units),
        (DATABASE, "llama_index_tree", write_database_tree, read_database_tree),
    )
]
