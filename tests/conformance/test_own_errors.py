"""An error of the user's own model reaches the caller as it is, with a short traceback."""

from __future__ import annotations

import asyncio
import traceback
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import LLM
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import CustomLLM, LLMMetadata
from llama_index.core.schema import TextNode

import langchain_longrag as lc
import llama_index_longrag as li

ROOT = Path(__file__).parents[2]
OWN = tuple(str(ROOT / name) for name in ("longrag", "llama_index_longrag", "langchain_longrag"))
QUESTION = "When was the weir built?"
TEXTS = ["The mill stands at the weir.", "The weir was built in 1312."]
MOST_FRAMES = 10


class NoKeyError(Exception):
    """What the client of a provider raises."""


class LangChainModel(Embeddings):
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[float(len(text)), 1.0] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        raise NoKeyError(text)

    async def aembed_query(self, text: str) -> list[float]:
        raise NoKeyError(text)


class LlamaIndexModel(BaseEmbedding):
    def _get_text_embedding(self, text: str) -> list[float]:
        return [float(len(text)), 1.0]

    def _get_query_embedding(self, query: str) -> list[float]:
        raise NoKeyError(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        raise NoKeyError(query)


class LangChainLLM(LLM):
    @property
    def _llm_type(self) -> str:
        return "no key"

    def _call(self, prompt: str, *args: Any, **kwargs: Any) -> str:
        raise NoKeyError(prompt)

    async def _acall(self, prompt: str, *args: Any, **kwargs: Any) -> str:
        raise NoKeyError(prompt)


class LlamaIndexLLM(CustomLLM):
    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NoKeyError(prompt)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NoKeyError(prompt)


def langchain() -> lc.MaxPRetriever:
    documents = [Document(text, metadata={"unit_id": text}) for text in TEXTS]
    return lc.MaxPRetriever(documents=documents, embedding=LangChainModel())


def llama_index() -> li.MaxPRetriever:
    nodes = [TextNode(text=text, metadata={"unit_id": text}) for text in TEXTS]
    return li.MaxPRetriever(nodes=nodes, embed_model=LlamaIndexModel())


EMBEDDING = {
    "LangChain sync": lambda: langchain().invoke(QUESTION),
    "LangChain async": lambda: asyncio.run(langchain().ainvoke(QUESTION)),
    "LlamaIndex sync": lambda: llama_index().retrieve(QUESTION),
    "LlamaIndex async": lambda: asyncio.run(llama_index().aretrieve(QUESTION)),
}
GENERATION = {
    "LangChain sync": lambda: lc_hyde().invoke(QUESTION),
    "LangChain async": lambda: asyncio.run(lc_hyde().ainvoke(QUESTION)),
    "LlamaIndex sync": lambda: li.HydeTransform(LlamaIndexLLM()).run(QUESTION),
    "LlamaIndex async": lambda: asyncio.run(li.HydeTransform(LlamaIndexLLM()).arun(QUESTION)),
}


def lc_hyde() -> lc.QueryTransformRetriever:
    return lc.QueryTransformRetriever(retriever=langchain(), llm=LangChainLLM())


@pytest.mark.parametrize("way", EMBEDDING)
def test_an_error_of_an_embedding_model_keeps_its_type_and_passes_few_frames(way):
    with pytest.raises(NoKeyError, match=QUESTION[:-1]) as caught:
        EMBEDDING[way]()
    frames = [
        frame
        for frame in traceback.extract_tb(caught.value.__traceback__)
        if frame.filename.startswith(OWN)
    ]
    assert len(frames) <= MOST_FRAMES, frames
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("way", GENERATION)
def test_an_error_of_a_language_model_keeps_its_type(way):
    with pytest.raises(NoKeyError):
        GENERATION[way]()
