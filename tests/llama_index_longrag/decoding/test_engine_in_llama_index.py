"""An engine behind LlamaIndex's routers, sub-questions, tools and agents."""

from __future__ import annotations

import pytest
from llama_index.core.agent.workflow import FunctionAgent, ReActAgent
from llama_index.core.base.base_selector import BaseSelector, SelectorResult, SingleSelection
from llama_index.core.base.llms.types import ChatMessage, MessageRole, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM, MockLLM
from llama_index.core.query_engine import RouterQueryEngine, SubQuestionQueryEngine
from llama_index.core.question_gen.types import BaseQuestionGenerator, SubQuestion
from llama_index.core.response_synthesizers import Accumulate
from llama_index.core.tools import QueryEngineTool

from tests.fakes.llama_index import ScriptedLLM
from tests.llama_index_longrag.decoding.engines import MILL, WEIR, make
from tests.llama_index_longrag.riches_stories import BURNED, TOLD


class First(BaseSelector):
    def _get_prompts(self):
        return {}

    def _update_prompts(self, prompts):
        pass

    def _select(self, choices, query):
        return SelectorResult(selections=[SingleSelection(index=0, reason="first")])

    async def _aselect(self, choices, query):
        return self._select(choices, query)


class Split(BaseQuestionGenerator):
    def _get_prompts(self):
        return {}

    def _update_prompts(self, prompts):
        pass

    def generate(self, tools, query):
        return [SubQuestion(sub_question=BURNED, tool_name="mill") for _ in range(2)]

    async def agenerate(self, tools, query):
        return self.generate(tools, query)


def tool(**settings):
    return QueryEngineTool.from_defaults(make(**settings), name="mill", description="the mill")


@pytest.mark.parametrize("streaming", [False, True])
async def test_it_works_behind_a_router(streaming):
    router = RouterQueryEngine(First(), [tool(streaming=streaming)], llm=MockLLM())
    response = router.query(BURNED)
    assert str(response) == "1684"
    assert len(response.source_nodes) == 2
    assert response.metadata["selector_result"].ind == 0
    assert response.metadata["finish_reason"] == "stop"
    if not streaming:
        assert str(await router.aquery(BURNED)) == "1684"


@pytest.mark.parametrize("use_async", [False, True])
def test_it_answers_sub_questions(use_async):
    engine = SubQuestionQueryEngine(
        Split(), Accumulate(llm=MockLLM()), [tool()], verbose=False, use_async=use_async
    )
    response = engine.query("What happened?")
    assert str(response).count("Response: 1684") == 2
    assert [n.node.text for n in response.source_nodes][-4:] == [MILL, WEIR] * 2


async def test_as_a_tool_it_says_the_answer_and_carries_the_response():
    output, asynchronous = tool().call(BURNED), await tool().acall(input=BURNED)
    assert output.content == asynchronous.content == "1684"
    assert [n.node.text for n in output.raw_output.source_nodes] == [MILL, WEIR]


# The framework's agents use deprecated parts of their own libraries.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_function_agent_asks_it():
    call = ToolCallBlock(tool_call_id="1", tool_name="mill", tool_kwargs={"input": BURNED})

    def respond(messages, **kwargs):
        if messages[-1].role == MessageRole.TOOL:
            return ChatMessage(role="assistant", content=f"In {messages[-1].content}.")
        return ChatMessage(role="assistant", blocks=[call])

    llm = MockFunctionCallingLLM(response_generator=respond)
    response = await FunctionAgent(tools=[tool()], llm=llm, streaming=False).run(BURNED)
    assert str(response) == "In 1684."
    assert response.tool_calls[0].tool_output.raw_output.metadata["text"] == TOLD


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_react_agent_asks_it():
    llm = ScriptedLLM(
        f'Thought: I need the documents.\nAction: mill\nAction Input: {{"input": "{BURNED}"}}',
        "Thought: I can answer.\nAnswer: In 1684.",
    )
    response = await ReActAgent(tools=[tool()], llm=llm, streaming=False).run(BURNED)
    assert str(response) == "In 1684."
    assert "Observation: 1684" in llm.prompts[-1]
