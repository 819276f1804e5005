"""ChatRiches in threads, loops and streams: it stops when cancelled."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from longrag.errors import (
    GenerationError,
)
from tests.fakes import Door
from tests.langchain_longrag.decoding.chatting import QUESTION, WHOLE, chat


async def test_it_answers_inside_a_running_loop_and_from_many_threads():
    model = chat()
    assert model.invoke(QUESTION).text == WHOLE
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: model.invoke(QUESTION).text, range(12)))
    assert found == [WHOLE] * 12
    assert [one.text for one in await model.abatch([QUESTION] * 5)] == [WHOLE] * 5


async def still(model):
    """Whether the model is not called again."""
    calls = model.decoder.language_model.calls
    await asyncio.sleep(0.1)
    return model.decoder.language_model.calls == calls


async def test_a_cancelled_call_stops_the_model():
    door = Door()
    model = chat(door=door)
    task = asyncio.create_task(model.ainvoke(QUESTION))
    await door.someone_waits()
    task.cancel()
    await asyncio.sleep(0.01)
    door.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.decoder.language_model.calls == 1


async def test_a_stream_nobody_reads_any_more_stops_the_model():
    model = chat(pause=0.005, require_quote=False)
    pieces = model.astream(QUESTION)
    assert (await anext(pieces)).text == " "
    await pieces.aclose()
    assert await still(model)
    pieces = model.stream(QUESTION)
    next(pieces)
    pieces.close()
    assert await still(model)
    assert model.decoder.language_model.calls < 20


async def test_the_loop_is_free_while_the_model_works():
    door = Door()
    message, _ = await asyncio.gather(chat(door=door).ainvoke(QUESTION), door.open())
    assert message.text == WHOLE


async def test_what_the_model_raises_is_raised():
    def script(question):
        raise GenerationError("out of order")

    model = chat(script)
    with pytest.raises(GenerationError, match="out of order"):
        model.invoke(QUESTION)
    with pytest.raises(GenerationError, match="out of order"):
        await model.ainvoke(QUESTION)
    with pytest.raises(GenerationError, match="out of order"):
        [piece async for piece in model.astream(QUESTION)]
