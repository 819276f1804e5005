"""An index over long units that owns its grouping and lives in LlamaIndex's storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.data_structs.data_structs import IndexStruct
from llama_index.core.data_structs.registry import INDEX_STRUCT_TYPE_TO_INDEX_STRUCT_CLASS
from llama_index.core.embeddings.utils import EmbedType, resolve_embed_model
from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.loading import load_index_from_storage
from llama_index.core.indices.registry import INDEX_STRUCT_TYPE_TO_INDEX_CLASS
from llama_index.core.ingestion.pipeline import arun_transformations, run_transformations
from llama_index.core.llms.utils import LLMType, resolve_llm
from llama_index.core.schema import (
    BaseNode,
    IndexNode,
    MetadataMode,
    NodeRelationship,
    RelatedNodeInfo,
    TextNode,
    TransformComponent,
)
from llama_index.core.schema import Document as LlamaIndexDocument
from llama_index.core.settings import Settings
from llama_index.core.storage.docstore.types import RefDocInfo
from llama_index.core.storage.storage_context import StorageContext
from llama_index.core.vector_stores.simple import SimpleVectorStore

from llama_index_longrag._bridge import embed, token_counter
from llama_index_longrag.response_synthesizers import TwoTurnSynthesizer
from llama_index_longrag.retrievers import MaxPRetriever
from longrag.calls import Embed, Request, Steps, aperform, arun, perform, run
from longrag.errors import IndexFormatError, InvalidParameterError
from longrag.ingestion.builder import UnitBuilder
from longrag.ingestion.links import LinkExtractor
from longrag.ingestion.resolving import LinkReport, LinkRule
from longrag.retrieval.corpus import CorpusIndex
from longrag.retrieval.units import Vector
from longrag.types import Chunk, Document, Granularity, stable_id

STRUCT_TYPE = "longrag"
_RETRIEVER_SETTINGS = (
    "similarity_top_k",
    "token_budget",
    "tokenizer",
    "callback_manager",
    "object_map",
    "objects",
    "verbose",
)


@dataclass
class LongRAGStruct(IndexStruct):
    """What the index store keeps: the settings of the units, and the document of every node."""

    settings: dict[str, Any] = field(default_factory=dict)
    documents: dict[str, str] = field(default_factory=dict)

    @classmethod
    def get_type(cls) -> Any:
        """Return the name under which the index is registered."""
        return STRUCT_TYPE


class WholeDocuments(TransformComponent):
    """Make each document one node, since a long-unit index groups documents and not pieces."""

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which the transformation is serialised."""
        return "WholeDocuments"

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[BaseNode]:
        """Return a node for each document; nodes that are none pass through."""
        return [_whole(n) if isinstance(n, LlamaIndexDocument) else n for n in nodes]


class LongRAGIndex(BaseIndex[LongRAGStruct]):
    """Long units over documents that come, change and go.

    It owns the grouping: however documents arrive, the units are always those of one build from the
    documents there are. A change embeds only chunks that were not there before, and a deleted
    document leaves nothing behind, in the docstore either. ``insert``, ``delete_ref_doc``,
    ``update_ref_doc`` and ``refresh_ref_docs`` work as on any index.

    Documents are kept in the docstore, vectors in the vector store, which must be a
    ``SimpleVectorStore``; search is exact and in memory. After
    ``index.storage_context.persist(folder)``, ``load_index_from_storage`` returns this class with
    equal units and vectors; its units are made again from the documents, without the embedding
    model. Over another vector store use ``MaxPRetriever(index=...)``.

    Args:
        nodes: nodes to group, each of which is a document; see ``from_documents``.
        embed_model: embeds chunks and queries, by default ``Settings.embed_model``.
        max_tokens: the largest size of a unit, in tokens (4096).
        chunk_size: the largest size of a chunk, in tokens (512).
        granularity: what is embedded: "chunk" or "document".
        directed: group by outgoing links alone; None is the measured default.
        link_extractor: finds links: a name (default, markdown, html, wiki, metadata) or your own.
        link_rules: rewrite a site's link targets before they are resolved.
        title_key: the metadata key of a document's title ("title").
        tokenizer: counts tokens; by default LlamaIndex's global tokenizer.
        storage_context: where documents, vectors and settings are kept.
        index_struct: a saved index to continue; settings then come from it, and one that is given
            must be the saved one. Callables are not saved: give the same.

    Raises:
        InvalidParameterError: a setting is out of range or not the saved one.
        IndexFormatError: a saved index does not fit its documents and callables.

    Source: LongRAG §3.1.
    """

    index_struct_cls = LongRAGStruct

    def __init__(
        self,
        nodes: Sequence[BaseNode] | None = None,
        *,
        objects: Sequence[IndexNode] | None = None,
        index_struct: LongRAGStruct | None = None,
        storage_context: StorageContext | None = None,
        embed_model: EmbedType | None = None,
        max_tokens: int | None = None,
        chunk_size: int | None = None,
        granularity: Granularity | None = None,
        directed: bool | None = None,
        link_extractor: LinkExtractor | str = "default",
        link_rules: Sequence[LinkRule] = (),
        title_key: str | None = None,
        tokenizer: Callable[[str], Sequence[Any]] | None = None,
        transformations: list[TransformComponent] | None = None,
        callback_manager: CallbackManager | None = None,
        show_progress: bool = False,
    ) -> None:
        given = {
            "max_tokens": max_tokens,
            "chunk_size": chunk_size,
            "granularity": granularity,
            "directed": directed,
            "title_key": title_key,
        }
        self._settings = _settings(given, index_struct)
        self._embed_model = resolve_embed_model(
            embed_model or Settings.embed_model,
            callback_manager=callback_manager or Settings.callback_manager,
        )
        units = {name: value for name, value in self._settings.items() if name != "title_key"}
        builder = UnitBuilder(
            **units,
            link_extractor=link_extractor,
            link_rules=tuple(link_rules),
            count_tokens=token_counter(tokenizer),
        )
        self.corpus = CorpusIndex(builder, embedding_text=_embedded_text)
        storage_context = storage_context or StorageContext.from_defaults()
        if not isinstance(storage_context.vector_store, SimpleVectorStore):
            raise InvalidParameterError(
                "storage_context.vector_store",
                type(storage_context.vector_store).__name__,
                "a SimpleVectorStore",
                "Over another store use MaxPRetriever(index=...).",
            )
        self._vectors = storage_context.vector_store
        self._stored: set[str] = set()
        if index_struct is not None:
            self._restore(index_struct, storage_context)
        super().__init__(
            nodes=nodes,
            objects=objects,
            index_struct=index_struct,
            storage_context=storage_context,
            callback_manager=callback_manager,
            transformations=transformations or [WholeDocuments()],
            show_progress=show_progress,
        )

    @classmethod
    def from_documents(
        cls,
        documents: Sequence[LlamaIndexDocument],
        storage_context: StorageContext | None = None,
        show_progress: bool = False,
        callback_manager: CallbackManager | None = None,
        transformations: list[TransformComponent] | None = None,
        **kwargs: Any,
    ) -> LongRAGIndex:
        """Build an index over documents, whole unless ``transformations`` are given."""
        return super().from_documents(
            documents,
            storage_context=storage_context,
            show_progress=show_progress,
            callback_manager=callback_manager,
            transformations=transformations or [WholeDocuments()],
            **kwargs,
        )

    @classmethod
    def from_persist_dir(cls, persist_dir: str, **kwargs: Any) -> LongRAGIndex:
        """Load the one index of a folder that ``storage_context.persist`` wrote.

        Raises:
            InvalidParameterError: the folder holds an index of another class.
        """
        storage_context = StorageContext.from_defaults(persist_dir=persist_dir)
        index = load_index_from_storage(storage_context, **kwargs)
        if not isinstance(index, cls):
            raise InvalidParameterError(
                "persist_dir", persist_dir, f"a saved {cls.__name__}, not {type(index).__name__}"
            )
        return index

    def link_report(self) -> LinkReport:
        """Find and resolve the links there are; the report names what was not resolved."""
        return self.corpus.builder.link_report(list(self.corpus.documents.values()))

    def as_retriever(self, **kwargs: Any) -> BaseRetriever:
        """Return a ``MaxPRetriever`` that follows the index; it takes that class's settings.

        The framework passes a query engine's settings through here, so others are passed over.
        """
        own = {name: kwargs[name] for name in _RETRIEVER_SETTINGS if name in kwargs}
        return MaxPRetriever(index=self, embed_model=self._embed_model, **own)

    def as_query_engine(self, llm: LLMType | None = None, **kwargs: Any) -> BaseQueryEngine:
        """Return a query engine that reads in two turns, unless it is told how to synthesize."""
        if not {"response_synthesizer", "response_mode"} & kwargs.keys():
            model = (
                resolve_llm(llm, callback_manager=self._callback_manager) if llm else Settings.llm
            )
            kwargs["response_synthesizer"] = TwoTurnSynthesizer(
                model, streaming=kwargs.get("streaming", False)
            )
        return super().as_query_engine(llm=llm, **kwargs)

    @property
    def ref_doc_info(self) -> dict[str, RefDocInfo]:
        """The nodes of every document in the index."""
        infos: dict[str, RefDocInfo] = {}
        for node in self.source_nodes(list(self.corpus.documents)):
            new = RefDocInfo(node_ids=[], metadata=dict(node.metadata))
            infos.setdefault(node.ref_doc_id or node.node_id, new).node_ids.append(node.node_id)
        return infos

    def source_nodes(self, doc_ids: Sequence[str]) -> list[BaseNode]:
        """Return the nodes of member documents, without those deleted since."""
        documents = self.corpus.documents
        return [_node_of(documents[doc_id]) for doc_id in doc_ids if doc_id in documents]

    def insert_nodes(self, nodes: Sequence[BaseNode], **insert_kwargs: Any) -> None:
        """Insert nodes; one of a document that is there takes its place."""
        # What can fail comes first: the stores are touched only when everything is paid for.
        self._pay(nodes)
        super().insert_nodes(nodes, **insert_kwargs)

    async def ainsert_nodes(self, nodes: Sequence[BaseNode], **insert_kwargs: Any) -> None:
        """Insert nodes as ``insert_nodes`` does, with the embedding model's async calls."""
        change = self.corpus.change(upsert=self._documents(nodes))
        await arun(change, lambda request: aperform(self._steps(request)))
        await super().ainsert_nodes(nodes, **insert_kwargs)

    def update_ref_doc(self, document: LlamaIndexDocument, **update_kwargs: Any) -> None:
        """Put a document in its own place; only chunks that were not there are embedded."""
        with self._callback_manager.as_trace("update_ref_doc"):
            nodes = run_transformations([document], self._transformations)
            before = self.docstore.get_ref_doc_info(document.id_)
            self.insert_nodes(nodes, **update_kwargs.get("insert_kwargs", {}))
            self.docstore.set_document_hash(document.id_, document.hash)
            self.delete_nodes(_stale(before, nodes), **update_kwargs.get("delete_kwargs", {}))

    async def aupdate_ref_doc(self, document: LlamaIndexDocument, **update_kwargs: Any) -> None:
        """Put a document in its own place, as ``update_ref_doc`` does."""
        with self._callback_manager.as_trace("aupdate_ref_doc"):
            nodes = await arun_transformations([document], self._transformations)
            before = await self.docstore.aget_ref_doc_info(document.id_)
            await self.ainsert_nodes(nodes, **update_kwargs.get("insert_kwargs", {}))
            await self.docstore.aset_document_hash(document.id_, document.hash)
            delete_kwargs = update_kwargs.get("delete_kwargs", {})
            await self.adelete_nodes(_stale(before, nodes), **delete_kwargs)

    def delete_nodes(
        self, node_ids: list[str], delete_from_docstore: bool = True, **delete_kwargs: Any
    ) -> None:
        """Delete nodes with all that was derived from them, from the docstore in every case."""
        documents = self._index_struct.documents
        gone = [documents[node_id] for node_id in node_ids if node_id in documents]
        run(self.corpus.change(delete=gone), lambda request: perform(self._steps(request)))
        super().delete_nodes(node_ids, delete_from_docstore=True, **delete_kwargs)
        self._store_vectors()

    async def adelete_nodes(
        self, node_ids: list[str], delete_from_docstore: bool = True, **delete_kwargs: Any
    ) -> None:
        """Delete nodes as ``delete_nodes`` does, off the event loop."""
        await asyncio.to_thread(self.delete_nodes, node_ids, **delete_kwargs)

    def delete_ref_doc(
        self, ref_doc_id: str, delete_from_docstore: bool = True, **delete_kwargs: Any
    ) -> None:
        """Delete a document with all that was derived from it, from the docstore in every case."""
        super().delete_ref_doc(ref_doc_id, delete_from_docstore=True, **delete_kwargs)

    async def adelete_ref_doc(
        self, ref_doc_id: str, delete_from_docstore: bool = True, **delete_kwargs: Any
    ) -> None:
        """Delete a document as ``delete_ref_doc`` does."""
        await super().adelete_ref_doc(ref_doc_id, delete_from_docstore=True, **delete_kwargs)

    def _build_index_from_nodes(
        self, nodes: Sequence[BaseNode], **build_kwargs: Any
    ) -> LongRAGStruct:
        self._pay(nodes)
        struct = LongRAGStruct(settings=self._settings)
        self._record(struct, nodes)
        return struct

    def _insert(self, nodes: Sequence[BaseNode], **insert_kwargs: Any) -> None:
        self._record(self._index_struct, nodes)

    def _delete_node(self, node_id: str, **delete_kwargs: Any) -> None:
        self._index_struct.documents.pop(node_id, None)

    def _pay(self, nodes: Sequence[BaseNode]) -> None:
        change = self.corpus.change(upsert=self._documents(nodes))
        run(change, lambda request: perform(self._steps(request)))

    def _record(self, struct: LongRAGStruct, nodes: Sequence[BaseNode]) -> None:
        struct.documents.update({node.node_id: _document_id(node) for node in nodes})
        self._store_vectors()

    def _store_vectors(self) -> None:
        """Make the vector store hold the vectors of the chunks there are, and no others of ours."""
        chunks = {chunk.id: chunk for chunk in self.corpus.index.chunks}
        gone = self._stored - chunks.keys()
        if gone:
            self._vectors.delete_nodes(sorted(gone))
        self._vectors.add(
            [
                TextNode(
                    id_=id_,
                    embedding=self.corpus.vector_of(chunk).tolist(),
                    relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=chunk.doc_id)},
                )
                for id_, chunk in chunks.items()
                if id_ not in self._stored
            ]
        )
        self._stored = set(chunks)

    def _restore(self, struct: LongRAGStruct, storage_context: StorageContext) -> None:
        try:
            nodes = storage_context.docstore.get_nodes(list(struct.documents))
        except ValueError as error:
            raise IndexFormatError(
                f"the docstore lacks a document of the index: {error}"
            ) from error
        stored = self._vectors.data.embedding_dict

        def vector_of(chunk: Chunk, text: str) -> Vector | None:
            vector = stored.get(chunk.id)
            return None if vector is None else np.asarray(vector, dtype=np.float32)

        self.corpus.restore(self._documents(nodes), vector_of)
        self._stored = {chunk.id for chunk in self.corpus.index.chunks}

    def _documents(self, nodes: Sequence[BaseNode]) -> list[Document]:
        title_key = self._settings["title_key"]
        return [
            Document(
                id=_document_id(node),
                text=node.get_content(metadata_mode=MetadataMode.NONE),
                title=str(node.metadata.get(title_key) or ""),
                metadata=_NodeMetadata(node),
            )
            for node in nodes
        ]

    def _steps(self, request: Request) -> Steps[Any]:
        if not isinstance(request, Embed):
            raise NotImplementedError(type(request).__name__)
        return (yield from embed(self._embed_model, request))


class _NodeMetadata(dict[str, object]):
    """A node's metadata, which still knows the node."""

    def __init__(self, node: BaseNode) -> None:
        super().__init__(node.metadata)
        self.node = node


def _node_of(document: Document) -> BaseNode:
    return cast("_NodeMetadata", document.metadata).node


def _embedded_text(chunk: Chunk, metadata: Mapping[str, object]) -> str:
    """Write a chunk as its document would be embedded: with the metadata shown to embedders."""
    node = cast("_NodeMetadata", metadata).node
    shown = node.model_copy(update={"text": chunk.text})
    return shown.get_content(metadata_mode=MetadataMode.EMBED)


def _whole(document: LlamaIndexDocument) -> TextNode:
    return TextNode(
        id_=_whole_id(document.id_),
        text=document.text,
        metadata=dict(document.metadata),
        excluded_embed_metadata_keys=document.excluded_embed_metadata_keys,
        excluded_llm_metadata_keys=document.excluded_llm_metadata_keys,
        metadata_template=document.metadata_template,
        metadata_separator=document.metadata_separator,
        text_template=document.text_template,
        relationships={NodeRelationship.SOURCE: document.as_related_node_info()},
    )


def _whole_id(doc_id: str) -> str:
    # Not the document's own id: the docstore keeps the hash of a document under it.
    return stable_id("whole document", doc_id)


def _document_id(node: BaseNode) -> str:
    """A node that is a whole document goes by the document's id, any other by its own."""
    doc_id = node.ref_doc_id
    return doc_id if doc_id is not None and node.node_id == _whole_id(doc_id) else node.node_id


def _stale(before: RefDocInfo | None, nodes: Sequence[BaseNode]) -> list[str]:
    new = {node.node_id for node in nodes}
    return [node_id for node_id in (before.node_ids if before else []) if node_id not in new]


def _settings(given: Mapping[str, Any], struct: LongRAGStruct | None) -> dict[str, Any]:
    """Fill in the defaults, or the saved settings, which a given one must equal."""
    builder = UnitBuilder()
    known = {
        name: getattr(builder, name)
        for name in ("max_tokens", "chunk_size", "granularity", "directed")
    }
    known["title_key"] = "title"
    if struct is None:
        settings = known | {name: value for name, value in given.items() if value is not None}
        if settings["granularity"] == "unit":
            raise InvalidParameterError(
                "granularity", "unit", "chunk or document", "A unit changes with its neighbours."
            )
        return settings
    for name, value in given.items():
        if value is not None and value != struct.settings[name]:
            raise InvalidParameterError(
                name, value, f"{struct.settings[name]!r}, as the index was saved with"
            )
    return dict(struct.settings)


def register() -> None:
    """Tell LlamaIndex the class of a saved index; importing the package does it."""
    structs = cast("dict[Any, type[IndexStruct]]", INDEX_STRUCT_TYPE_TO_INDEX_STRUCT_CLASS)
    structs[STRUCT_TYPE] = LongRAGStruct
    classes = cast("dict[Any, type[BaseIndex[Any]]]", INDEX_STRUCT_TYPE_TO_INDEX_CLASS)
    classes[STRUCT_TYPE] = LongRAGIndex


register()
