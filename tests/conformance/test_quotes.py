"""Answers with quotes are the core's in both frameworks, sync, async, streamed and in a batch."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.documents import Document as LangChainDocument
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from llama_index.core import QueryBundle
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from langchain_longrag import create_quote_chain
from llama_index_longrag import QuoteQueryEngine
from longrag.quoting import QuotablePassage
from longrag.quoting.reading import QuoteReading, QuoteSettings
from longrag.synthesis.two_turn import EMPTY_ANSWER

QUESTION = "Where was the keeper born?"
TEXTS = {
    "a.md": "Ada Lind was born in Visby in 1902. She is not allowed to leave.",
    "b.md": "```python\nlamp = 3\n\n\nlit = True\n```\nThe code lights it.",
}
SUMMARY = "The keeper came from Visby and kept a lamp."
START = {"a.md": 0, "b.md": 120}
BORN = '<quote source="1">ada lind was  born in Visby</quote>'
PLACE = ("doc_id", "start", "end", "verbatim")
REPLIES = {
    "one quote": [f"{BORN}\nAnswer: Visby"],
    "wrong source": [f"{BORN.replace('1', '2')}\nAnswer: Visby"],
    "second call": [
        "<quote>Ada Lind was born in Oslo</quote>\nAnswer: Oslo",
        f"{BORN}\nAnswer: Visby",
    ],
    "two, one refused": [f"{BORN} <quote>Ada Lind was born in 1903</quote>\nAnswer: Visby"],
    "answer refused": [f"{BORN}\nAnswer: Oslo"] * 2,
    "code": ["<quote source='2'>lamp = 3\nlit = True</quote>"],
    "summary": ["<quote source='3'>The keeper came from Visby</quote>\nAnswer: Visby"],
    "nothing": ["Answer: none"],
    "no form": ["It is Visby."] * 2,
    "thoughts": [f"<think>{BORN}</think>{BORN}\n\nAnswer: Visby"],
}


def passages():
    own = [
        QuotablePassage(i, text, START[i], title=i, passage_id=f"{i}#") for i, text in TEXTS.items()
    ]
    return [*own, QuotablePassage("sum", SUMMARY, passage_id="sum", verbatim=False)]


def core(replies, *, streaming):
    reading = QuoteReading(QUESTION, passages(), settings=QuoteSettings(), streaming=streaming)
    left, shown = list(replies), []
    while reading.wants_reply:
        shown += [delta.text for delta in (*reading.feed(left.pop(0)), *reading.end_reply())]
    found = reading.generation
    return {
        "answer": reading.answer or EMPTY_ANSWER,
        "text": found.text,
        "shown": "".join(shown),
        "quotes": [
            (
                span.quote,
                source.doc_id,
                source.start,
                source.end,
                source.verbatim,
                span.checked.status,
            )
            for span in found.spans
            for source in span.sources
        ],
        "rejected": [(span.checked.quote, span.checked.status) for span in found.rejected],
        "reason": found.finish_reason,
        "calls": found.usage.calls,
    }


class Scripted(CustomLLM):
    replies: list[str]

    @property
    def metadata(self):
        return LLMMetadata(context_window=4000)

    def complete(self, prompt, formatted=False, **_):
        return CompletionResponse(text=self.replies.pop(0))

    def stream_complete(self, prompt, formatted=False, **_):
        text = self.replies.pop(0)
        for end in range(3, len(text) + 3, 3):
            yield CompletionResponse(text=text[:end], delta=text[end - 3 : end])


class Given(BaseRetriever):
    def _retrieve(self, query_bundle: QueryBundle):
        nodes = [
            TextNode(
                id_=f"{i}#",
                text=text,
                metadata={"title": i},
                start_char_idx=START[i],
                end_char_idx=START[i] + len(text),
                relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=i)},
            )
            for i, text in TEXTS.items()
        ]
        # As the nodes of a tree: the source is one of the documents, at no place in it.
        nodes.append(
            TextNode(
                id_="sum",
                text=SUMMARY,
                metadata={"level": 1, "doc_ids": list(TEXTS)},
                relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="a.md")},
            )
        )
        return [NodeWithScore(node=node, score=1.0) for node in nodes]


def llama_index(replies, *, streaming, use_async):
    engine = QuoteQueryEngine.from_args(
        retriever=Given(), llm=Scripted(replies=list(replies)), streaming=streaming
    )
    shown = ""
    if use_async:

        async def ask():
            response = await engine.aquery(QUESTION)
            if not streaming:
                return response, str(response), ""
            told = "".join([piece async for piece in response.trace_gen()])
            return response, "".join([piece async for piece in response.response_gen]), told

        response, answer, shown = asyncio.run(ask())
    else:
        response = engine.query(QUESTION)
        shown = "".join(response.trace_gen()) if streaming else ""
        answer = "".join(response.response_gen) if streaming else str(response)
    known = response.metadata
    nodes = {one.node.node_id: one.node.metadata["quotes"] for one in response.source_nodes}
    in_order = [
        (step["text"], *(source[key] for key in PLACE), step["checked"]["status"])
        for step in known["trace"]
        for source in step["sources"]
    ]
    on_nodes = [
        (
            one["text"],
            one["doc_id"],
            one["start_char"],
            one["end_char"],
            one["verbatim"],
            one["status"],
        )
        for quotes in nodes.values()
        for one in quotes
    ]
    assert sorted(on_nodes) == sorted(in_order)
    return {
        "answer": answer,
        "text": known["text"],
        "shown": shown if streaming else known["text"],
        "quotes": in_order,
        "rejected": [(one["quote"], one["status"]) for one in known["rejected"]],
        "reason": known["finish_reason"],
        "calls": known["usage"]["calls"],
    }


def langchain(replies, *, streaming, use_async):
    documents = [
        LangChainDocument(
            id=f"{i}#",
            page_content=text,
            metadata={"title": i, "doc_id": i, "start_index": START[i]},
        )
        for i, text in TEXTS.items()
    ]
    documents.append(
        LangChainDocument(id="sum", page_content=SUMMARY, metadata={"doc_ids": list(TEXTS)})
    )
    llm = GenericFakeChatModel(messages=iter([AIMessage(content=reply) for reply in replies]))
    chain = create_quote_chain(RunnableLambda(lambda _: documents), llm)
    inputs = {"input": QUESTION}

    async def ask():
        if not streaming:
            return await chain.ainvoke(inputs)
        return [piece async for piece in chain.astream(inputs)]

    if use_async:
        found = asyncio.run(ask())
    elif streaming:
        found = list(chain.stream(inputs))
    else:
        (found,) = chain.batch([inputs])
    if streaming:
        total = found[0]
        for piece in found[1:]:
            total += piece
        found = total
    message = found["message"]
    known = message.response_metadata
    cited = [one for block in message.content_blocks for one in block.get("annotations", [])]
    for one in cited:
        assert message.text[one["start_index"] : one["end_index"]] == one["extras"]["quote"]
    return {
        "answer": found["answer"],
        "text": message.text if cited else "",
        "shown": message.text if cited else "",
        "quotes": [
            (one["cited_text"], *(one["extras"][key] for key in (*PLACE, "status")))
            for one in cited
        ],
        "rejected": [(one["quote"], one["status"]) for one in known["rejected"]],
        "reason": known["finish_reason"],
        "calls": known["attempts"],
    }


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", REPLIES)
def test_every_way_gives_what_the_core_gives(name, streaming):
    expected = core(REPLIES[name], streaming=streaming)
    for way in (llama_index, langchain):
        for use_async in (False, True):
            found = way(REPLIES[name], streaming=streaming, use_async=use_async)
            assert found == expected, (way.__name__, use_async)


def test_the_cases_are_what_they_are_called():
    found = {name: core(replies, streaming=False) for name, replies in REPLIES.items()}
    assert {name: one["answer"] for name, one in found.items()} == {
        "one quote": "Visby",
        "wrong source": "Visby",
        "second call": "Visby",
        "two, one refused": "Visby",
        "answer refused": "Ada Lind was born in Visby",
        "code": "lamp = 3\n\n\nlit = True",
        "summary": "Visby",
        "nothing": EMPTY_ANSWER,
        "no form": EMPTY_ANSWER,
        "thoughts": "Visby",
    }
    assert {name: one["calls"] for name, one in found.items() if one["calls"] > 1} == {
        "second call": 2,
        "answer refused": 2,
        "no form": 2,
    }
    assert [quote[4] for quote in found["summary"]["quotes"]] == [False]
    assert found["code"]["quotes"][0][2:4] == (130, 151)
