"""The node parser that groups linked documents into long units."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Annotated, Any

from llama_index.core.bridge.pydantic import ConfigDict, Field, PlainSerializer
from llama_index.core.node_parser.interface import NodeParser
from llama_index.core.node_parser.node_utils import default_id_func
from llama_index.core.schema import BaseNode, NodeRelationship, RelatedNodeInfo
from pydantic import SkipValidation

from llama_index_longrag._bridge import (
    related,
    to_chunk_node,
    to_document,
    to_unit_node,
    token_counter,
)
from longrag.errors import InvalidParameterError
from longrag.ingestion.links import LinkExtractor, link_extractor
from longrag.ingestion.resolving import LinkResolver, resolve_links
from longrag.ingestion.units import long_units
from longrag.types import Chunk, Document, Granularity, LongUnit


def _named(value: Any) -> Any:
    """Serialise a callable by what identifies it: settings must not hold memory addresses."""
    if value is None or isinstance(value, str):
        return value
    if is_dataclass(value):
        return repr(value)
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


class LongUnitNodeParser(NodeParser):
    """Group linked documents into long units and split each into the chunks that find it.

    Returns the units, then their chunks; each chunk points to its unit by PARENT and to its
    document by SOURCE, and LlamaIndex's ``get_leaf_nodes`` picks out the chunks for a vector store.
    Node ids are hashes of document ids, offsets and text unless ``id_func`` is given. The same
    documents give the same nodes in whatever order they arrive.

    A parser sees only what it is handed: with ``num_workers``, with an upsert strategy or in
    batches it groups each slice on its own, so hand it the whole corpus at once.

    Source: LongRAG §3.1 and Algorithm 1.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    max_tokens: int = Field(default=4096, description="Largest size of a unit, in tokens.")
    chunk_size: int = Field(default=512, description="Largest size of a chunk, in tokens.")
    granularity: Granularity = Field(
        default="chunk",
        description="What is embedded: sentence-respecting chunks, whole documents or whole units.",
    )
    directed: bool | None = Field(
        default=None, description="Group by outgoing links alone; None is the measured default."
    )
    split_oversized: bool = Field(
        default=False, description="Split documents larger than max_tokens into several units."
    )
    link_extractor: Annotated[LinkExtractor | str, SkipValidation(), PlainSerializer(_named)] = (
        Field(
            default="default",
            description="Finds links: default, markdown, html, wiki, metadata, or your own.",
        )
    )
    link_rules: Annotated[
        tuple[Callable[[str, Document], str | None], ...],
        PlainSerializer(lambda rules: [_named(rule) for rule in rules]),
    ] = Field(default=(), description="Rewrite a site's link targets before they are resolved.")
    title_key: str = Field(default="title", description="The metadata key of a document's title.")
    tokenizer: Annotated[Callable[[str], Sequence[Any]] | None, PlainSerializer(_named)] = Field(
        default=None, description="Counts tokens; None is LlamaIndex's global tokenizer."
    )

    def model_post_init(self, context: Any, /) -> None:
        """Refuse settings out of range."""
        super().model_post_init(context)
        self._long_units([], ())
        self._extractor()

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which the parser is serialised."""
        return "LongUnitNodeParser"

    def _parse_nodes(
        self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any
    ) -> list[BaseNode]:
        documents = [to_document(node, self.title_key) for node in nodes]
        report = resolve_links(
            documents,
            extractor=self._extractor(),
            resolver=LinkResolver(documents, rules=self.link_rules),
        )
        units, chunks = self._long_units(documents, report.links)
        sources = {node.node_id: node for node in nodes}
        units, chunks = self._named_by_caller(units, chunks, sources)
        unit_nodes = {unit.id: to_unit_node(unit, sources) for unit in units}
        whole = self.granularity == "unit"
        chunk_nodes = [
            to_chunk_node(
                chunk, None if whole else sources[chunk.doc_id], unit_nodes[chunk.unit_id]
            )
            for chunk in chunks
        ]
        children: dict[str, list[RelatedNodeInfo]] = {unit_id: [] for unit_id in unit_nodes}
        for chunk, node in zip(chunks, chunk_nodes, strict=True):
            children[chunk.unit_id].append(related(node))
        for unit_id, node in unit_nodes.items():
            node.relationships[NodeRelationship.CHILD] = children[unit_id]
        return [*unit_nodes.values(), *chunk_nodes]

    def _extractor(self) -> LinkExtractor:
        extractor = self.link_extractor
        if isinstance(extractor, str):
            return link_extractor(extractor)
        if not callable(extractor):
            raise InvalidParameterError(
                "link_extractor", extractor, "a name or a callable from a document to link targets"
            )
        return extractor

    def _long_units(
        self, documents: Sequence[Document], links: Sequence[tuple[int, int]]
    ) -> tuple[list[LongUnit], list[Chunk]]:
        return long_units(
            documents,
            links,
            max_tokens=self.max_tokens,
            chunk_size=self.chunk_size,
            granularity=self.granularity,
            directed=self.directed,
            split_oversized=self.split_oversized,
            count_tokens=token_counter(self.tokenizer),
        )

    def _named_by_caller(
        self, units: list[LongUnit], chunks: list[Chunk], sources: Mapping[str, BaseNode]
    ) -> tuple[list[LongUnit], list[Chunk]]:
        if self.id_func is default_id_func:
            return units, chunks
        ids = {unit.id: self.id_func(i, sources[unit.doc_ids[0]]) for i, unit in enumerate(units)}
        return [replace(unit, id=ids[unit.id]) for unit in units], [
            replace(chunk, id=self.id_func(i, sources[chunk.doc_id]), unit_id=ids[chunk.unit_id])
            for i, chunk in enumerate(chunks)
        ]

    async def _aparse_nodes(
        self, nodes: Sequence[BaseNode], show_progress: bool = False, **kwargs: Any
    ) -> list[BaseNode]:
        return await asyncio.to_thread(self._parse_nodes, nodes, show_progress, **kwargs)
