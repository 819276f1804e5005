"""The frameworks' own OpenAI clients on a server that speaks OpenAI's protocol."""

from __future__ import annotations

import asyncio

import pytest

from tests.openai_server import OpenAIServer, ScriptedWriter

PAGE = "Harrow Mill is a watermill on the river Selm. The mill burned down in 1684."
QUESTION = "When did Harrow Mill burn down?"
LONG = "Harrow Mill, a watermill on the Selm, burned down in 1684."
SHORT = "in 1684"


def reply(prompt: str) -> str:
    """Reply to each prompt of the package in the way small models do."""
    if "<short_answer>" in prompt:
        return f"The answer is: {SHORT}"
    if "<document" in prompt:
        return LONG
    if "<passage" in prompt:
        return "Sure, here is the summary:\n\nThe mill burned down in 1684. It was"
    return "A mill burned down."


@pytest.fixture
def server():
    with OpenAIServer(ScriptedWriter(reply)) as served:
        yield served


def llama_llm(server, **settings):
    from llama_index.llms.openai_like import OpenAILike

    given = {
        "is_chat_model": True,
        "context_window": 4096,
        "max_tokens": 64,
        "max_retries": 0,
        "timeout": 30,
    }
    return OpenAILike(
        model=server.model, api_base=server.url, api_key="none", reuse_client=False,
        **{**given, **settings},
    )  # fmt: skip


def chat_model(server, **settings):
    from langchain_openai import ChatOpenAI

    given = {"max_retries": 0, "timeout": 30, "max_tokens": 64}
    return ChatOpenAI(
        model=server.model, base_url=server.url, api_key="none", **{**given, **settings}
    )


class LlamaReader:
    """The two-turn reader of LlamaIndex over a server."""

    def __init__(self, server, *, one_turn=0, **settings):
        self.llm = llama_llm(server, **settings)
        self.one_turn = one_turn

    def _synthesizer(self, *, streaming=False):
        from llama_index_longrag import TwoTurnSynthesizer

        return TwoTurnSynthesizer(
            self.llm,
            streaming=streaming,
            one_turn_max_tokens=self.one_turn,
            tokenizer=str.split,
        )

    def _given(self):
        from llama_index.core.schema import NodeWithScore, TextNode

        return QUESTION, [NodeWithScore(node=TextNode(text=PAGE, id_="mill"), score=1.0)]

    def read(self):
        response = self._synthesizer().synthesize(*self._given())
        return response.metadata["long_answer"], response.response

    def aread(self):
        response = asyncio.run(self._synthesizer().asynthesize(*self._given()))
        return response.metadata["long_answer"], response.response

    def stream(self):
        response = self._synthesizer(streaming=True).synthesize(*self._given())
        for piece in response.long_answer_gen():
            yield "long_answer", piece
        for piece in response.response_gen:
            yield "answer", piece

    def astream(self):
        async def collect():
            response = await self._synthesizer(streaming=True).asynthesize(*self._given())
            found = [("long_answer", piece) async for piece in response.long_answer_gen()]
            return found + [("answer", piece) async for piece in response.response_gen]

        return asyncio.run(collect())


class LangChainReader:
    """The two-turn reader of LangChain over a server."""

    def __init__(self, server, *, one_turn=0, **settings):
        from langchain_core.documents import Document
        from langchain_core.runnables import RunnableLambda

        from langchain_longrag import create_longrag_chain

        pages = RunnableLambda(lambda _: [Document(PAGE, id="mill")])
        self.llm = chat_model(server, **settings)
        self.chain = create_longrag_chain(pages, self.llm, one_turn_max_tokens=one_turn)

    def read(self):
        found = self.chain.invoke({"input": QUESTION})
        return found["long_answer"], found["answer"]

    def aread(self):
        found = asyncio.run(self.chain.ainvoke({"input": QUESTION}))
        return found["long_answer"], found["answer"]

    def stream(self):
        for chunk in self.chain.stream({"input": QUESTION}):
            yield from self._told(chunk)

    def astream(self):
        async def collect():
            return [chunk async for chunk in self.chain.astream({"input": QUESTION})]

        return [told for chunk in asyncio.run(collect()) for told in self._told(chunk)]

    @staticmethod
    def _told(chunk):
        return [(key, chunk[key]) for key in ("long_answer", "answer") if chunk.get(key)]


@pytest.fixture(params=[LlamaReader, LangChainReader], ids=["llama_index", "langchain"])
def framework(request):
    return request.param
