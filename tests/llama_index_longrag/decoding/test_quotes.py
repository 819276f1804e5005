"""Checked quotes inside LlamaIndex: its prompts, events, windows, routers and errors."""

import pytest
from llama_index.core import Document as LlamaIndexDocument
from llama_index.core import MockEmbedding, PromptTemplate, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.query_engine import RetrieverQueryEngine, RouterQueryEngine
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool
from pydantic import BaseModel

from llama_index_longrag import LongRAGIndex, QuoteQueryEngine, QuoteSynthesizer, RaptorIndex
from longrag.errors import InvalidParameterError
from longrag.quoting import QuoteIndex
from longrag.types import Document

TEXT = "Ada Lind was born in Visby in 1902. She kept the lamp of the harbour."
REPLY = '<quote source="1">Ada Lind was born in Visby</quote>\nAnswer: Visby'
QUESTION = "Where was the keeper born?"


class Writing(CustomLLM):
    """Gives one reply, and remembers the prompts."""

    reply: str = REPLY
    window: int = 4000
    prompts: list[str] = []  # noqa: RUF012 - pydantic copies it

    @property
    def metadata(self):
        return LLMMetadata(context_window=self.window, num_output=64)

    def complete(self, prompt, formatted=False, **_):
        self.prompts.append(prompt)
        return CompletionResponse(text=self.reply)

    def stream_complete(self, prompt, formatted=False, **_):
        self.prompts.append(prompt)
        yield CompletionResponse(text=self.reply, delta=self.reply)


def index(**given):
    documents = [LlamaIndexDocument(id_="ada.md", text=TEXT, metadata={"title": "Ada"})]
    return VectorStoreIndex.from_documents(documents, embed_model=MockEmbedding(4), **given)


def engine(llm, **given):
    return QuoteQueryEngine.from_args(index(), llm, **given)


@pytest.mark.parametrize(
    ("kind", "given"), [(LongRAGIndex, {}), (RaptorIndex, {"summarizer": "extractive"})]
)
def test_our_own_indexes_are_quoted_from(kind, given):
    documents = [LlamaIndexDocument(id_="ada.md", text=TEXT, metadata={"title": "Ada"})]
    made = kind.from_documents(documents, embed_model=MockEmbedding(4), **given)
    response = QuoteQueryEngine.from_args(made, Writing()).query(QUESTION)
    assert response.response == "Visby"
    (node,) = response.source_nodes
    (quote,) = node.node.metadata["quotes"]
    assert (quote["doc_id"], quote["start_char"], quote["end_char"]) == ("ada.md", 0, 26)


def test_the_prompt_can_be_replaced():
    llm = Writing()
    made = engine(llm)
    assert "response_synthesizer:quote" in made.get_prompts()
    template = PromptTemplate("Quote from {context_str} for {query_str}!")
    made.update_prompts({"response_synthesizer:quote": template})
    assert made.query(QUESTION).response == "Visby"
    assert llm.prompts[0].startswith('Quote from <passage source="1" title="Ada">')
    assert llm.prompts[0].endswith(f"for {QUESTION}!")


def test_events_are_those_of_any_query():
    debug = LlamaDebugHandler(print_trace_on_end=False)
    manager = CallbackManager([debug])
    made = QuoteQueryEngine.from_args(
        index(callback_manager=manager), Writing(), callback_manager=manager
    )
    made.query(QUESTION)
    kinds = [event.event_type for event in debug.get_events() if event.payload is not None]
    for kind in (CBEventType.QUERY, CBEventType.RETRIEVE, CBEventType.SYNTHESIZE):
        assert kinds.count(kind) == 2, kind


def test_it_is_a_synthesizer_for_any_engine():
    llm = Writing()
    made = RetrieverQueryEngine(index().as_retriever(), QuoteSynthesizer(llm))
    assert made.query(QUESTION).response == "Visby"
    assert str(QuoteSynthesizer(llm).get_response(QUESTION, [TEXT])) == "Visby"
    assert QuoteSynthesizer(llm, empty_response="No.").synthesize(QUESTION, []).response == "No."


def test_a_router_takes_it_as_a_tool():
    tool = QueryEngineTool.from_defaults(engine(Writing()), description="the keepers")
    chosen = Writing(reply='[{"choice": 1, "reason": "it fits"}]')
    router = RouterQueryEngine(LLMSingleSelector.from_defaults(llm=chosen), [tool], llm=chosen)
    assert router.query(QUESTION).response == "Visby"


def test_nodes_beyond_the_window_are_left_out():
    llm = Writing(window=1400)
    nodes = [NodeWithScore(node=TextNode(text=TEXT, id_="first"))]
    nodes += [NodeWithScore(node=TextNode(text="Filling. " * 300, id_=str(n))) for n in range(3)]
    response = QuoteSynthesizer(llm).synthesize(QUESTION, nodes)
    assert response.response == "Visby"
    assert llm.prompts[0].count("</passage>") == 2
    with pytest.raises(InvalidParameterError, match="no room for a passage"):
        QuoteSynthesizer(Writing(window=800)).synthesize(QUESTION, nodes)


def test_what_stands_elsewhere_is_told_and_not_shown():
    corpus = QuoteIndex.from_documents([Document("z.md", "The ferry leaves at noon every day.")])
    llm = Writing(reply="<quote>The ferry leaves at noon</quote>\nAnswer: noon")
    response = engine(llm, corpus=corpus, attempts=1, empty_response="Nothing.").query(QUESTION)
    assert response.response == "Nothing."
    assert response.source_nodes == []
    (refused,) = response.metadata["rejected"]
    assert (refused["status"], refused["nearest"]["doc_id"]) == ("misattributed", "z.md")
    assert len(llm.prompts) == 1


class Shape(BaseModel):
    city: str


def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidParameterError, match="writes text"):
        engine(Writing().as_structured_llm(Shape))
    with pytest.raises(InvalidParameterError, match="Pass index or retriever, one of the two"):
        QuoteQueryEngine.from_args(None, Writing())
    with pytest.raises(InvalidParameterError, match="go with index: omit similarity_top_k"):
        QuoteQueryEngine.from_args(
            llm=Writing(), retriever=index().as_retriever(), similarity_top_k=3
        )
    with pytest.raises(InvalidParameterError, match="attempts"):
        engine(Writing(), attempts=0)
