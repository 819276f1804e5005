"""The retriever that returns exactly k distinct long units, ranked by their best chunk."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams
from langchain_core.stores import BaseStore
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from pydantic import ConfigDict, Field, PrivateAttr, SkipValidation

from langchain_longrag.bridge.documents import (
    BY_VECTOR,
    StoredUnits,
    embed,
    fetch_units,
    from_result,
    ranks_exactly,
    search_store,
    units_of_documents,
)
from langchain_longrag.ingestion.long_units import LongUnitTransformer
from langchain_longrag.retrieval.keyword_sources import GivenUnits
from longrag.calls import (
    Embed,
    Fetch,
    Flow,
    Request,
    Search,
    Steps,
    aperform,
    arun,
    perform,
    run,
)
from longrag.errors import InvalidParameterError
from longrag.integration.keyword_sources import KeywordSource, UnitSource, refuse_texts
from longrag.models.tokens import count_tokens
from longrag.retrieval.assembly import check_token_budget, fit_budget
from longrag.retrieval.corpus import CorpusView
from longrag.retrieval.units import (
    UnitIndex,
    check_k,
    embed_query,
    embed_units,
    retrieve,
    retrieve_from_store,
)
from longrag.types import RetrievedUnit

UnitFilter = Callable[[Sequence[Any], Any], dict[str, Any]]


class MaxPRetriever(BaseRetriever):
    """Retrieve the ``k`` distinct units whose best chunks rank highest.

    Give either ``documents``, which are embedded into an exact index in memory, or ``vectorstore``,
    which is asked again without the units already seen until there are enough. ``documents`` are
    the output of ``LongUnitTransformer``, or chunks that name their unit under ``unit_key``, or a
    plain corpus, which a ``LongUnitTransformer`` with its defaults then groups.

    Returns whole units: ``metadata`` holds ``doc_ids`` (the member documents in order), ``score``,
    ``best_chunk`` (its text and offsets), ``exact`` (False when the store's ranking may be
    approximate) and ``complete`` (False when the text was cut to the budget, or when only the
    chunks that were found could be put together), besides the unit's own metadata or else what its
    chunks agree on. The score of a store is the store's own: some give distances, whose order is
    the other way round.

    Args:
        documents: what to embed; needs ``embedding``.
        vectorstore: a store of chunks that name their unit under ``unit_key``.
        embedding: embeds queries and, with ``documents``, chunks.
        index: an index already built, for instance another retriever's ``index``.
        k: number of units to return, all of them when there are fewer; also per call, as
            ``invoke(query, k=2)``, as can be ``vector``, the query's embedding.
        token_budget: most tokens to return in all, None for no limit; a unit that does not fit is
            cut down to its best documents.
        unit_key: the metadata key that names a chunk's unit; ``"source"`` makes every source of an
            existing store a unit.
        docstore: holds whole units by id; without it units are put together from their chunks.
        search_kwargs: passed to every search of the store, for instance a ``filter``.
        unit_filter: for stores that filter by metadata, makes the arguments of every search from
            the units to leave out, which may be none, and the one unit to keep to, or None; both
            are the values under ``unit_key`` as the store gave them. A filter of your own belongs
            in them, too: an argument also in ``search_kwargs`` is refused. Without it a store
            other than ``InMemoryVectorStore`` is asked for more chunks instead.
        length_function: counts tokens for the budget.

    Raises:
        InvalidParameterError: a setting is out of range, or not exactly one source is given.
        InvalidDocumentError: two of ``documents`` have one id.
        StoreError: a chunk does not name its unit, or two units have one id, as 1 and "1" do.
        EmbeddingError: the embedding model returned unusable vectors.

    Source: LongRAG §3.1.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    documents: Sequence[Document] | None = Field(default=None, repr=False)
    vectorstore: VectorStore | None = None
    embedding: Embeddings | None = None
    index: UnitIndex | None = Field(default=None, repr=False)
    k: SkipValidation[int] = 4
    token_budget: SkipValidation[int | None] = None
    unit_key: str = "unit_id"
    docstore: BaseStore[str, Document] | None = None
    search_kwargs: dict[str, Any] = Field(default_factory=dict)
    unit_filter: UnitFilter | None = None
    length_function: Callable[[str], int] = count_tokens
    _stored: StoredUnits = PrivateAttr()

    if not TYPE_CHECKING:
        # Pydantic would wrap what model_post_init raises into an error of its own; type checkers
        # read the fields, which a constructor would hide from them.
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self._prepare()

    def _prepare(self) -> None:
        """Refuse settings out of range and embed the documents."""
        check_k(self.k)
        check_token_budget(self.token_budget)
        embedded = self.index is not None or self.documents is not None
        if embedded == (self.vectorstore is not None):
            raise InvalidParameterError(
                "vectorstore",
                self.vectorstore,
                "given when documents are not, and the other way round",
            )
        if embedded and self.embedding is None:
            raise InvalidParameterError("embedding", None, "given with documents")
        if "k" in self.search_kwargs:
            raise InvalidParameterError("search_kwargs", self.search_kwargs, "without k", "Pass k.")
        self._stored = StoredUnits(self.unit_key)
        if self.documents is not None:
            self._embed(self.documents)

    def _embed(self, documents: Sequence[Document]) -> None:
        if not any(self.unit_key in document.metadata for document in documents):
            transformer = LongUnitTransformer(length_function=self.length_function)
            documents = self.documents = transformer.transform_documents(documents)
        units, chunks = units_of_documents(documents, self._stored, self.length_function)
        if self.index is None:
            flow = embed_units(units, chunks)
            self.index = run(flow, lambda request: perform(self._steps(request, self._stored)))

    def keyword_source(
        self, documents: Sequence[Document] | None = None
    ) -> KeywordSource[Document] | None:
        """Return what a hybrid retriever indexes beside this one: the chunks, for their units.

        Args:
            documents: the chunks of a vector store, which does not tell them; None is returned
                where they are needed and not given.

        Raises:
            InvalidParameterError: documents are given that the retriever has.
        """
        if self.vectorstore is not None:
            return None if documents is None else GivenUnits(list(documents), self.unit_key)
        refuse_texts("documents", documents)
        return UnitSource(self._view, self._found_in_memory)

    def _view(self) -> CorpusView:
        return CorpusView({}, self._built())

    def _found_in_memory(self, unit: RetrievedUnit, _: CorpusView) -> Document:
        return self._results([unit], self._known())[0]

    @property
    def takes_vectors(self) -> bool:
        """Whether it can be searched by a vector, and gives scores."""
        store = self.vectorstore
        return store is None or (hasattr(store, BY_VECTOR) and self._embedding() is not None)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        k: int | None = None,
        vector: Sequence[float] | None = None,
    ) -> list[Document]:
        flow, stored = self._flow(query, self.k if k is None else k, vector), self._known()
        found = run(flow, lambda request: perform(self._steps(request, stored)))
        return self._results(found, stored)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        vector: Sequence[float] | None = None,
    ) -> list[Document]:
        flow, stored = self._flow(query, self.k if k is None else k, vector), self._known()
        found = await arun(flow, lambda request: aperform(self._steps(request, stored)))
        return self._results(found, stored)

    def _flow(
        self, query: str, k: int, vector: Sequence[float] | None
    ) -> Flow[list[RetrievedUnit]]:
        if self.vectorstore is None:
            found = yield from retrieve([query], self._built(), k=k, vector=vector)
        else:
            known = self.takes_vectors
            if vector is not None and not known:
                allowed = "None over a store that is searched by queries alone"
                raise InvalidParameterError("vector", "a vector", allowed)
            if vector is None and known:
                # Otherwise the store would embed the query again for every search.
                vector = (yield from embed_query([query])).tolist()
            search = Search(query, k, vector)
            found = yield from retrieve_from_store(search, exact=ranks_exactly(self.vectorstore))
        return fit_budget(found, self.token_budget, count_tokens=self.length_function)

    def _known(self) -> StoredUnits:
        return self._stored if self.vectorstore is None else StoredUnits(self.unit_key)

    def _steps(self, request: Request, stored: StoredUnits) -> Steps[Any]:
        match request:
            case Embed() if (model := self._embedding()) is not None:
                return (yield from embed(model, request))
            case Search() if (store := self.vectorstore) is not None:
                rows = yield from self._search(store, request, stored)
                return [stored.hit(document, score) for document, score in rows]
            case Fetch():
                return (yield from fetch_units(self.docstore, request.unit_ids, stored))
            case _:
                raise NotImplementedError(type(request).__name__)

    def _search(
        self, store: VectorStore, request: Search, stored: StoredUnits
    ) -> Steps[Sequence[tuple[Document, float | None]]]:
        filtered = self._filter(store, request, stored)
        kwargs = {**self.search_kwargs, **filtered, "k": request.top_k}
        return (yield from search_store(store, request.query, request.vector, kwargs))

    def _filter(self, store: VectorStore, request: Search, stored: StoredUnits) -> dict[str, Any]:
        if self.unit_filter is not None:
            exclude = tuple(stored.value(unit_id) for unit_id in request.exclude)
            only = None if request.only is None else stored.value(request.only)
            made = self.unit_filter(exclude, only)
            for key in made.keys() & self.search_kwargs.keys():
                # One would replace the other, and rows past the caller's filter would come back.
                raise InvalidParameterError(
                    "search_kwargs",
                    key,
                    "left to unit_filter where that gives it too",
                    "Put both conditions into what unit_filter returns.",
                )
            return made
        if not request.exclude and request.only is None:
            return {}
        if not isinstance(store, InMemoryVectorStore):
            raise NotImplementedError(
                f"{type(store).__name__} needs a unit_filter to exclude units"
            )
        own: Callable[[Document], bool] | None = self.search_kwargs.get("filter")
        seen = frozenset(request.exclude)

        def passes(document: Document) -> bool:
            # First the caller's own: what it leaves out need not name a unit.
            if own is not None and not own(document):
                return False
            unit_id = stored.unit_id(document)
            return unit_id == request.only if request.only is not None else unit_id not in seen

        return {"filter": passes}

    def _built(self) -> UnitIndex:
        if self.index is None:
            raise InvalidParameterError("documents", None, "given when vectorstore is not")
        return self.index

    def _embedding(self) -> Embeddings | None:
        if self.embedding is not None or self.vectorstore is None:
            return self.embedding
        return self.vectorstore.embeddings

    def _results(self, found: Sequence[RetrievedUnit], stored: StoredUnits) -> list[Document]:
        return [
            # What the caller does to a result must not reach the documents or the store.
            from_result(unit, copy.deepcopy(stored.metadata(unit.unit.id)), self.unit_key)
            for unit in found
        ]

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        params = super()._get_ls_params(**kwargs)
        if self.vectorstore is not None:
            params["ls_vector_store_provider"] = type(self.vectorstore).__name__
        if (model := self._embedding()) is not None:
            params["ls_embedding_provider"] = type(model).__name__
        return params
