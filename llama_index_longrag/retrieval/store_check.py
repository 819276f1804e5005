"""A LlamaIndex vector store as the suite for stores checks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core import StorageContext
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.schema import (
    NodeRelationship,
    NodeWithScore,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilter,
    MetadataFilters,
)

from llama_index_longrag.retrieval.maxp import MaxPRetriever
from longrag.stores.checks import CheckFound, CheckRow, question_vector, wrap_unless_ready


class CheckedStore:
    """A new, empty vector store, filled and asked as the suite for stores does.

    Args:
        store: an empty store of vectors of ``WIDTH`` values.
        unit_key: ``"unit"``, or ``"ref_doc_id"`` for units that are documents.
        settings: further arguments of ``MaxPRetriever``, such as ``vector_store_query_mode``.
    """

    def __init__(
        self, store: BasePydanticVectorStore, *, unit_key: str = "unit", **settings: Any
    ) -> None:
        self._store = store
        context = StorageContext.from_defaults(vector_store=store)
        self._index = VectorStoreIndex([], storage_context=context, embed_model=CheckEmbedding())
        self._settings = {"unit_key": unit_key, "on_short": "ignore", **settings}

    def add(self, rows: Sequence[CheckRow]) -> None:
        """Add rows."""
        self._index.insert_nodes([_node(row) for row in rows])

    def retrieve(self, question: str, k: int, *, even: int | None = None) -> list[CheckFound]:
        """Retrieve units."""
        filters = None
        if even is not None:
            filters = MetadataFilters(filters=[MetadataFilter(key="even", value=even)])
        settings: dict[str, Any] = {**self._settings, "filters": filters}
        retriever = MaxPRetriever(index=self._index, similarity_top_k=k, **settings)
        return [_found(one) for one in retriever.retrieve(question)]

    async def aretrieve(self, question: str, k: int) -> list[CheckFound]:
        """Retrieve units by the async calls."""
        settings: dict[str, Any] = self._settings
        retriever = MaxPRetriever(index=self._index, similarity_top_k=k, **settings)
        return [_found(one) for one in await retriever.aretrieve(question)]

    def rank_rows(self, question: str, rows: int) -> list[str]:
        """Return the units of the rows that LlamaIndex's own retriever gives."""
        own = {k: v for k, v in self._settings.items() if k not in ("unit_key", "on_short")}
        found = self._index.as_retriever(similarity_top_k=rows, **own).retrieve(question)
        return [str(one.node.metadata["unit"]) for one in found]

    def delete(self, row_ids: Sequence[str]) -> bool:
        """Take rows out."""
        from llama_index_longrag.bridge.store_kinds import kind_of

        try:
            kind_of(self._store).delete_nodes(self._store, row_ids)
        except NotImplementedError:
            return False
        return True


def wrap_store(make: Callable[[], Any]) -> Any:
    """Return the store that a function makes as the suite for stores checks it."""
    return wrap_unless_ready(make(), CheckedStore)


class CheckEmbedding(BaseEmbedding):
    """Knows the vectors of the suite's questions and texts."""

    def _get_query_embedding(self, query: str) -> list[float]:
        return question_vector(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return question_vector(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return question_vector(text)


def _node(row: CheckRow) -> TextNode:
    return TextNode(
        id_=row.id,
        text=row.text,
        embedding=list(row.vector),
        start_char_idx=row.start,
        end_char_idx=row.start + len(row.text),
        metadata={"unit": row.unit, "even": row.even},
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=row.unit)},
    )


def _found(result: NodeWithScore) -> CheckFound:
    metadata = result.node.metadata
    return CheckFound(
        result.node.node_id,
        result.node.get_content(),
        metadata["exact"],
        metadata["complete"],
        metadata["short"],
    )
