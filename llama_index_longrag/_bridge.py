"""Where LlamaIndex's values and calls meet the core's: every conversion stands here.

A unit node carries its member documents in ``metadata["doc_ids"]`` and, with their offsets, in
``metadata["members"]``; a chunk node carries ``metadata["unit_id"]`` and points to its unit as
PARENT, since the framework rewrites SOURCE to the document. None of these keys is shown to a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, cast

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import (
    BaseNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    ObjectType,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.storage.docstore.types import BaseDocumentStore
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from longrag.calls import Embed, Method, Steps
from longrag.errors import InvalidParameterError, StoreError
from longrag.retrieval.assembly import unit_of_chunks
from longrag.types import Chunk, Document, LongUnit, Member, RetrievedUnit, TokenCounter

UNIT_KEYS = ("unit_id", "doc_ids", "members")
RESULT_KEYS = ("best_chunk", "exact", "complete")


def to_document(node: BaseNode, title_key: str) -> Document:
    """Convert a document or node; its title is the metadata value under ``title_key``."""
    title = node.metadata.get(title_key)
    return Document(
        id=node.node_id,
        text=node.get_content(metadata_mode=MetadataMode.NONE),
        title="" if title is None else str(title),
        metadata=node.metadata,
    )


def to_unit_node(unit: LongUnit, sources: Mapping[str, BaseNode]) -> TextNode:
    """Convert a unit; it keeps the metadata on which all its documents agree."""
    first, *others = (sources[doc_id] for doc_id in unit.doc_ids)
    shared = {
        key: value
        for key, value in first.metadata.items()
        if all(key in other.metadata and other.metadata[key] == value for other in others)
    }
    return TextNode(
        id_=unit.id,
        text=unit.text,
        metadata={**shared, **_unit_metadata(unit)},
        excluded_embed_metadata_keys=[*first.excluded_embed_metadata_keys, *UNIT_KEYS],
        excluded_llm_metadata_keys=[*first.excluded_llm_metadata_keys, *UNIT_KEYS],
    )


def _unit_metadata(unit: LongUnit) -> dict[str, Any]:
    return {
        "unit_id": unit.id,
        "doc_ids": list(unit.doc_ids),
        "members": [asdict(member) for member in unit.members],
    }


def to_chunk_node(chunk: Chunk, source: BaseNode | None, unit_node: BaseNode) -> TextNode:
    """Convert a chunk, linked to its unit by PARENT and to its document by SOURCE.

    A chunk that is a whole unit has no one document: ``source`` is then None.
    """
    node = TextNode(
        id_=chunk.id,
        text=chunk.text,
        metadata={"unit_id": unit_node.node_id},
        excluded_embed_metadata_keys=["unit_id"],
        excluded_llm_metadata_keys=["unit_id"],
        relationships={NodeRelationship.PARENT: related(unit_node)},
    )
    if source is not None:
        node.relationships[NodeRelationship.SOURCE] = source.as_related_node_info()
        node.start_char_idx, node.end_char_idx = chunk.doc_start, chunk.doc_end
        node.excluded_embed_metadata_keys += source.excluded_embed_metadata_keys
        node.excluded_llm_metadata_keys += source.excluded_llm_metadata_keys
    return node


def related(node: BaseNode) -> RelatedNodeInfo:
    """Refer to a node without a copy of its metadata, which for units is long."""
    return RelatedNodeInfo(node_id=node.node_id, node_type=ObjectType.TEXT, hash=node.hash)


def to_unit(node: BaseNode) -> LongUnit:
    """Convert a unit node back; a node without member documents is one member itself."""
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    members = tuple(Member(**member) for member in node.metadata.get("members", ()))
    if not members:
        title = str(node.metadata.get("title") or "")
        members = (Member(node.ref_doc_id or node.node_id, title, 0, 0, len(text)),)
    return LongUnit(node.node_id, text, members, 0)


def to_chunk(node: BaseNode, unit_id: str, at: int = 0) -> Chunk:
    """Convert a chunk node; one without offsets is taken to begin at character ``at``."""
    text = node.get_content(metadata_mode=MetadataMode.NONE)
    start = getattr(node, "start_char_idx", None)
    start = at if start is None else start
    return Chunk(
        id=node.node_id,
        unit_id=unit_id,
        doc_id=node.ref_doc_id or node.node_id,
        title=str(node.metadata.get("title") or ""),
        text=text,
        start=start,
        end=start + len(text),
        doc_start=start,
        doc_end=start + len(text),
    )


def to_chunks(nodes: Sequence[BaseNode], unit_id: str) -> list[Chunk]:
    """Convert chunk nodes of one unit; those without offsets follow one another as given."""
    chunks, at = [], 0
    for node in nodes:
        chunks.append(to_chunk(node, unit_id, at))
        at = chunks[-1].doc_end + 1
    return chunks


def unit_key_of(node: BaseNode, unit_key: str) -> str:
    """Return the id of the unit a chunk node belongs to.

    Raises:
        StoreError: the node names no unit under ``unit_key``.
    """
    value = node.ref_doc_id if unit_key == "ref_doc_id" else node.metadata.get(unit_key)
    if value is None and unit_key == "unit_id":
        parent = node.relationships.get(NodeRelationship.PARENT)
        value = parent.node_id if isinstance(parent, RelatedNodeInfo) else None
    if value is None:
        raise StoreError(
            f"node {node.node_id} names no unit under {unit_key!r}: parse with LongUnitNodeParser,"
            " or pass the metadata key that identifies a unit, such as unit_key='ref_doc_id'"
        )
    return str(value)


def units_of_nodes(
    nodes: Sequence[BaseNode], unit_key: str, count_tokens: TokenCounter
) -> tuple[list[LongUnit], list[Chunk], list[BaseNode]]:
    """Sort nodes into units and chunks, with the chunk nodes in the order of the chunks.

    Leaves are chunks; a unit whose node is not among ``nodes`` is put together from its chunks.
    """
    by_id = {node.node_id: node for node in nodes}
    if len(by_id) != len(nodes):
        twice = next(n.node_id for i, n in enumerate(nodes) if by_id[n.node_id] is not nodes[i])
        raise InvalidParameterError("nodes", twice, "nodes with distinct ids", "Remove duplicates.")
    leaves = [
        node
        for node in nodes
        if NodeRelationship.CHILD not in node.relationships
        and "doc_ids" not in node.metadata
        and node.get_content(metadata_mode=MetadataMode.NONE).strip()
    ]
    grouped: dict[str, list[BaseNode]] = {}
    for node in leaves:
        grouped.setdefault(unit_key_of(node, unit_key), []).append(node)
    units, chunks, chunk_nodes = [], [], []
    for unit_id in sorted(grouped):
        own = to_chunks(grouped[unit_id], unit_id)
        unit = by_id.get(unit_id)
        units.append(
            to_unit(unit)
            if unit is not None
            else unit_of_chunks(unit_id, own, count_tokens=count_tokens)
        )
        chunks.extend(own)
        chunk_nodes.extend(grouped[unit_id])
    return units, chunks, chunk_nodes


class UnitContent(str):
    """A unit's text as the frameworks pass it on, which still knows its documents.

    Synthesizers are handed bare strings; this one lets the two-turn reader see titles and
    boundaries that other synthesizers read as text.
    """

    __slots__ = ("retrieved",)
    retrieved: RetrievedUnit


class RetrievedUnitNode(TextNode):
    """A text node whose content for a model is the unit with its documents."""

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class it is restored as."""
        return TextNode.class_name()

    def get_content(self, metadata_mode: MetadataMode = MetadataMode.NONE) -> str:
        """Return the content; for a model it is a ``UnitContent``."""
        text = super().get_content(metadata_mode)
        if metadata_mode is not MetadataMode.LLM or "members" not in self.metadata:
            return text
        content = UnitContent(text)
        unit = to_unit(self)
        best = Chunk(unit_id=unit.id, **self.metadata["best_chunk"])
        content.retrieved = RetrievedUnit(unit, 0.0, best)
        return content


def to_result(found: RetrievedUnit, original: BaseNode | None = None) -> NodeWithScore:
    """Convert a retrieved unit; metadata of the stored unit node is kept where there is one."""
    best = asdict(found.best_chunk)
    del best["unit_id"]
    hidden = [*UNIT_KEYS, *RESULT_KEYS]
    found_metadata = {"best_chunk": best, "exact": found.exact, "complete": found.complete}
    fields: dict[str, Any] = {
        "id_": found.unit.id,
        "text": found.unit.text,
        "metadata": {**_unit_metadata(found.unit), **found_metadata},
        "excluded_embed_metadata_keys": hidden,
        "excluded_llm_metadata_keys": hidden,
    }
    if original is not None:
        fields["metadata"] = {**original.metadata, **fields["metadata"]}
        fields["excluded_embed_metadata_keys"] = [*original.excluded_embed_metadata_keys, *hidden]
        fields["excluded_llm_metadata_keys"] = [*original.excluded_llm_metadata_keys, *hidden]
    return NodeWithScore(node=RetrievedUnitNode(**fields), score=found.score)


def embed(model: BaseEmbedding, request: Embed) -> Steps[Any]:
    """Embed by the model's own batching, callbacks and rate limiter."""
    if request.role == "document":
        vectors = yield Method(model, "get_text_embedding_batch", (list(request.texts),))
    else:
        vectors = []
        for text in request.texts:
            vectors.append((yield Method(model, "get_query_embedding", (text,))))
    return np.asarray(vectors)


def fetch_units(docstore: BaseDocumentStore, unit_ids: Sequence[str]) -> Steps[dict[str, LongUnit]]:
    """Get whole units from a document store: as nodes of their own, or by their source's nodes."""
    get_nodes = partial(Method, docstore, "get_nodes", kwargs={"raise_error": False})
    nodes = yield get_nodes((list(unit_ids),))
    units = {node.node_id: to_unit(node) for node in nodes}
    for unit_id in unit_ids:
        if unit_id not in units:
            info = yield Method(docstore, "get_ref_doc_info", (unit_id,))
            pieces = (yield get_nodes((info.node_ids,))) if info else []
            if pieces:
                units[unit_id] = unit_of_chunks(unit_id, to_chunks(pieces, unit_id))
    return units


def ranks_exactly(store: BasePydanticVectorStore) -> bool:
    """Whether a store is known to rank by an exhaustive search."""
    if isinstance(store, SimpleVectorStore):
        return True
    return type(getattr(store, "client", None)).__name__ in {
        "IndexFlatIP",
        "IndexFlatL2",
        "IndexFlat",
    }


def token_counter(tokenizer: Any) -> TokenCounter:
    """Make a token counter from a LlamaIndex tokenizer, by default the global one."""
    from llama_index.core.utils import get_tokenizer  # reads a file of merges on first use

    encode = tokenizer or get_tokenizer()
    return lambda text: len(cast("Sequence[Any]", encode(text)))
