"""What a framework's objects answer to the requests of flows."""

import asyncio
import contextvars
import threading
from dataclasses import dataclass
from functools import partial

import pytest

from longrag.calls import CallLimit, Compute, Embed, Generate, ask, together
from longrag.errors import CallLimitError
from longrag.integration.answering import Answerer, MethodCall, Together, aperform, perform
from longrag.journal import Journal


class Model:
    """Has a sync and an async method, and one that is only sync."""

    def __init__(self):
        self.calls = []

    def write(self, prompt, suffix=""):
        self.calls.append(("write", threading.current_thread() is threading.main_thread()))
        return f"{prompt}{suffix}"

    async def awrite(self, prompt, suffix=""):
        self.calls.append(("awrite", True))
        return f"{prompt}{suffix}"

    def score(self, query, texts):
        self.calls.append(("score", threading.current_thread() is threading.main_thread()))
        return [float(text.count(query)) for text in texts]


def generate(model, request, blocking=False):
    reply = yield MethodCall(model, "write", (request.prompt,), {"suffix": "!"}, blocking)
    again = yield MethodCall(model, "write", (reply,), blocking=blocking)
    return again.upper()


def score(model, request):
    return (yield MethodCall(model, "score", (request.query, request.texts)))


@dataclass(frozen=True, slots=True)
class Measure:
    """A request that only this module knows, answered by an object without async methods."""

    query: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Special(Generate):
    extra: str = ""


def answerer(model, **settings):
    handlers = {Generate: partial(generate, model), Measure: partial(score, model)}
    return Answerer(handlers, **settings)


def both():
    found = yield from together([ask(Generate("a")), ask(Measure("x", ("xx", "y")))])
    return found


async def test_one_table_answers_sync_and_async_by_each_objects_own_methods():
    model = Model()
    assert answerer(model).run(both()) == ["A!", [2.0, 0.0]]
    assert model.calls == [("write", True), ("write", True), ("score", True)]
    model.calls.clear()
    assert await answerer(model).arun(both()) == ["A!", [2.0, 0.0]]
    # What has no async method runs in a thread.
    assert model.calls == [("awrite", True), ("awrite", True), ("score", False)]


async def test_a_method_that_would_hold_up_the_event_loop_runs_in_as_many_threads_as_calls():
    barrier, values = threading.Barrier(40, timeout=20), []
    variable = contextvars.ContextVar("variable", default="unset")

    class Slow:
        def write(self, prompt):
            barrier.wait()
            values.append(variable.get())
            return prompt

        async def awrite(self, prompt):
            raise AssertionError("it would hold up the event loop")

    def handler(request):
        return (yield MethodCall(Slow(), "write", (request.prompt,), blocking=True))

    variable.set("the caller's")
    # More than the event loop's own threads are on any machine of this size.
    own = Answerer({Generate: handler}, max_in_flight=40)
    prompts = [f"prompt {number}" for number in range(40)]
    assert await own.arun(together(ask(Generate(prompt)) for prompt in prompts)) == prompts
    assert values == ["the caller's"] * 40


async def test_a_subclass_of_a_request_is_answered_by_its_nearest_handler():
    model = Model()

    def special(request):
        yield from ()
        return request.extra

    own = Answerer({Generate: partial(generate, model), Special: special})
    assert own.run(ask(Special("p", extra="own"))) == "own"
    assert answerer(model).run(ask(Special("p", extra="own"))) == "P!"


@pytest.mark.parametrize("request_", [Embed(("a",), "query"), Generate("p")])
async def test_a_request_without_a_handler_fails_in_the_flow_that_asked(request_):
    def flow():
        (outcome,) = yield (request_,)
        return type(outcome).__name__, str(outcome)

    expected = ("NotImplementedError", type(request_).__name__)
    assert Answerer({}).run(flow()) == expected
    assert await Answerer({}).arun(flow()) == expected


async def test_a_handler_sees_what_a_call_raises_and_may_go_on():
    class Broken:
        def write(self, prompt):
            raise RuntimeError("no answer")

        def other(self, prompt):
            return f"other {prompt}"

    def handler(request):
        try:
            return (yield MethodCall(Broken(), "write", (request.prompt,)))
        except RuntimeError:
            return (yield MethodCall(Broken(), "other", (request.prompt,)))

    own = Answerer({Generate: handler})
    assert own.run(ask(Generate("p"))) == "other p"
    assert await own.arun(ask(Generate("p"))) == "other p"


async def test_the_limit_counts_what_is_paid_for_and_not_what_a_journal_answers(tmp_path):
    model, limit = Model(), CallLimit(2)
    with Journal(tmp_path / "journal") as journal:
        own = answerer(model, limit=limit, journal=journal)
        assert own.run(ask(Generate("a"))) == "A!"
        assert own.run(ask(Generate("a"))) == "A!"
        assert await own.arun(ask(Generate("b"))) == "B!"
        assert limit.spent == 2
        assert own.run(ask(Measure("x", ("x",)))) == [1.0]
        with pytest.raises(CallLimitError, match="max_llm_calls=2"):
            own.run(ask(Generate("c")))
        assert own.run(ask(Generate("b"))) == "B!"


def test_a_lock_lets_one_request_of_its_class_be_answered_at_a_time():
    inside, most, lock = [], [], threading.Lock()

    class Local:
        def score(self, query, texts):
            inside.append(query)
            most.append(len(inside))
            threading.Event().wait(0.005)
            inside.pop()
            return [0.0]

    flows = [ask(Measure(str(number), ("t",))) for number in range(12)]
    own = Answerer({Measure: partial(score, Local())}, max_in_flight=6, locks={Measure: lock})
    assert own.run(together(flows)) == [[0.0]] * 12
    assert most == [1] * 12


async def test_calls_are_closed_when_they_end_fail_or_are_cancelled():
    closed, waiting = [], asyncio.Event()

    class Target:
        def fail(self):
            raise ValueError("failed")

        async def await_forever(self):
            waiting.set()
            await asyncio.Event().wait()

        aforever = await_forever

    def calls(name):
        try:
            yield MethodCall(Target(), name)
        finally:
            closed.append(name)

    with pytest.raises(ValueError, match="failed"):
        perform(calls("fail"))
    task = asyncio.create_task(aperform(calls("forever")))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == ["fail", "forever"]


async def test_own_work_of_a_flow_is_done_without_a_handler():
    assert Answerer({}).run(ask(Compute("", lambda: "done"))) == "done"
    assert await Answerer({}).arun(ask(Compute("", lambda: "done"))) == "done"


async def test_calls_that_do_not_depend_on_one_another_are_made_at_the_same_time():
    door = asyncio.Barrier(3) if hasattr(asyncio, "Barrier") else None
    order = []

    class Remote:
        def get(self, number):
            order.append(number)
            return number * 10

        async def aget(self, number):
            if door is not None:
                # Opens when all three are waiting.
                await asyncio.wait_for(door.wait(), 60)
            return number * 10

    def calls():
        remote = Remote()
        together = Together(tuple(MethodCall(remote, "get", (n,)) for n in (3, 1, 2)))
        return (yield together)

    assert perform(calls()) == [30, 10, 20]
    assert order == [3, 1, 2]
    assert await aperform(calls()) == [30, 10, 20]


async def test_the_error_of_one_of_several_calls_is_thrown_into_the_generator():
    class Remote:
        def get(self, number):
            if number == 1:
                raise ConnectionError("gone")
            return number

    def calls():
        remote = Remote()
        try:
            yield Together(tuple(MethodCall(remote, "get", (n,)) for n in range(3)))
        except ConnectionError as error:
            return str(error)

    assert perform(calls()) == "gone"
    assert await aperform(calls()) == "gone"
