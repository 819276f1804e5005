"""An agent of LlamaIndex searches and reads an index file by its server's tools."""

from __future__ import annotations

import json
import re

import pytest

mcp_tools = pytest.importorskip(
    "llama_index.tools.mcp", reason="the group 'serving' is not installed"
)

from llama_index.core.agent.workflow import FunctionAgent  # noqa: E402
from llama_index.core.base.llms.types import ChatMessage, MessageRole, ToolCallBlock  # noqa: E402
from llama_index.core.llms.mock import MockFunctionCallingLLM  # noqa: E402

from tests.agents.conftest import ANSWER, QUESTION, example  # noqa: E402

# The agents use deprecated parts of their own libraries.
pytestmark = [pytest.mark.enable_socket, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def reader():
    """A model that searches, reads what was found first, and quotes it."""

    def respond(messages, **kwargs):
        seen = [one.content for one in messages if one.role == MessageRole.TOOL]
        if not seen:
            name, given = "search", {"question": QUESTION, "token_budget": 200}
        elif len(seen) == 1:
            # The framework shows a model the result as Python writes it.
            (path, *_) = re.findall(r'"path": "(.*?)"', seen[0])
            name, given = "read_document", {"path": path}
        else:
            (sentence,) = set(re.findall(r"The harbour was built[^.]*\.", seen[1]))
            return ChatMessage(role="assistant", content=sentence)
        call = ToolCallBlock(tool_call_id=str(len(seen)), tool_name=name, tool_kwargs=given)
        return ChatMessage(role="assistant", blocks=[call])

    return MockFunctionCallingLLM(response_generator=respond)


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_an_agent_searches_and_reads(server, transport):
    client = (
        mcp_tools.BasicMCPClient(server.command, args=server.arguments)
        if transport == "stdio"
        else mcp_tools.BasicMCPClient(server.url, headers=server.headers)
    )
    tools = await mcp_tools.McpToolSpec(client=client).to_tool_list_async()
    names = {tool.metadata.name for tool in tools}
    assert {"search", "read_document", "check_quotes"} <= names
    assert "walk_tree" not in names
    response = await FunctionAgent(tools=tools, llm=reader(), streaming=False).run(QUESTION)
    assert str(response) == ANSWER
    assert [call.tool_name for call in response.tool_calls] == ["search", "read_document"]
    found, read = (
        json.loads("".join(part.text for part in call.tool_output.raw_output.content))
        for call in response.tool_calls
    )
    assert 0 < found["tokens"] <= 200
    assert found["found"][0]["place"]["path"] == read["place"]["path"] == "town/harbour.md"


async def test_the_example_of_the_manual_answers(beside_the_file):
    known = {}
    exec(example("llama_index.tools.mcp"), known)
    assert await known["answer"](QUESTION, reader()) == ANSWER
