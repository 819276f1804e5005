"""Give agents of both frameworks a search tool that keeps to a token budget.

The models here are the frameworks' own fakes, told what to call; put your own in their place.
"""

import asyncio
import warnings
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.documents import Document as LangChainDocument
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from llama_index.core import Document as LlamaIndexDocument
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, MessageRole, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM

import langchain_longrag
import llama_index_longrag
from longrag.ingestion import read_documents
from longrag.models import LsaEmbedder, count_tokens

QUESTION = "What is MaxP?"
pages = read_documents(Path(__file__).parent.parent / "docs")
embedder = LsaEmbedder([page.text for page in pages])


async def with_llama_index() -> str:
    nodes = llama_index_longrag.LongUnitNodeParser()(
        [
            LlamaIndexDocument(id_=p.id, text=p.text, metadata={**p.metadata, "title": p.title})
            for p in pages
        ]
    )
    retriever = llama_index_longrag.MaxPRetriever(
        nodes=nodes, embed_model=llama_index_longrag.LocalEmbedding(embedder=embedder)
    )
    tool = llama_index_longrag.LongUnitTool(retriever, name="manual", token_budget=600)

    def respond(messages, **kwargs):
        if messages[-1].role == MessageRole.TOOL:
            return ChatMessage(role="assistant", content="MaxP ranks a unit by its best chunk.")
        call = ToolCallBlock(tool_call_id="1", tool_name="manual", tool_kwargs={"input": QUESTION})
        return ChatMessage(role="assistant", blocks=[call])

    llm = MockFunctionCallingLLM(response_generator=respond)
    response = await FunctionAgent(tools=[tool], llm=llm, streaming=False).run(QUESTION)
    seen = response.tool_calls[0].tool_output.content
    return f"{response}   (saw {count_tokens(seen)} tokens)"


class ToldWhatToCall(GenericFakeChatModel):
    def bind_tools(self, tools, **kwargs):
        return self


def with_langchain() -> str:
    units = langchain_longrag.LongUnitTransformer().transform_documents(
        [
            LangChainDocument(p.text, id=p.id, metadata={**p.metadata, "title": p.title})
            for p in pages
        ]
    )
    retriever = langchain_longrag.MaxPRetriever(
        documents=units, embedding=langchain_longrag.LocalEmbeddings(embedder)
    )
    tool = langchain_longrag.create_longrag_tool(retriever, "manual", token_budget=600)
    call = {"name": "manual", "args": {"query": QUESTION}, "id": "1"}
    answer = AIMessage("MaxP ranks a unit by its best chunk.")
    model = ToldWhatToCall(messages=iter([AIMessage("", tool_calls=[call]), answer]))
    result = create_agent(model, [tool]).invoke({"messages": [("user", QUESTION)]})
    (seen,) = [message for message in result["messages"] if isinstance(message, ToolMessage)]
    return f"{result['messages'][-1].content}   (saw {count_tokens(seen.content)} tokens)"


print(QUESTION)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the frameworks' agents use deprecated parts of their own
    print("  LlamaIndex ", asyncio.run(with_llama_index()))
    print("  LangChain  ", with_langchain())
