"""Checked quotes inside LangChain: prompts, runs, filters, budgets and errors."""

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel, FakeListLLM
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableLambda

from langchain_longrag import LongRAGIndex, create_quote_chain
from longrag.errors import GenerationError, InvalidParameterError
from longrag.quoting import QuoteIndex
from longrag.types import Document as CoreDocument

TEXT = "Ada Lind was born in Visby in 1902. She kept the lamp of the harbour."
REPLY = '<quote source="1">Ada Lind was born in Visby</quote>\nAnswer: Visby'
INPUT = {"input": "Where was the keeper born?"}
PAGES = [Document(TEXT, id="ada.md", metadata={"title": "Ada", "town": "Visby"})]
RETRIEVER = RunnableLambda(lambda _: PAGES)


def writing(*replies):
    return FakeListChatModel(responses=list(replies) or [REPLY])


def test_an_index_of_ours_is_quoted_from_and_filters_narrow_the_call():
    index = LongRAGIndex.from_documents(
        [*PAGES, Document("Bern has a clock.", id="bern.md", metadata={"town": "Bern"})],
        embedding=DeterministicFakeEmbedding(size=4),
    )
    chain = create_quote_chain(index, writing())
    found = chain.invoke(INPUT, filter={"town": "Visby"})
    assert found["answer"] == "Visby"
    assert [page.metadata["doc_ids"] for page in found["context"]] == [["ada.md"]]
    (block,) = found["message"].content_blocks
    extras = block["annotations"][0]["extras"]
    assert (extras["doc_id"], extras["start"], extras["end"]) == ("ada.md", 0, 26)
    assert set(found) == {"input", "context", "message", "answer"}
    hidden = chain.invoke(INPUT, filter={"town": "Bern"})
    assert hidden["message"].response_metadata["finish_reason"] == "no_quote"


def test_a_call_with_a_filter_is_told_nothing_of_the_corpus():
    corpus = QuoteIndex.from_documents([CoreDocument("z.md", "The ferry leaves at noon daily.")])
    llm = writing("<quote>The ferry leaves at noon</quote>\nAnswer: noon")
    index = LongRAGIndex.from_documents(PAGES, embedding=DeterministicFakeEmbedding(size=4))
    chain = create_quote_chain(index, llm, corpus=corpus, attempts=1, empty_answer="Nothing.")
    told = chain.invoke(INPUT)
    assert told["answer"] == told["message"].text == "Nothing."
    (refused,) = told["message"].response_metadata["rejected"]
    assert (refused["status"], refused["nearest"]["doc_id"]) == ("misattributed", "z.md")
    (refused,) = chain.invoke(INPUT, filter={"town": "Visby"})["message"].response_metadata[
        "rejected"
    ]
    assert (refused["status"], refused["nearest"]) == ("not_found", None)


def test_a_quote_that_leaves_words_out_is_cited_where_each_part_stands():
    reply = "<quote>Ada Lind was born ... Visby in 1902</quote>\nAnswer: in 1902"
    found = create_quote_chain(RETRIEVER, writing(reply)).invoke(INPUT)
    (block,) = found["message"].content_blocks
    cited = [one["cited_text"] for one in block["annotations"]]
    assert cited == ["Ada Lind was born", "Visby in 1902"]
    for one in block["annotations"]:
        assert TEXT[one["extras"]["start"] : one["extras"]["end"]] == one["cited_text"]


class Runs(BaseCallbackHandler):
    def __init__(self):
        self.names, self.prompts = [], []

    def on_chain_start(self, serialized, inputs, *, name=None, **_):
        self.names.append(name)

    def on_chat_model_start(self, serialized, messages, **_):
        self.prompts.append(messages[0][-1].content)


def test_a_trace_shows_the_steps_and_each_call_of_the_model():
    runs = Runs()
    wrong = "<quote>Ada Lind was born in Oslo</quote>\nAnswer: Oslo"
    chain = create_quote_chain(RETRIEVER, writing(wrong, REPLY))
    found = chain.invoke(INPUT, {"callbacks": [runs]})
    assert found["answer"] == "Visby"
    for name in ("quote_chain", "retrieve_documents", "read_with_quotes"):
        assert name in runs.names
    assert len(runs.prompts) == 2
    assert "was refused" in runs.prompts[1]


@pytest.mark.parametrize(
    "prompt",
    [
        PromptTemplate.from_template("{context}\n{input} {style}"),
        ChatPromptTemplate.from_messages([("system", "{style}"), ("human", "{context} {input}")]),
    ],
)
def test_a_prompt_of_the_users_may_read_other_inputs(prompt):
    runs = Runs()
    chain = create_quote_chain(RETRIEVER, writing(), prompt=prompt)
    found = chain.invoke({**INPUT, "style": "Be brief."}, {"callbacks": [runs]})
    assert found["answer"] == "Visby"
    assert '<passage source="1" title="Ada">' in runs.prompts[0]


def test_a_model_that_writes_strings_will_do():
    chain = create_quote_chain(RETRIEVER, FakeListLLM(responses=[REPLY]))
    assert chain.invoke(INPUT)["answer"] == "Visby"
    with pytest.raises(GenerationError, match="must be text or a message"):
        create_quote_chain(RETRIEVER, RunnableLambda(lambda _: 3)).invoke(INPUT)


def test_documents_beyond_the_room_are_left_out():
    pages = [*PAGES, Document("Filling. " * 300, id="long.md")]
    runs = Runs()
    chain = create_quote_chain(RunnableLambda(lambda _: pages), writing(), max_tokens=100)
    assert chain.invoke(INPUT, {"callbacks": [runs]})["answer"] == "Visby"
    assert len(runs.prompts[0]) < 1500


def test_no_documents_ask_no_model():
    chain = create_quote_chain(RunnableLambda(lambda _: []), RunnableLambda(lambda _: 1 / 0))
    found = chain.invoke(INPUT)
    assert found["message"].response_metadata["attempts"] == 0
    assert next(piece for piece in chain.stream(INPUT) if "message" in piece)["message"].text


def test_what_cannot_be_is_refused():
    for wrong in (writing(), "retriever", None):
        with pytest.raises(InvalidParameterError, match="retriever"):
            create_quote_chain(wrong, writing())
    for name, value in (("attempts", 0), ("max_tokens", 0), ("check_answer", 1)):
        with pytest.raises(InvalidParameterError, match=name):
            create_quote_chain(RETRIEVER, writing(), **{name: value})
    with pytest.raises(InvalidParameterError, match="input"):
        create_quote_chain(RETRIEVER, writing()).invoke({"input": 3})
