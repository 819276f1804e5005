"""Retrieve in a LangGraph graph that stops for a person and goes on from its checkpoint.

What was found is state: the graph writes it to a checkpoint, and another process could go on. The
extractive reader takes the place of a language model.
"""

import warnings
from pathlib import Path
from typing import TypedDict

from langchain_core.documents import Document
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from langchain_longrag import (
    ExtractiveChatModel,
    LocalEmbeddings,
    LongRAGIndex,
    create_longrag_tool,
    create_two_turn_reader,
)
from longrag.ingestion import read_documents
from longrag.models import LsaEmbedder, count_tokens

BUDGET = 400
# LangChain marks the class that the index extends as beta, and says so.
warnings.filterwarnings("ignore", "The class `DocumentIndex` is in beta")
pages = read_documents(Path(__file__).parent.parent / "docs" / "concepts")
embedding = LocalEmbeddings(LsaEmbedder([page.text for page in pages]))
documents = [Document(p.text, id=p.id, metadata={"title": p.title}) for p in pages]
index = LongRAGIndex.from_documents(documents, embedding)
tool = create_longrag_tool(index, token_budget=BUDGET)
reader = create_two_turn_reader(ExtractiveChatModel())


class State(TypedDict, total=False):
    input: str
    context: list[Document]
    answer: str


def retrieve(state: State) -> State:
    call = {"name": tool.name, "args": {"query": state["input"]}, "id": "1", "type": "tool_call"}
    return {"context": tool.invoke(call).artifact}


def review(state: State) -> State:
    """Let a person strike out documents before they are read."""
    kept = interrupt([one.metadata["doc_ids"][0] for one in state["context"]])
    return {"context": [state["context"][number] for number in kept]}


def read(state: State) -> State:
    return {"answer": reader.invoke({"input": state["input"], "context": state["context"]})}


builder = StateGraph(State)
for node in (retrieve, review, read):
    builder.add_node(node.__name__, node)
builder.add_edge(START, "retrieve")
builder.add_edge("retrieve", "review")
builder.add_edge("review", "read")
builder.add_edge("read", END)
# What results say of themselves is plain data, which any checkpointer stores.
graph = builder.compile(checkpointer=InMemorySaver())

thread = {"configurable": {"thread_id": "1"}}
question = {"input": "How many tokens does a long unit hold by default?"}
waiting = graph.invoke(question, thread)
names = waiting["__interrupt__"][0].value
context = graph.get_state(thread).values["context"]
tokens = sum(count_tokens(one.page_content) for one in context)
if tokens > BUDGET:
    raise SystemExit(f"{tokens} tokens are over the budget of {BUDGET}")
print(f"{question['input']}\n  found, in {tokens} tokens: {', '.join(names)}")
done = graph.invoke(Command(resume=[0]), thread)
print(f"  read the first: {done['answer']}")
again = next(one for one in graph.get_state_history(thread) if one.next == ("review",))
other = graph.invoke(Command(resume=list(range(len(names)))), again.config)
print(f"  from the checkpoint, all of them: {other['answer']}")
