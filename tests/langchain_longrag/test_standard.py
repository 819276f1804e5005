"""LangChain's own suites, in full, over everything here that has one."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import (
    ChatModelIntegrationTests,
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
)
from langchain_tests.unit_tests import ChatModelUnitTests, EmbeddingsUnitTests

from langchain_longrag import (
    ChatRiches,
    EvidenceRetriever,
    ExtractiveChatModel,
    HybridRetriever,
    LocalEmbeddings,
    LongRAGIndex,
    LongUnitTransformer,
    MaxPRetriever,
    QueryTransformRetriever,
    RichesRetriever,
)
from longrag.models.embedder import LsaEmbedder
from tests.fakes.langchain import HashEmbeddings, chunk, list_store, memory_store, replying
from tests.langchain_longrag.reading import PAGES, quoting, writing

CORPUS = [
    Document(id=f"page {n}", page_content=f"Town {n} keeps {n * 3} boats. The harbour {n} is old.")
    for n in range(12)
]
# One unit holds the best chunks of every other search, as in a store of real books.
CHUNKS = [
    *(chunk("greedy", n, f"the old harbour number {n}") for n in range(60)),
    *(chunk(f"unit {n}", 0, f"boat {n} lies in a harbour") for n in range(5)),
]


class _Retrievers(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return MaxPRetriever

    @property
    def retriever_query_example(self) -> str:
        return "the old harbour"


class TestMaxPRetrieverOverDocuments(_Retrievers):
    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        documents = LongUnitTransformer(max_tokens=40).transform_documents(CORPUS)
        return {"documents": documents, "embedding": HashEmbeddings()}


class TestMaxPRetrieverOverInMemoryVectorStore(_Retrievers):
    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"vectorstore": memory_store(CHUNKS, HashEmbeddings())}


class TestMaxPRetrieverOverAStoreWithoutFilters(_Retrievers):
    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"vectorstore": list_store(CHUNKS, HashEmbeddings())}


class TestEvidenceRetriever(_Retrievers):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return EvidenceRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"index": LongRAGIndex.from_documents(CORPUS, HashEmbeddings())}


class _HybridRetrievers(_Retrievers):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return HybridRetriever


class TestHybridRetrieverOverAStore(_HybridRetrievers):
    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        store = list_store(CORPUS, HashEmbeddings())
        return {"vectorstore": store, "documents": CORPUS}


class TestHybridRetrieverOverLongUnits(_HybridRetrievers):
    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        documents = LongUnitTransformer(max_tokens=40).transform_documents(CORPUS)
        return {"retriever": MaxPRetriever(documents=documents, embedding=HashEmbeddings())}


class TestHybridRetrieverOverTheFrameworksOwn(_HybridRetrievers):
    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"retriever": memory_store(CORPUS, HashEmbeddings()).as_retriever()}


class TestQueryTransformRetriever(_Retrievers):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return QueryTransformRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        store = memory_store(CORPUS, HashEmbeddings())
        return {"vectorstore": store, "llm": replying(lambda _: "an old harbour")}


# Neither suite changes what a decoder is made of.
DECODER = RichesRetriever.from_documents(PAGES, language_model=writing(quoting)).decoder


class TestRichesRetriever(_Retrievers):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return RichesRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"decoder": DECODER, "documents": PAGES}


class _Riches:
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatRiches

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"decoder": DECODER, "documents": PAGES}


class TestChatRichesUnit(_Riches, ChatModelUnitTests):
    pass


class TestChatRichesIntegration(_Riches, ChatModelIntegrationTests):
    pass


class TestChatRichesAnswersAlone(_Riches, ChatModelIntegrationTests):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"decoder": DECODER, "documents": PAGES, "output": "answer"}


class _Extractive:
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ExtractiveChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {}


class TestExtractiveChatModelUnit(_Extractive, ChatModelUnitTests):
    pass


class TestExtractiveChatModelIntegration(_Extractive, ChatModelIntegrationTests):
    pass


class ForeignChatModel(ExtractiveChatModel):
    """A model of another package, which has a setting and a method besides."""

    greeting: str = "Hello"

    def greet(self) -> str:
        return self.invoke(self.greeting).text


class _Foreign:
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ForeignChatModel


class TestForeignChatModelUnit(_Foreign, ChatModelUnitTests):
    pass


class TestForeignChatModelIntegration(_Foreign, ChatModelIntegrationTests):
    pass


class ForeignRetriever(MaxPRetriever):
    """A retriever of another package, whose rank its results tell."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: Any, **kwargs: Any
    ) -> list[Document]:
        found = super()._get_relevant_documents(query, run_manager=run_manager, **kwargs)
        for place, one in enumerate(found):
            one.metadata["rank"] = place
        return found


class TestForeignRetriever(_Retrievers):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return ForeignRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"vectorstore": memory_store(CHUNKS, HashEmbeddings())}


class _Lsa(LocalEmbeddings):
    """The suites build the class from keyword arguments."""

    def __init__(self) -> None:
        super().__init__(LsaEmbedder(["one harbour", "two boats", "three towns", "foo", "bar"]))


class _LocalEmbeddings:
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return _Lsa


class TestLocalEmbeddingsUnit(_LocalEmbeddings, EmbeddingsUnitTests):
    pass


class TestLocalEmbeddingsIntegration(_LocalEmbeddings, EmbeddingsIntegrationTests):
    pass
