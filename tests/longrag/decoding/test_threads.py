"""Decoding off an event loop: it is left to others, and what is cancelled stops."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from contextvars import ContextVar

import pytest

from longrag.calls.flows import in_one_thread
from longrag.decoding import RichesDecoder
from longrag.decoding.threads import in_thread
from longrag.errors import GenerationError
from longrag.indexing import KeyIndex
from tests.fakes import PATIENCE
from tests.tiny_models import CharacterTokenizer, TableModel, random_table

TOKENIZER = CharacterTokenizer("ab .<>xyz")
CALLER: ContextVar[str] = ContextVar("CALLER", default="nobody")


class Gated(TableModel):
    """A model whose calls wait for the gate."""

    def __init__(self):
        super().__init__(TOKENIZER, self._wait)
        self._table = random_table(TOKENIZER.vocab_size, 3)
        self.called, self.gate = threading.Event(), threading.Event()

    def _wait(self, prefix):
        self.called.set()
        assert self.gate.wait(PATIENCE)
        return self._table(prefix)


@pytest.fixture
def model():
    return Gated()


@pytest.fixture
def decoder(model):
    index = KeyIndex.from_keys(["ab.", "bb."], tokenizer=TOKENIZER)
    return RichesDecoder(model, index, max_new_tokens=12, beam_size=2)


async def until_called(model, task):
    while not (model.called.is_set() or task.done()):
        await asyncio.sleep(0.001)
    assert not task.done()


# a decoder in a thread


async def test_the_work_is_done_in_a_thread_under_the_callers_context(decoder, model):
    model.gate.set()
    CALLER.set("me")
    seen = []

    def work(own):
        seen.append((threading.get_ident(), CALLER.get()))
        return own.generate("a")

    assert await in_thread(decoder, work) == decoder.generate("a")
    ((thread, caller),) = seen
    assert (thread != threading.get_ident(), caller) == (True, "me")


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    "work",
    [
        lambda own: own.generate("a"),
        lambda own: list(own.keys("a")),
        lambda own: [own.batch(["a", "b"]) for _ in range(9)],
    ],
)
async def test_a_cancelled_caller_waits_for_one_call_and_no_more_follow(
    decoder, model, work, times
):
    raised = []

    def noted(own):
        try:
            return work(own)
        except GenerationError as error:
            raised.append(str(error))
            raise

    task = asyncio.create_task(in_thread(decoder, noted))
    await until_called(model, task)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.01)
    assert not task.done()
    model.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.calls == 1
    assert raised == ["decoding was stopped before it was over"]
    # Only that caller has stopped.
    assert decoder.generate("a").usage.calls > 1


async def test_one_callers_cancellation_leaves_another_alone(decoder, model):
    tasks = [asyncio.create_task(in_thread(decoder, lambda own: own.generate("a"))) for _ in "ab"]
    await until_called(model, tasks[0])
    tasks[0].cancel()
    model.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert await tasks[1] == decoder.generate("a")


async def test_what_the_work_raises_is_raised(decoder):
    with pytest.raises(ZeroDivisionError):
        await in_thread(decoder, lambda own: 1 // 0)


# a generator in one thread


def counting(upto, seen):
    """Yield numbers, and note where each step runs and which context the last one left."""
    try:
        for number in range(upto):
            seen.append((threading.get_ident(), CALLER.get()))
            CALLER.set(str(number))
            yield number
    finally:
        seen.append((threading.get_ident(), "closed"))


async def test_every_step_is_in_the_same_thread_and_context():
    CALLER.set("me")
    seen = []
    assert [number async for number in in_one_thread(counting(3, seen))] == [0, 1, 2]
    assert [caller for _, caller in seen] == ["me", "0", "1", "closed"]
    assert len({thread for thread, _ in seen}) == 1
    assert seen[0][0] != threading.get_ident()
    assert CALLER.get() == "me"


async def test_nothing_and_empty_values_are_yielded_like_others():
    values = [None, 0, "", ()]
    assert [value async for value in in_one_thread(one for one in values)] == values
    assert [value async for value in in_one_thread(one for one in ())] == []


async def test_who_closes_the_stream_closes_the_generator_in_its_thread():
    seen = []
    async with aclosing(in_one_thread(counting(9, seen))) as numbers:
        assert await anext(numbers) == 0
    assert [what for _, what in seen] == ["nobody", "closed"]
    assert len({thread for thread, _ in seen}) == 1


@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancelled_reader_waits_for_one_step_and_no_more_follow(decoder, model, times):
    async def read():
        async with aclosing(in_one_thread(decoder.stream("a"))) as pieces:
            return [piece async for piece in pieces]

    task = asyncio.create_task(read())
    await until_called(model, task)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.01)
    assert not task.done()
    model.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.calls == 1


async def test_what_a_step_raises_is_raised_and_ends_the_stream():
    def steps():
        yield 1
        raise GenerationError("out of order")

    numbers = in_one_thread(steps())
    assert await anext(numbers) == 1
    with pytest.raises(GenerationError, match="out of order"):
        await anext(numbers)
    with pytest.raises(StopAsyncIteration):
        await anext(numbers)


async def test_no_thread_is_left_behind():
    before = threading.active_count()
    for _ in range(20):
        async with aclosing(in_one_thread(counting(9, []))) as numbers:
            await anext(numbers)
    for _ in range(int(PATIENCE / 0.01)):
        if threading.active_count() <= before:
            break
        await asyncio.sleep(0.01)
    assert threading.active_count() <= before
