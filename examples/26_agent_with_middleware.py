"""Give a LangChain agent with middleware a search tool that keeps to a token budget.

The middleware asks a person before each search, allows two searches a question, and clears what
old ones returned. The model is the framework's own fake, told what to call; put yours in its place.
"""

import warnings
from pathlib import Path

from langchain.agents import create_agent
from langchain.agents.middleware import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    ToolCallLimitMiddleware,
)
from langchain_core.documents import Document
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from langchain_longrag import LocalEmbeddings, LongRAGIndex, create_longrag_tool
from longrag.ingestion import read_documents
from longrag.models import LsaEmbedder, count_tokens

BUDGET = 300
# LangChain marks the class that the index extends as beta, and says so.
warnings.filterwarnings("ignore", "The class `DocumentIndex` is in beta")
pages = read_documents(Path(__file__).parent.parent / "docs" / "concepts")
embedding = LocalEmbeddings(LsaEmbedder([page.text for page in pages]))
documents = [Document(p.text, id=p.id, metadata={"title": p.title}) for p in pages]
index = LongRAGIndex.from_documents(documents, embedding)
tool = create_longrag_tool(index, "manual", "Searches the manual.", token_budget=BUDGET)


class ToldWhatToCall(GenericFakeChatModel):
    def bind_tools(self, tools, **kwargs):
        return self


def search(number: int, query: str) -> AIMessage:
    return AIMessage(
        "", tool_calls=[{"name": "manual", "args": {"query": query}, "id": str(number)}]
    )


def seen(state) -> list[ToolMessage]:
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


answer = AIMessage("A unit is ranked by its best chunk.")
model = ToldWhatToCall(
    messages=iter([search(1, "What is MaxP?"), search(2, "units"), search(3, "more"), answer])
)
agent = create_agent(
    model,
    [tool],
    middleware=[
        ToolCallLimitMiddleware(tool_name="manual", thread_limit=2, exit_behavior="continue"),
        ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=2 * BUDGET, keep=1)]),
        HumanInTheLoopMiddleware(interrupt_on={"manual": True}),
    ],
    checkpointer=InMemorySaver(),
)
thread = {"configurable": {"thread_id": "1"}}
state = agent.invoke({"messages": [("user", "How are units ranked?")]}, thread)
while "__interrupt__" in state:
    (asked,) = state["__interrupt__"][0].value["action_requests"]
    print("May it search for", asked["args"], "? Yes.")
    state = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), thread)
for message in seen(state):
    if message.status == "error":
        print("  refused:", message.text)
        continue
    tokens = count_tokens(message.text)
    if tokens > BUDGET:
        raise SystemExit(f"{tokens} tokens are over the budget of {BUDGET}")
    print(f"  {tokens} tokens of {len(message.artifact)} units")
print(state["messages"][-1].text)
