"""What an answerer's objects answer to the requests of flows, and how a build bounds its calls."""

import asyncio
import contextvars
import threading
from dataclasses import dataclass

import pytest

from longrag.calls import Generate, arun, ask, run
from longrag.calls.flows import async_method, in_thread, together
from longrag.calls.limit import CallLimit
from longrag.calls.request_driver import RequestDriver
from longrag.calls.requests import Compute
from longrag.errors import CallLimitError
from longrag.journal import Journal
from tests.fakes import PATIENCE


@dataclass(frozen=True, slots=True)
class Measure:
    """A request that only this module knows, answered by an object without async methods."""

    query: str
    texts: tuple[str, ...]


class Model:
    """Has a sync and an async method, and one that is only sync."""

    def __init__(self):
        self.calls = []

    def write(self, prompt):
        self.calls.append(("write", threading.current_thread() is threading.main_thread()))
        return prompt.upper()

    async def awrite(self, prompt):
        self.calls.append(("awrite", True))
        return prompt.upper()

    def score(self, query, texts):
        self.calls.append(("score", threading.current_thread() is threading.main_thread()))
        return [float(text.count(query)) for text in texts]


class Answers:
    """Answers by a model."""

    def __init__(self, model):
        self.model = model

    def answer(self, request):
        if isinstance(request, Measure):
            return self.model.score(request.query, request.texts)
        return self.model.write(request.prompt)

    async def aanswer(self, request):
        if isinstance(request, Measure):
            return await async_method(self.model, "score")(request.query, request.texts)
        return await async_method(self.model, "write")(request.prompt)


def both():
    return (yield from together([ask(Generate("a")), ask(Measure("x", ("xx", "y")))]))


async def test_an_object_is_asked_by_its_own_methods_and_in_a_thread_where_it_has_none():
    model = Model()
    assert RequestDriver(Answers(model)).run(both()) == ["A", [2.0, 0.0]]
    assert model.calls == [("write", True), ("score", True)]
    model.calls.clear()
    assert await RequestDriver(Answers(model)).arun(both()) == ["A", [2.0, 0.0]]
    assert model.calls == [("awrite", True), ("score", False)]


@pytest.mark.parametrize("journalled", [False, True])
async def test_work_that_would_hold_up_the_event_loop_has_as_many_threads_as_calls(
    tmp_path, journalled
):
    barrier, values = threading.Barrier(40, timeout=20), []
    variable = contextvars.ContextVar("variable", default="unset")

    def write(prompt):
        barrier.wait()
        values.append(variable.get())
        return prompt

    async def aanswer(request):
        return await in_thread(write, request.prompt)

    variable.set("the caller's")
    # More than the event loop's own threads are on any machine of this size.
    prompts = [f"prompt {number}" for number in range(40)]
    flow = together(ask(Generate(prompt)) for prompt in prompts)
    with Journal(tmp_path / "journal") as journal:
        kept = journal if journalled else None
        assert await arun(flow, aanswer, max_in_flight=40, journal=kept) == prompts
    assert values == ["the caller's"] * 40


async def test_work_in_a_thread_may_drive_flows_of_its_own():
    async def inner(request):
        return await in_thread(str.upper, request.prompt)

    def outer_work(prompt):
        return asyncio.run(arun(ask(Generate(prompt)), inner))

    async def outer(request):
        return await in_thread(outer_work, request.prompt)

    flow = together(ask(Generate(prompt)) for prompt in "abcd")
    found = await asyncio.wait_for(arun(flow, outer, max_in_flight=2), PATIENCE)
    assert found == ["A", "B", "C", "D"]


async def test_the_limit_counts_what_is_paid_for_and_not_what_a_journal_answers(tmp_path):
    limit = CallLimit(2)
    with Journal(tmp_path / "journal") as journal:
        driver = RequestDriver(Answers(Model()), limit=limit, journal=journal)
        assert driver.run(ask(Generate("a"))) == "A"
        assert driver.run(ask(Generate("a"))) == "A"
        assert await driver.arun(ask(Generate("b"))) == "B"
        assert limit.spent == 2
        assert driver.run(ask(Measure("x", ("x",)))) == [1.0]
        with pytest.raises(CallLimitError, match="max_llm_calls=2"):
            driver.run(ask(Generate("c")))
        assert driver.run(ask(Generate("b"))) == "B"


def test_a_lock_lets_one_request_of_its_class_be_answered_at_a_time():
    inside, most = [], []

    class Local:
        def answer(self, request):
            inside.append(request)
            most.append(len(inside))
            threading.Event().wait(0.005)
            inside.pop()
            return [0.0]

    flows = [ask(Measure(str(number), ("t",))) for number in range(12)]
    driver = RequestDriver(Local(), max_in_flight=6, locks={Measure: threading.Lock()})
    assert driver.run(together(flows)) == [[0.0]] * 12
    assert most == [1] * 12


async def test_own_work_of_a_flow_reaches_no_answerer():
    assert RequestDriver(None).run(ask(Compute("", lambda: "done"))) == "done"
    assert await RequestDriver(None).arun(ask(Compute("", lambda: "done"))) == "done"


async def test_cancelling_ends_all_calls_in_flight_before_it_closes_the_flow():
    events, waiting = [], asyncio.Event()

    def flow():
        try:
            yield tuple(Generate(str(number)) for number in range(4))
        finally:
            events.append("closed")

    async def forever(request):
        events.append("called")
        if events.count("called") == 3:
            waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            events.append("ended")

    task = asyncio.create_task(arun(flow(), forever, max_in_flight=3))
    await asyncio.wait_for(waiting.wait(), PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert events == [*["called"] * 3, *["ended"] * 3, "closed"]


def test_an_interrupt_wakes_what_waits_and_closes_the_flow():
    woken, closed, begun = threading.Event(), [], threading.Event()

    def flow():
        try:
            yield Generate("waits"), Generate("bad")
        finally:
            closed.append(True)

    def answer(request):
        if request.prompt == "bad":
            assert begun.wait(PATIENCE)
            raise KeyboardInterrupt
        begun.set()
        assert woken.wait(PATIENCE)

    with pytest.raises(KeyboardInterrupt):
        run(flow(), answer, max_in_flight=2, on_interrupt=woken.set)
    assert closed == [True]
