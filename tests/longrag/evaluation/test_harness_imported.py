"""Engines and retrievers of LlamaIndex, and chains of LangChain, asked as pipelines."""

from dataclasses import replace

import pytest
from langchain_classic.chains import RetrievalQA, create_retrieval_chain
from langchain_core.documents import Document as LangChainDocument
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import Document as LlamaDocument
from llama_index.core import VectorStoreIndex
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.query_engine import CustomQueryEngine

import langchain_longrag as lc
import llama_index_longrag as li
from longrag.errors import InvalidParameterError
from longrag.evaluation.datasets import Dataset, Question
from longrag.evaluation.harness import Pipeline, evaluate
from longrag.evaluation.harness.settings import PipelineSettings
from longrag.models import LsaEmbedder
from longrag.retrieval import TreeSearchSettings
from longrag.types import Document

PAGES = (
    Document("mill.md", "The mill stands at the weir. It grinds rye.", "Mill"),
    Document("weir.md", "The weir was built in 1312 of oak.", "Weir"),
    Document("church.md", "The church has a clock.", "Church"),
)
RIVER = Dataset(
    "river", PAGES, (Question("1", "When was the weir built?", ("1312",), ("weir.md",)),)
)
EMBEDDER = LsaEmbedder([one.text for one in PAGES])


def ask(made, *, corpus=RIVER, doc_id_key=None, **settings):
    pipeline = Pipeline("theirs", PipelineSettings(**settings), made, doc_id_key=doc_id_key)
    (result,) = evaluate([corpus], [pipeline]).results
    return result.rows[0]


class Fixed(CustomLLM):
    """A model that answers what no page says."""

    @property
    def metadata(self):
        return LLMMetadata()

    def complete(self, prompt, formatted=False, **kwargs):
        return CompletionResponse(text="In 1402")

    def stream_complete(self, prompt, formatted=False, **kwargs):
        yield self.complete(prompt)


class Oracle(CustomQueryEngine):
    """An engine that refuses ``retrieve``."""

    def custom_query(self, query_str):
        return "1312"


def weir_last(query, texts):
    return [float("1312" not in text) for text in texts]


@pytest.fixture(scope="module")
def vectors():
    pages = [LlamaDocument(id_=one.id, text=one.text) for one in PAGES]
    return VectorStoreIndex.from_documents(pages, embed_model=li.LocalEmbedding(embedder=EMBEDDER))


@pytest.fixture(scope="module")
def pages():
    return [LangChainDocument(one.text, id=one.id) for one in PAGES]


@pytest.fixture(scope="module")
def store(pages):
    return InMemoryVectorStore.from_documents(pages, lc.LocalEmbeddings(EMBEDDER))


def test_the_answer_and_the_nodes_of_an_engine_are_taken(vectors):
    row = ask(vectors.as_query_engine(llm=Fixed(), similarity_top_k=1))
    assert (row["answer"], row["ranking"]) == ("In 1402", ["weir.md"])
    assert (row["measures"]["AR"], row["measures"]["EM"]) == (1.0, 0.0)
    # Its own answer stands, whatever reads for others.
    assert ask(vectors.as_query_engine(llm=Fixed()), reader="extractive")["answer"] == "In 1402"


def test_postprocessors_of_an_engine_take_part(vectors):
    rerank = li.ScorerRerank(scorer=weir_last)
    row = ask(
        vectors.as_query_engine(llm=Fixed(), similarity_top_k=2, node_postprocessors=[rerank])
    )
    assert row["ranking"] == ["mill.md", "weir.md"]
    recipe = li.balanced_efficiency(vectors, reranker=weir_last, llm=li.ExtractiveLLM())
    assert ask(recipe)["measures"]["AR"] == 1.0


def test_an_engine_that_only_answers_is_asked():
    row = ask(Oracle())
    assert (row["answer"], row["ranking"]) == ("1312", [])
    assert (row["measures"]["EM"], row["measures"]["R"]) == (1.0, 0.0)


def test_retrievers_answer_nothing_and_a_reader_reads(vectors, store):
    for retriever in (vectors.as_retriever(similarity_top_k=2), store.as_retriever()):
        row = ask(retriever, k=2)
        assert row["ranking"] == ["weir.md", "mill.md"]
        assert "answer" not in row
        assert ask(retriever, reader="extractive")["answer"] == "1312"


def test_chains_are_given_their_input_under_its_name(pages, store):
    model, retriever = lc.ExtractiveChatModel(), store.as_retriever(search_kwargs={"k": 1})
    index = lc.LongRAGIndex.from_documents(pages, lc.LocalEmbeddings(EMBEDDER))
    said = RunnableLambda(lambda given: "1312")
    chains = {
        "longrag": lc.create_longrag_chain(index, model),
        "bound": lc.create_longrag_chain(index, model).with_config(tags=["mine"]),
        "recipe": lc.balanced_efficiency(
            store, model, reranker=lambda query, texts: [float("1312" in one) for one in texts]
        ),
        "stock": create_retrieval_chain(retriever, said),
        "classic": RetrievalQA.from_chain_type(
            model, retriever=retriever, return_source_documents=True
        ),
    }
    for name, chain in chains.items():
        row = ask(chain)
        assert row["ranking"][0] == "weir.md", name
        assert "1312" in row["answer"], name
    shown = RunnableLambda(lambda given: given.to_string())
    prompt = ChatPromptTemplate.from_template("{question}")
    assert ask(prompt | shown)["answer"] == "Human: When was the weir built?"
    # One that begins with a retriever takes the question itself.
    strings = {"context": retriever, "question": RunnablePassthrough()}
    prompt = ChatPromptTemplate.from_template("{question}: {context}")
    assert "1312" in ask(strings | prompt | shown)["answer"]


def test_a_context_that_is_one_string_is_one_text(store):
    def read(given):
        return "\n\n".join(one.page_content for one in store.as_retriever().invoke(given))

    chain = RunnablePassthrough() | {"context": RunnableLambda(read)}
    row = ask(chain)
    assert row["measures"]["AR"] == 1.0
    assert row["ranking"] == []


def test_what_is_over_the_budget_is_cut_at_a_sentence():
    body = " ".join(f"Sentence {at} speaks of rivers." for at in range(60))
    long = Document("weir.md", f"It was built in 1312. {body}")
    corpus = replace(RIVER, documents=(PAGES[0], long))
    whole = [LangChainDocument(long.text, id="weir.md")]
    retriever = InMemoryVectorStore.from_documents(whole, lc.LocalEmbeddings(EMBEDDER))
    row = ask(retriever.as_retriever(), corpus=corpus, token_budget=100)
    assert 90 < row["tokens"] <= 100
    assert (row["ranking"], row["measures"]["AR"]) == (["weir.md"], 1.0)


def test_a_unit_that_is_cut_counts_for_what_is_read_of_it(pages):
    embeddings = lc.LocalEmbeddings(EMBEDDER)
    index = lc.LongRAGIndex.from_documents(
        pages, embeddings, link_extractor=lambda one: ["weir.md"], mode="maxp", k=1
    )
    assert set(ask(index)["ranking"]) == {one.id for one in pages}
    assert ask(index, token_budget=12)["ranking"] == ["weir.md"]


def test_summaries_of_a_tree_count_for_no_document(pages):
    embeddings = lc.LocalEmbeddings(EMBEDDER)
    tree = li.RaptorIndex.from_documents(
        [LlamaDocument(id_=one.id, text=one.text) for one in PAGES],
        embed_model=li.LocalEmbedding(embedder=EMBEDDER),
        summarizer="extractive",
    )
    rows = InMemoryVectorStore(embeddings)
    mirrored = lc.RaptorIndex.from_documents(
        pages, embeddings, vectorstore=rows, summarizer="extractive"
    )
    for level, found in ((0, {one.id for one in PAGES}), (1, set())):
        search = TreeSearchSettings(levels=[level])
        for retriever in (
            tree.as_retriever(search=search),
            lc.RaptorRetriever(index=mirrored, search=search),
            lc.RaptorRetriever(vectorstore=rows, search=search),
        ):
            row = ask(retriever)
            assert set(row["ranking"]) == found
            assert row["tokens"] > 0
    # Whoever else has a key of that name is believed.
    marked = [
        one.model_copy(update={"metadata": {"level": 2, "path": f"{one.id}"}}) for one in pages
    ]
    own = InMemoryVectorStore.from_documents(marked, lc.LocalEmbeddings(EMBEDDER))
    assert ask(own.as_retriever(), doc_id_key="path")["ranking"][0] == "weir.md"


def test_something_that_cannot_be_asked_is_refused():
    with pytest.raises(InvalidParameterError, match="retriever or engine"):
        ask(lambda corpus: 7)
