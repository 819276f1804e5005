"""Async calls of a multimodal index find and make what the sync ones do."""

import asyncio
import threading

import pytest

from longrag.errors import (
    GenerationError,
    InvalidParameterError,
)
from longrag.retrieval import MediaIndex
from tests.images import ColourEmbedder, flag
from tests.longrag.retrieval.colours import QUERIES, items


class AsyncColours(ColourEmbedder):
    """Embeds with its async calls where a loop runs, and never with the sync ones there."""

    def __init__(self):
        super().__init__()
        self.how = []

    async def aembed_images(self, images):
        await asyncio.sleep(0)
        self.how.append("images")
        return super().embed_images(images)

    async def aembed_texts(self, texts):
        await asyncio.sleep(0)
        self.how.append("texts")
        return super().embed_texts(texts)


class ThreadColours(ColourEmbedder):
    """Has no async calls; remembers the threads it worked in."""

    def __init__(self):
        super().__init__()
        self.threads = set()

    def embed_images(self, images):
        self.threads.add(threading.get_ident())
        return super().embed_images(images)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("generator", ["sync", "async"])
async def test_async_calls_find_and_make_what_the_others_do(keep, generator):
    def make(query):
        return flag("green", "blue") if isinstance(query, str) else "Made."

    async def make_later(query):
        await asyncio.sleep(0)
        return make(query)

    index, other = MediaIndex(ColourEmbedder(), items()), MediaIndex(AsyncColours())
    await other.aadd(items())
    for query, wanted, threshold in QUERIES:
        settings_ = {"wanted": wanted, "threshold": threshold}
        assert await other.anearest(query, wanted=wanted) == index.nearest(query, wanted=wanted)
        assert await other.afind(query, **settings_) == index.find(query, **settings_)
        found = await other.afind_or_generate(
            query, **settings_, generate=make if generator == "sync" else make_later, keep=keep
        )
        assert found == index.find_or_generate(query, **settings_, generate=make, keep=keep)
    assert other.items == index.items
    assert len(other) == (6 if keep else 4)
    assert set(other._embedder.how) == {"texts", "images"}


async def test_what_is_not_async_has_a_thread_of_its_own():
    made_in = []

    def describe(image):
        made_in.append(threading.get_ident())
        return "Blue."

    embedder = ThreadColours()
    index = MediaIndex(embedder)
    await index.aadd(items())
    await index.afind_or_generate(flag("blue"), wanted="caption", threshold=0.9, generate=describe)
    assert threading.get_ident() not in {*made_in, *embedder.threads}
    assert len(made_in) == 1


async def test_an_object_whose_call_is_async_generates():
    class Draws:
        async def __call__(self, text):
            await asyncio.sleep(0)
            return flag("blue")

    found = await MediaIndex(ColourEmbedder()).afind_or_generate(
        "blue", wanted="image", threshold=0.9, generate=Draws()
    )
    assert found.value == flag("blue")


def test_an_async_generator_is_refused_where_nothing_awaits_it():
    async def draw(text):
        return flag("blue")

    with pytest.raises(InvalidParameterError, match="a function that is not async"):
        MediaIndex(ColourEmbedder()).find_or_generate(
            "blue", wanted="image", threshold=0.9, generate=draw
        )


async def test_a_generator_that_fails_or_gives_nothing_does_so_in_async_calls():
    async def failing(query):
        raise TimeoutError("no generator")

    index = MediaIndex(ColourEmbedder(), items())
    arguments = {"wanted": "image", "threshold": 0.99, "keep": True}
    with pytest.raises(TimeoutError, match="no generator"):
        await index.afind_or_generate("green and blue", generate=failing, **arguments)
    with pytest.raises(GenerationError, match="returned None"):
        await index.afind_or_generate("green and blue", generate=lambda text: None, **arguments)
    with pytest.raises(InvalidParameterError, match="threshold"):
        await index.afind("red", wanted="image", threshold=2)
    assert len(index) == 4
