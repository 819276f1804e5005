"""The query gate as a query engine."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from llama_index.core import PromptTemplate, Settings, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
from llama_index.core.callbacks.schema import CBEventType
from llama_index.core.chat_engine import CondenseQuestionChatEngine
from llama_index.core.query_engine import RouterQueryEngine
from llama_index.core.schema import QueryBundle, TextNode
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool

from llama_index_longrag import QueryClassifierQueryEngine, TwoTurnSynthesizer
from longrag.errors import InvalidParameterError
from tests.fakes.llama_index import HashEmbedding, ScriptedLLM, tokenizer

NEEDS = "Who designed the Eiffel Tower, and in which year was it finished?"
ALONE = "Translate the following sentence into French: The weather is fine today."


class Always:
    """Decides the same for every question, and remembers the thread it did so in."""

    def __init__(self, needed: bool) -> None:
        self.needed = needed
        self.asked: list[tuple[str, int]] = []

    def needs_retrieval(self, query: str) -> bool:
        self.asked.append((query, threading.get_ident()))
        return self.needed


def beneath(llm: ScriptedLLM, **settings: Any) -> BaseQueryEngine:
    nodes = [TextNode(id_="eiffel", text="The tower was designed by Stephen Sauvestre.")]
    index = VectorStoreIndex(nodes, embed_model=HashEmbedding())
    return index.as_query_engine(llm=llm, **settings)


def test_a_question_for_facts_is_retrieved_for_and_a_task_is_not():
    llm = ScriptedLLM("an answer")
    engine = QueryClassifierQueryEngine(beneath(llm))
    response = engine.query(NEEDS)
    assert str(response) == "an answer"
    assert response.metadata["needs_retrieval"] is True
    assert [source.node.node_id for source in response.source_nodes] == ["eiffel"]
    assert "Sauvestre" in llm.prompts[-1]
    response = engine.query(ALONE)
    assert str(response) == "an answer"
    assert response.metadata == {"needs_retrieval": False}
    assert response.source_nodes == []
    assert llm.prompts[-1] == ALONE
    assert len(llm.prompts) == 2


async def test_async_goes_the_same_ways_and_decides_off_the_event_loop():
    gate, llm = Always(False), ScriptedLLM("an answer")
    engine = QueryClassifierQueryEngine(beneath(llm), classifier=gate)
    assert str(await engine.aquery("q")) == "an answer"
    assert gate.asked[0][1] != threading.get_ident()
    gate.needed = True
    response = await engine.aquery("q")
    assert response.metadata["needs_retrieval"] is True
    assert [source.node.node_id for source in response.source_nodes] == ["eiffel"]


def test_both_ways_stream():
    gate, llm = Always(False), ScriptedLLM("one two three")
    engine = QueryClassifierQueryEngine(
        beneath(llm, streaming=True), classifier=gate, streaming=True
    )
    for gate.needed in (False, True):
        response = engine.query("q")
        assert isinstance(response, StreamingResponse)
        assert list(response.response_gen) == ["one", " two", " three"]
        assert response.metadata["needs_retrieval"] is gate.needed


async def test_both_ways_stream_async():
    gate, llm = Always(False), ScriptedLLM("one two three")
    engine = QueryClassifierQueryEngine(
        beneath(llm, streaming=True), classifier=gate, streaming=True
    )
    for gate.needed in (False, True):
        response = await engine.aquery("q")
        assert isinstance(response, AsyncStreamingResponse)
        assert [token async for token in response.response_gen] == ["one", " two", " three"]
        assert response.metadata["needs_retrieval"] is gate.needed


def test_the_notes_of_a_two_turn_stream_still_fill_up():
    llm = ScriptedLLM("a long answer", "short")
    reader = TwoTurnSynthesizer(llm, streaming=True, one_turn_max_tokens=0, tokenizer=tokenizer)
    engine = QueryClassifierQueryEngine(
        beneath(llm, response_synthesizer=reader), classifier=Always(True)
    )
    response = engine.query("q")
    assert list(response.long_answer_gen()) == ["a long", " answer"]
    assert str(response) == "short"
    assert response.metadata["long_answer"] == "a long answer"
    assert response.metadata["needs_retrieval"] is True


@pytest.mark.parametrize(("verdict", "needed"), [("Yes.", True), ("no", False), ("Hmm", True)])
def test_an_llm_may_decide(verdict, needed):
    judge, llm = ScriptedLLM(verdict), ScriptedLLM("an answer")
    engine = QueryClassifierQueryEngine(beneath(llm), classifier=judge)
    question = "Is {this} <b>bold</b>?"
    assert engine.query(question).metadata["needs_retrieval"] is needed
    assert "{this}" in judge.prompts[0]
    assert len(judge.prompts) == 1


async def test_an_llm_that_decides_is_called_by_its_async_call(monkeypatch):
    judge, llm = ScriptedLLM("no"), ScriptedLLM("an answer")
    engine = QueryClassifierQueryEngine(beneath(llm), classifier=judge)
    monkeypatch.setattr(ScriptedLLM, "complete", None)
    assert (await engine.aquery("q")).metadata == {"needs_retrieval": False}


def test_what_the_llm_is_asked_may_be_another():
    judge, llm = ScriptedLLM("no"), ScriptedLLM("an answer")
    engine = QueryClassifierQueryEngine(
        beneath(llm),
        classifier=judge,
    )
    prompts = engine.get_prompts()
    assert {"classify", "direct:simple_template"} < prompts.keys()
    assert "query_engine:response_synthesizer:text_qa_template" in prompts
    engine.update_prompts(
        {
            "classify": PromptTemplate("Look up {x}? {query_str}"),
            "direct:simple_template": PromptTemplate("Do: {query_str}"),
        }
    )
    engine.query("a {b} c")
    assert judge.prompts == ["Look up {x}? a {b} c"]
    assert llm.prompts == ["Do: a {b} c"]


def test_the_llm_is_the_engines_own_or_another_or_that_of_the_settings(monkeypatch):
    own, other = ScriptedLLM("own"), ScriptedLLM("other")
    gate = Always(False)
    assert str(QueryClassifierQueryEngine(beneath(own), classifier=gate).query("q")) == "own"
    engine = QueryClassifierQueryEngine(beneath(own), classifier=gate, llm=other)
    assert str(engine.query("q")) == "other"
    monkeypatch.setattr(Settings, "_llm", ScriptedLLM("settings"))
    inner = QueryClassifierQueryEngine(beneath(own), classifier=gate)
    assert str(QueryClassifierQueryEngine(inner, classifier=gate).query("q")) == "settings"


async def test_retrieval_alone_follows_the_gate():
    gate = Always(True)
    engine = QueryClassifierQueryEngine(beneath(ScriptedLLM("x")), classifier=gate)
    bundle = QueryBundle("q")
    assert [r.node.node_id for r in engine.retrieve(bundle)] == ["eiffel"]
    assert [r.node.node_id for r in await engine.aretrieve(bundle)] == ["eiffel"]
    gate.needed = False
    assert engine.retrieve(bundle) == await engine.aretrieve(bundle) == []


def test_it_goes_where_query_engines_go():
    llm = ScriptedLLM("an answer")
    engine = QueryClassifierQueryEngine(beneath(llm))
    tool = QueryEngineTool.from_defaults(engine, name="facts", description="Knows towers.")
    assert tool.call(ALONE).content == "an answer"
    chooser = ScriptedLLM('[{"choice": 1, "reason": "the only one"}]')
    router = RouterQueryEngine(
        selector=LLMSingleSelector.from_defaults(chooser), query_engine_tools=[tool], llm=llm
    )
    response = router.query(NEEDS)
    assert response.metadata["needs_retrieval"] is True
    assert "selector_result" in response.metadata
    chat = CondenseQuestionChatEngine.from_defaults(engine, llm=llm)
    assert chat.chat(ALONE).response == "an answer"


def test_callbacks_see_the_query_and_the_call_of_the_model():
    debug = LlamaDebugHandler(print_trace_on_end=False)
    manager = CallbackManager([debug])
    llm = ScriptedLLM("an answer", callback_manager=manager)
    engine = QueryClassifierQueryEngine(
        beneath(llm), classifier=Always(False), callback_manager=manager
    )
    engine.query("q")
    assert len(debug.get_event_pairs(CBEventType.QUERY)) == 1
    assert len(debug.get_event_pairs(CBEventType.SYNTHESIZE)) == 1
    assert len(debug.get_llm_inputs_outputs()) == 1


def test_what_fails_is_heard():
    with pytest.raises(InvalidParameterError, match="query"):
        QueryClassifierQueryEngine(beneath(ScriptedLLM("x"))).query("  ")
    with pytest.raises(ConnectionError):
        QueryClassifierQueryEngine(
            beneath(ScriptedLLM("x")), classifier=ScriptedLLM(ConnectionError("down"))
        ).query("q")


def test_what_is_no_part_is_refused():
    engine = beneath(ScriptedLLM("x"))
    with pytest.raises(InvalidParameterError, match="classifier"):
        QueryClassifierQueryEngine(engine, classifier="yes")
    with pytest.raises(InvalidParameterError, match="query_engine"):
        QueryClassifierQueryEngine("engine")
