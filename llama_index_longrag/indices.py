"""An index over long units that owns its grouping and lives in LlamaIndex's storage."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
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

from llama_index_longrag._bridge import embed, token_counter
from llama_index_longrag._documents import (
    NodeMetadata,
    WholeDocuments,
    copied,
    document_id,
    embedded_text,
    node_of,
)
from llama_index_longrag._struct import (
    STRUCT_TYPE,
    LongRAGStruct,
    unit_settings,
    vector_store_of,
)
from llama_index_longrag.evidence import EvidenceRetriever
from llama_index_longrag.response_synthesizers import TwoTurnSynthesizer
from llama_index_longrag.retrievers import MaxPRetriever
from longrag.calls import Embed, Flow, Request, Steps, aperform, arun, perform, run
from longrag.errors import IndexFormatError, InvalidDocumentError, InvalidParameterError
from longrag.ingestion.builder import UnitBuilder
from longrag.ingestion.links import LinkExtractor
from longrag.ingestion.resolving import LinkReport, LinkRule
from longrag.retrieval.corpus import Change, CorpusIndex
from longrag.retrieval.units import Vector
from longrag.types import Chunk, Document, Granularity

_EVIDENCE_SETTINGS = ("hits", "lexical_weight", "link_weight", "term_weight", "count_tokens")
_ANY_RETRIEVER = ("token_budget", "callback_manager", "object_map", "objects", "verbose")
_RETRIEVER_SETTINGS = {
    "maxp": (*_ANY_RETRIEVER, "similarity_top_k", "tokenizer"),
    "evidence": (*_ANY_RETRIEVER, "link_sources", *_EVIDENCE_SETTINGS),
}
_NOT_FOR = {
    "maxp": ("filters", "node_ids", "doc_ids", "link_sources", *_EVIDENCE_SETTINGS),
    "evidence": ("filters", "node_ids", "doc_ids", "similarity_top_k", "tokenizer"),
}
"""What would change the result if it were heeded; it must not be passed over."""
_SYNTHESIS = {
    "response_synthesizer",
    "response_mode",
    "text_qa_template",
    "refine_template",
    "summary_template",
    "simple_template",
    "output_cls",
}


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
        self._settings = unit_settings(given, index_struct)
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
        self.corpus = CorpusIndex(builder, embedding_text=embedded_text)
        storage_context = storage_context or StorageContext.from_defaults()
        self._vectors = vector_store_of(storage_context, saved=index_struct is not None)
        # What the stores hold: vectors by chunk, documents by id.
        self._stored: dict[str, Vector] = {}
        self._kept: Mapping[str, Document] = {}
        # Threads may change the index beside each other; the stores take one change at a time.
        self._storing = threading.RLock()
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
        storage_context = storage_context or StorageContext.from_defaults()
        callback_manager = callback_manager or Settings.callback_manager
        transformations = transformations or [WholeDocuments()]
        hashes = {document.id_: document.hash for document in documents}
        with callback_manager.as_trace("index_construction"):
            index = cls(
                run_transformations(documents, transformations, show_progress=show_progress),
                storage_context=storage_context,
                callback_manager=callback_manager,
                transformations=transformations,
                show_progress=show_progress,
                **kwargs,
            )
            # Last, where the framework has it first: documents that could not be embedded must not
            # count as known to a refresh.
            storage_context.docstore.set_document_hashes(hashes)
        return index

    @classmethod
    def from_persist_dir(cls, persist_dir: str, **kwargs: Any) -> LongRAGIndex:
        """Load the one index of a folder that ``storage_context.persist`` wrote.

        Raises:
            IndexFormatError: the folder is missing, damaged, or holds no index or several.
            InvalidParameterError: the folder holds an index of another class, or was built with
                other settings.
        """
        try:
            storage_context = StorageContext.from_defaults(persist_dir=persist_dir)
            saved = storage_context.index_store.index_structs()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise IndexFormatError(f"no index can be read from {persist_dir!r}: {error}") from error
        if "index_id" not in kwargs and len(saved) != 1:
            raise IndexFormatError(f"{persist_dir!r} holds {len(saved)} indexes: pass index_id")
        if "index_id" in kwargs and kwargs["index_id"] not in [one.index_id for one in saved]:
            raise IndexFormatError(f"{persist_dir!r} holds no index {kwargs['index_id']!r}")
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
        """Return a retriever that follows the index, and takes its class's settings.

        ``retriever_mode`` is "maxp" for ``MaxPRetriever`` or "evidence" for ``EvidenceRetriever``.

        The framework passes a query engine's settings through here, so others are passed over.

        Raises:
            InvalidParameterError: a setting of retrieval is given that the mode does not have, such
                as ``filters``; over a vector store ``MaxPRetriever(index=...)`` filters.
        """
        mode = kwargs.get("retriever_mode", "maxp")
        if mode not in _RETRIEVER_SETTINGS:
            raise InvalidParameterError("retriever_mode", mode, f"one of {[*_RETRIEVER_SETTINGS]}")
        for name in _NOT_FOR[mode]:
            if kwargs.get(name) is not None:
                raise InvalidParameterError(name, kwargs[name], f"left out in mode {mode!r}")
        own = {name: kwargs[name] for name in _RETRIEVER_SETTINGS[mode] if name in kwargs}
        if mode == "evidence":
            return EvidenceRetriever(index=self, **own)
        return MaxPRetriever(index=self, embed_model=self._embed_model, **own)

    def as_query_engine(self, llm: LLMType | None = None, **kwargs: Any) -> BaseQueryEngine:
        """Return a query engine that reads in two turns, unless it is told how to synthesize."""
        if not _SYNTHESIS & kwargs.keys():
            model = (
                resolve_llm(llm, callback_manager=self._callback_manager) if llm else Settings.llm
            )
            kwargs["response_synthesizer"] = TwoTurnSynthesizer(
                model,
                streaming=kwargs.get("streaming", False),
                callback_manager=self._callback_manager,
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
        """Return copies of the nodes of member documents, without those deleted since."""
        documents = self.corpus.documents
        return [copied(node_of(documents[doc_id])) for doc_id in doc_ids if doc_id in documents]

    def build_index_from_nodes(
        self, nodes: Sequence[BaseNode], **build_kwargs: Any
    ) -> LongRAGStruct:
        """Build the index; the stores are touched only when everything is paid for."""
        self._pay(nodes)
        return super().build_index_from_nodes(nodes, **build_kwargs)

    def insert_nodes(self, nodes: Sequence[BaseNode], **insert_kwargs: Any) -> None:
        """Insert nodes; one that is there is replaced. If embedding fails, nothing has changed."""
        self._pay(nodes)
        self._store(**insert_kwargs)

    async def ainsert_nodes(self, nodes: Sequence[BaseNode], **insert_kwargs: Any) -> None:
        """Insert nodes as ``insert_nodes`` does, with the embedding model's async calls."""
        await self._apay(nodes)
        await asyncio.to_thread(self._store, **insert_kwargs)

    def update_ref_doc(self, document: LlamaIndexDocument, **update_kwargs: Any) -> None:
        """Put a document in its own place; only chunks that were not there are embedded."""
        with self._callback_manager.as_trace("update_ref_doc"):
            self._replace([document], **update_kwargs)

    async def aupdate_ref_doc(self, document: LlamaIndexDocument, **update_kwargs: Any) -> None:
        """Put a document in its own place, as ``update_ref_doc`` does."""
        with self._callback_manager.as_trace("aupdate_ref_doc"):
            await self._areplace([document], **update_kwargs)

    def refresh_ref_docs(
        self, documents: Sequence[LlamaIndexDocument], **update_kwargs: Any
    ) -> list[bool]:
        """Insert new documents and replace changed ones, in one step; tell which these were."""
        with self._callback_manager.as_trace("refresh_ref_docs"):
            changed = self._changed(documents)
            self._replace(_last(documents, changed), **update_kwargs.get("update_kwargs", {}))
        return changed

    async def arefresh_ref_docs(
        self, documents: Sequence[LlamaIndexDocument], **update_kwargs: Any
    ) -> list[bool]:
        """Insert new documents and replace changed ones, as ``refresh_ref_docs`` does."""
        with self._callback_manager.as_trace("arefresh_ref_docs"):
            changed = await asyncio.to_thread(self._changed, documents)
            new = _last(documents, changed)
            await self._areplace(new, **update_kwargs.get("update_kwargs", {}))
        return changed

    def delete_nodes(
        self, node_ids: list[str], delete_from_docstore: bool = True, **delete_kwargs: Any
    ) -> None:
        """Delete nodes with all that was derived from them, from the docstore in every case.

        Ids of nodes that are not in the index are passed over.
        """
        self._pay([], node_ids)
        self._store()

    async def adelete_nodes(
        self, node_ids: list[str], delete_from_docstore: bool = True, **delete_kwargs: Any
    ) -> None:
        """Delete nodes as ``delete_nodes`` does, off the event loop."""
        await asyncio.to_thread(self.delete_nodes, node_ids, **delete_kwargs)

    def delete_ref_doc(
        self, ref_doc_id: str, delete_from_docstore: bool = True, **delete_kwargs: Any
    ) -> None:
        """Delete a document with all that was derived from it, from the docstore in every case."""
        # The nodes take the document with them; those of another index in one docstore stay.
        super().delete_ref_doc(ref_doc_id, delete_from_docstore=False, **delete_kwargs)

    async def adelete_ref_doc(
        self, ref_doc_id: str, delete_from_docstore: bool = True, **delete_kwargs: Any
    ) -> None:
        """Delete a document as ``delete_ref_doc`` does."""
        await super().adelete_ref_doc(ref_doc_id, delete_from_docstore=False, **delete_kwargs)

    def _build_index_from_nodes(
        self, nodes: Sequence[BaseNode], **build_kwargs: Any
    ) -> LongRAGStruct:
        struct = LongRAGStruct(settings=self._settings)
        self._record(struct)
        self._kept = self.corpus.documents
        return struct

    def _insert(self, nodes: Sequence[BaseNode], **insert_kwargs: Any) -> None:
        self._record(self._index_struct)

    def _delete_node(self, node_id: str, **delete_kwargs: Any) -> None:
        self._index_struct.documents.pop(node_id, None)

    def _changed(self, documents: Sequence[LlamaIndexDocument]) -> list[bool]:
        hashes = {d.id_: self.docstore.get_document_hash(d.id_) for d in documents}
        changed = []
        for document in documents:
            changed.append(hashes[document.id_] != document.hash)
            hashes[document.id_] = document.hash
        return changed

    def _replace(
        self,
        documents: Sequence[LlamaIndexDocument],
        *,
        insert_kwargs: Mapping[str, Any] | None = None,
        delete_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        hashes = {document.id_: document.hash for document in documents}
        nodes = run_transformations(documents, self._transformations, **(insert_kwargs or {}))
        stale = self._stale(hashes, nodes)
        self._pay(nodes, stale)
        self._store(hashes)

    async def _areplace(
        self,
        documents: Sequence[LlamaIndexDocument],
        *,
        insert_kwargs: Mapping[str, Any] | None = None,
        delete_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        hashes = {document.id_: document.hash for document in documents}
        nodes = await arun_transformations(
            documents, self._transformations, **(insert_kwargs or {})
        )
        stale = await asyncio.to_thread(self._stale, hashes, nodes)
        await self._apay(nodes, stale)
        await asyncio.to_thread(self._store, hashes)

    def _stale(self, doc_ids: Iterable[str], nodes: Sequence[BaseNode]) -> list[str]:
        """Return the nodes of documents that are not among their new ones."""
        new = {node.node_id for node in nodes}
        infos = [self.docstore.get_ref_doc_info(doc_id) for doc_id in doc_ids]
        before = [node_id for info in infos if info for node_id in info.node_ids]
        return [node_id for node_id in before if node_id not in new]

    def _pay(self, nodes: Sequence[BaseNode], gone: Sequence[str] = ()) -> None:
        """Change the corpus, embedding what is new; on error nothing has changed."""
        run(self._change(nodes, gone), lambda request: perform(self._steps(request)))

    async def _apay(self, nodes: Sequence[BaseNode], gone: Sequence[str] = ()) -> None:
        change = await asyncio.to_thread(self._change, nodes, gone)
        await arun(change, lambda request: aperform(self._steps(request)))

    def _change(self, nodes: Sequence[BaseNode], gone: Sequence[str]) -> Flow[Change]:
        known = _doc_ids(self.corpus.documents) if gone else {}
        doc_ids = [known[node_id] for node_id in gone if node_id in known]
        return self.corpus.change(upsert=self._documents(nodes), delete=doc_ids)

    def _store(self, hashes: Mapping[str, str] | None = None, **insert_kwargs: Any) -> None:
        """Bring the stores up to the corpus, with all that a change cut short left undone."""
        with self._storing:
            current, kept = self.corpus.documents, self._kept
            nodes = [
                copied(node_of(new)) for id_, new in current.items() if kept.get(id_) is not new
            ]
            stale = [node_of(old) for id_, old in kept.items() if current.get(id_) is not old]
            replaced = {node.ref_doc_id or node.node_id for node in nodes}
            for node in stale:
                if (node.ref_doc_id or node.node_id) in replaced:
                    # The docstore keeps the metadata of a document's first version otherwise.
                    self.docstore.delete_document(node.node_id, raise_error=False)
            super().insert_nodes(nodes, **insert_kwargs)
            gone = {node.node_id for node in stale}.difference(node.node_id for node in nodes)
            if gone:
                super().delete_nodes(sorted(gone), delete_from_docstore=True)
            self._kept = current
            if hashes:
                self.docstore.set_document_hashes(dict(hashes))

    def _record(self, struct: LongRAGStruct) -> None:
        struct.documents = _doc_ids(self.corpus.documents)
        self._store_vectors(struct)

    def _store_vectors(self, struct: LongRAGStruct) -> None:
        """Make the vector store hold the vectors of the chunks there are, and no others of ours."""
        struct.units, rows = self.corpus.vectors()
        gone = self._stored.keys() - rows.keys()
        if gone:
            self._vectors.delete_nodes(sorted(gone))
        self._vectors.add(
            [
                TextNode(
                    id_=id_,
                    embedding=vector.tolist(),
                    relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc_id)},
                )
                for id_, (doc_id, vector) in rows.items()
                # New metadata makes another vector, though not another chunk.
                if self._stored.get(id_) is not vector
            ]
        )
        self._stored = {id_: vector for id_, (_, vector) in rows.items()}

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

        self.corpus.restore(self._documents(nodes), vector_of, units=struct.units)
        self._stored = {id_: vector for id_, (_, vector) in self.corpus.vectors()[1].items()}
        self._kept = self.corpus.documents

    def _documents(self, nodes: Sequence[BaseNode]) -> list[Document]:
        title_key, there = self._settings["title_key"], self.corpus.documents
        documents = []
        for node in nodes:
            id_ = document_id(node)
            if id_ in there and node_of(there[id_]).node_id != node.node_id:
                raise InvalidDocumentError(f"two nodes are document {id_!r}: delete one first")
            text = node.get_content(metadata_mode=MetadataMode.NONE)
            title = str(node.metadata.get(title_key) or "")
            documents.append(Document(id_, text, title, NodeMetadata(node)))
        return documents

    def _steps(self, request: Request) -> Steps[Any]:
        if not isinstance(request, Embed):
            raise NotImplementedError(type(request).__name__)
        return (yield from embed(self._embed_model, request))


def _doc_ids(documents: Mapping[str, Document]) -> dict[str, str]:
    return {node_of(document).node_id: doc_id for doc_id, document in documents.items()}


def _last(
    documents: Sequence[LlamaIndexDocument], changed: Sequence[bool]
) -> list[LlamaIndexDocument]:
    """Return the changed documents, and of those with one id the last."""
    pairs = zip(documents, changed, strict=True)
    return list({document.id_: document for document, is_new in pairs if is_new}.values())


def register() -> None:
    """Tell LlamaIndex the class of a saved index; importing the package does it."""
    structs = cast("dict[Any, type[IndexStruct]]", INDEX_STRUCT_TYPE_TO_INDEX_STRUCT_CLASS)
    structs[STRUCT_TYPE] = LongRAGStruct
    classes = cast("dict[Any, type[BaseIndex[Any]]]", INDEX_STRUCT_TYPE_TO_INDEX_CLASS)
    classes[STRUCT_TYPE] = LongRAGIndex


register()
