"""Give two agents of one LlamaIndex workflow a search tool that keeps to a token budget.

One agent searches and hands over to the other, which answers. The model is the framework's own
fake, told what to call; put your own in its place.
"""

import asyncio
import warnings
from pathlib import Path

from llama_index.core import Document
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage, MessageRole, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.utils import get_tokenizer

from llama_index_longrag import LocalEmbedding, LongRAGIndex, LongUnitTool
from longrag.ingestion import read_documents
from longrag.models import LsaEmbedder

BUDGET = 300
QUESTION = "What is MaxP?"
pages = read_documents(Path(__file__).parent.parent / "docs" / "concepts")
embed_model = LocalEmbedding(embedder=LsaEmbedder([page.text for page in pages]))
documents = [Document(id_=p.id, text=p.text, metadata={"title": p.title}) for p in pages]
index = LongRAGIndex.from_documents(documents, embed_model=embed_model)
tool = LongUnitTool(index.as_retriever(), name="manual", token_budget=BUDGET)


def call(name: str, **arguments: str) -> ChatMessage:
    block = ToolCallBlock(tool_call_id=name, tool_name=name, tool_kwargs=arguments)
    return ChatMessage(role="assistant", blocks=[block])


def respond(messages, **kwargs):
    tools = sum(message.role == MessageRole.TOOL for message in messages)
    if tools == 0:
        return call("manual", input=QUESTION)
    if tools == 1:
        return call("handoff", to_agent="writer", reason="The passages are there.")
    return ChatMessage(role="assistant", content="MaxP ranks a unit by its best chunk.")


async def main() -> None:
    llm = MockFunctionCallingLLM(response_generator=respond)
    searcher = FunctionAgent(
        name="searcher",
        description="Searches the manual.",
        tools=[tool],
        llm=llm,
        streaming=False,
        can_handoff_to=["writer"],
    )
    writer = FunctionAgent(
        name="writer", description="Answers.", tools=[tool], llm=llm, streaming=False
    )
    workflow = AgentWorkflow(agents=[searcher, writer], root_agent="searcher")
    handler = workflow.run(QUESTION)
    async for event in handler.stream_events():
        if isinstance(event, ToolCallResult) and event.tool_name == "manual":
            tokens = len(get_tokenizer()(event.tool_output.content))
            if tokens > BUDGET:
                raise SystemExit(f"{tokens} tokens are over the budget of {BUDGET}")
            print(f"{QUESTION}\n  the searcher saw {tokens} tokens")
    response = await handler
    print(f"  the {response.current_agent_name} says: {response}")


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the framework's agents use deprecated parts of their own
    asyncio.run(main())
