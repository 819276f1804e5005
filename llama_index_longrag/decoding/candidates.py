"""The candidates of a question, by a LlamaIndex retriever, and the scorer of their keys."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import NodeWithScore
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_longrag.bridge.filters import to_filter
from llama_index_longrag.bridge.nodes import to_row
from llama_index_longrag.models.identity import embed_identity
from longrag.decoding.candidates import Candidates, CandidatesFor
from longrag.decoding.quote_candidates import CandidateSource, Found, candidate_source
from longrag.models.embedder import Role, Vectors
from longrag.models.rerankers.embedding_scorer import EmbeddingScorer
from longrag.models.rerankers.scorers import Scorer
from longrag.retrieval.records import known_ids
from longrag.types import Document


def to_candidate_source(
    candidates: Any, documents: Sequence[Document], k: int, per_thought: bool
) -> CandidateSource | None:
    """Return the source that the argument ``candidates`` describes; see ``RichesLLM``."""
    is_filter = isinstance(candidates, MetadataFilters)
    return candidate_source(
        candidates,
        retriever=BaseRetriever,
        documents=documents,
        as_filter=to_filter(candidates, "candidates") if is_filter else None,
        k=k,
        per_thought=per_thought,
    )


def find_candidates(
    source: CandidateSource | None, question: str
) -> Candidates | CandidatesFor | None:
    """Return the candidates for a question."""
    if source is None or source.retriever is None:
        return None if source is None else source.known()

    def ask(text: str) -> Candidates:
        return source.of_results(_to_found(source.retriever.retrieve(text)))

    return ask if source.per_thought else ask(question)


async def afind_candidates(
    source: CandidateSource | None, question: str
) -> Candidates | CandidatesFor | None:
    """Return what ``find_candidates`` does, with the retriever's async method.

    A retriever that is called before each quote runs in the current event loop, and the thread that
    decodes waits for it.
    """
    if source is None:
        return None
    if source.retriever is None:
        return await asyncio.to_thread(source.known)
    if not source.per_thought:
        return source.of_results(_to_found(await source.retriever.aretrieve(question)))
    loop = asyncio.get_running_loop()

    def ask(text: str) -> Candidates:
        asked = asyncio.run_coroutine_threadsafe(source.retriever.aretrieve(text), loop)
        return source.of_results(_to_found(asked.result()))

    return ask


def to_key_scorer(given: BaseEmbedding | Scorer | None) -> Scorer | None:
    """Return a scorer of keys for a LlamaIndex embedding model, or a scorer as it is."""
    if not isinstance(given, BaseEmbedding):
        return given

    def embed(texts: Sequence[str], role: Role) -> Vectors:
        if role == "document":
            return np.array(given.get_text_embedding_batch(list(texts)), np.float32)
        return np.array([given.get_query_embedding(text) for text in texts], np.float32)

    return EmbeddingScorer(embed, name=embed_identity(given))


def _to_found(results: Iterable[NodeWithScore]) -> Iterator[Found]:
    for result in results:
        node = result.node
        own = [node.node_id] if node.ref_doc_id is None else [node.node_id, node.ref_doc_id]
        yield known_ids(own, node.metadata, to_row(node)), result.score
