"""Stories, and trees of them, for the tests of trees."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from llama_index.core import (
    Document,
    StorageContext,
    load_index_from_storage,
)

from llama_index_longrag import RaptorIndex
from tests.fakes.llama_index import HashEmbedding, ScriptedLLM
from tests.settings import grouped

TOPICS = ["harbour", "orchard", "railway", "glacier", "library"]
SETTINGS: dict[str, Any] = {"clusterer": "contiguous", "chunk_size": 24}


def story(number: int, version: int = 0, **metadata: Any) -> Document:
    topic = TOPICS[number % len(TOPICS)]
    facts = " ".join(
        f"The {topic} of town {number} kept record {n} of its keepers." for n in range(8)
    )
    return Document(
        id_=f"story-{number:02d}",
        text=f"{facts} Version {version} of story {number} ends here.",
        metadata={"title": f"The {topic} {number}", "version": version, **metadata},
        excluded_embed_metadata_keys=["version"],
        excluded_llm_metadata_keys=["version"],
    )


STORIES = [story(number) for number in range(8)]
MANY = [story(number) for number in range(24)]


def summary_of(prompt: str) -> str:
    """Name the topics of a prompt, and the prompt."""
    topics = sorted(topic for topic in TOPICS if topic in prompt)
    return f"About {' '.join(topics)}: {sha256(prompt.encode()).hexdigest()[:12]}."


def writer(**settings: Any) -> ScriptedLLM:
    return ScriptedLLM(summary_of, **settings)


def build(documents: Sequence[Document] = STORIES, **settings: Any) -> RaptorIndex:
    settings.setdefault("llm", writer())
    settings.setdefault("embed_model", HashEmbedding())
    return RaptorIndex.from_documents(list(documents), **grouped(**{**SETTINGS, **settings}))


def same(one: RaptorIndex, other: RaptorIndex) -> bool:
    return list(one.tree.nodes.items()) == list(other.tree.nodes.items()) and np.array_equal(
        one.tree.vectors, other.tree.vectors
    )


def found(index: RaptorIndex, **settings: Any) -> list[tuple[str, float, str, Any]]:
    results = index.as_retriever(**grouped(**settings)).retrieve("the keepers of town 3")
    return [(r.node_id, r.score, r.text, r.metadata) for r in results]


def stored(index: RaptorIndex) -> tuple[Any, ...]:
    """What the stores hold, without hashes of documents, which nodes of one's own do not have."""
    docstore = index.docstore.to_dict()
    return (
        docstore.get("docstore/data", {}),
        docstore.get("docstore/ref_doc_info", {}),
        index.storage_context.vector_store.to_dict(),
        index.index_struct.documents,
        index.index_struct.nodes,
        index.index_struct.vectors,
    )


def reload(index: RaptorIndex, folder: Path, **settings: Any) -> RaptorIndex:
    index.storage_context.persist(folder)
    context = StorageContext.from_defaults(persist_dir=str(folder))
    return load_index_from_storage(
        context, **grouped(**{"embed_model": HashEmbedding(), "llm": writer(), **settings})
    )


def summaries(index: RaptorIndex) -> int:
    return sum(node.level > 0 for node in index.tree.nodes.values())
