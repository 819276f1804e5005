"""Both turns of the reader stream, sync and async, and streams are closed."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core.base.response.schema import (
    AsyncStreamingResponse,
    StreamingResponse,
)

from tests.llama_index_longrag.synthesis.reading import (
    LONG,
    QUESTION,
    SHORT,
    both,
    reader,
    synthesize,
)


def test_both_turns_stream(found):
    synthesizer, llm = reader(LONG, f"{SHORT} of course", streaming=True)
    response = synthesizer.synthesize(QUESTION, found)
    assert isinstance(response, StreamingResponse)
    assert llm.prompts == []
    long_tokens = [*response.long_answer_gen()]
    assert len(long_tokens) > 5
    assert "".join(long_tokens) == LONG
    assert response.metadata["long_answer"] == LONG
    assert [*response.response_gen] == ["1530", " of", " course"]
    assert len(llm.prompts) == 2
    assert [*response.long_answer_gen()] == []
    assert response.source_nodes == found


async def test_both_turns_stream_asynchronously(found):
    synthesizer, llm = reader(LONG, f"{SHORT} of course", streaming=True)
    response = await synthesizer.asynthesize(QUESTION, found)
    assert isinstance(response, AsyncStreamingResponse)
    assert llm.prompts == []
    long_tokens = [token async for token in response.long_answer_gen()]
    assert "".join(long_tokens) == LONG
    assert response.metadata["long_answer"] == LONG
    assert [token async for token in response.async_response_gen()] == ["1530", " of", " course"]
    assert [token async for token in response.long_answer_gen()] == []
    assert str(await response.get_response()) == "1530 of course"


def test_the_answer_alone_can_be_read_from_a_stream(found):
    synthesizer, _ = reader(LONG, SHORT, streaming=True)
    response = synthesizer.synthesize(QUESTION, found)
    assert str(response) == SHORT
    assert response.metadata["long_answer"] == LONG
    synthesizer, _ = reader(LONG, SHORT, streaming=True)
    response = synthesizer.synthesize(QUESTION, found)
    for _ in response.long_answer_gen():
        break
    assert "".join(response.response_gen) == SHORT
    synthesizer, _ = reader(SHORT, streaming=True, one_turn=10_000)
    response = synthesizer.synthesize(QUESTION, found)
    assert [*response.long_answer_gen()] == []
    assert str(response) == SHORT
    assert response.get_response().response == SHORT


async def test_the_answer_alone_can_be_read_from_an_async_stream(found):
    synthesizer, _ = reader(LONG, SHORT, streaming=True)
    response = await synthesizer.asynthesize(QUESTION, found)
    assert str(await response.get_response()) == SHORT
    assert response.metadata["long_answer"] == LONG
    synthesizer, _ = reader(LONG, SHORT, streaming=True)
    response = await synthesizer.asynthesize(QUESTION, found)
    assert [token async for token in response.response_gen] == [SHORT]


def test_a_stream_given_up_early_is_closed(found):
    for turn in (0, 1):
        synthesizer, llm = reader(LONG, "one two three four", streaming=True)
        response = synthesizer.synthesize(QUESTION, found)
        if turn == 0:
            next(response.long_answer_gen())
        else:
            assert next(response.response_gen) == "one"
        assert llm.closed[-1] is False
        response.response_gen.close()
        assert llm.closed == [True] * (turn + 1)
        assert [*response.response_gen] == []


async def test_an_async_stream_given_up_early_is_closed(found):
    for turn in (0, 1):
        synthesizer, llm = reader(LONG, "one two three four", streaming=True)
        response = await synthesizer.asynthesize(QUESTION, found)
        if turn == 0:
            await anext(response.long_answer_gen())
        else:
            assert await anext(response.response_gen) == "one"
        assert llm.closed[-1] is False
        await response.response_gen.aclose()
        for _ in range(5):
            await asyncio.sleep(0)
        assert llm.closed == [True] * (turn + 1)
        assert [token async for token in response.response_gen] == []


def test_a_stream_thrown_into_closes_the_model_s(found):
    synthesizer, llm = reader(LONG, SHORT, streaming=True)
    response = synthesizer.synthesize(QUESTION, found)
    next(response.long_answer_gen())
    with pytest.raises(KeyError, match="stop"):
        response.response_gen.throw(KeyError("stop"))
    assert llm.closed == [True]


def test_tags_a_model_repeats_are_left_out_streamed_or_not(found):
    tagged = (f"<long_answer>\n{LONG}\n</long_answer>", f"<short_answer> {SHORT} </short_answer>\n")
    for streaming in (False, True):
        synthesizer, llm = reader(*tagged, streaming=streaming)
        response = synthesizer.synthesize(QUESTION, found)
        assert str(response) == SHORT
        assert response.metadata["long_answer"] == LONG
        assert "&lt;long_answer>" not in llm.prompts[1]


async def shown_before_the_end(tokens, shown):
    async for token in tokens:
        shown.append(token)


async def as_async(tokens):
    for token in tokens:
        yield token


@both
def test_a_stream_that_breaks_raises_after_what_it_gave(found, use_async):
    synthesizer, llm = reader(LONG, SHORT, streaming=True, breaks_after=3)
    response = synthesize(synthesizer, found, use_async=use_async)
    tokens = response.long_answer_gen()
    shown = []
    with pytest.raises(ConnectionError, match="the stream broke"):
        asyncio.run(shown_before_the_end(tokens if use_async else as_async(tokens), shown))
    assert "".join(shown) == "It was built"
    assert llm.closed == [True]
    assert "long_answer" not in response.metadata
