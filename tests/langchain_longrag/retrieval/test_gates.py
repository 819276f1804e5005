"""The gate: which branch is taken, by what, and how it streams."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_longrag import answer_alone, create_longrag_chain, create_query_gate
from longrag.errors import GenerationError, InvalidParameterError
from longrag.retrieval.query_classifier import Gate
from tests.fakes.langchain import replying, scripted
from tests.langchain_longrag.searching import AsyncSeen, Plain, Seen, seeing

ALONE = "Translate into French: The mill grinds rye."
RETRIEVED = "When was the weir of Leiden built?"


class Asking:
    """Needs retrieval where there is a question mark."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def needs_retrieval(self, query: str) -> bool:
        self.threads.append(threading.get_ident())
        return "?" in query


def gate(**settings: Any) -> Runnable[Any, str]:
    return create_query_gate(
        RunnableLambda(lambda _: "searched"), RunnableLambda(lambda _: "alone"), **settings
    )


async def test_the_classifier_of_the_package_decides_by_default():
    for inputs, expected in (
        (RETRIEVED, "searched"),
        (ALONE, "alone"),
        ({"input": RETRIEVED}, "searched"),
        ({"input": ALONE, "user": 1}, "alone"),
        (HumanMessage(ALONE), "alone"),
    ):
        assert gate().invoke(inputs) == expected
        assert await gate().ainvoke(inputs) == expected
    assert gate().batch([RETRIEVED, ALONE]) == ["searched", "alone"]


async def test_any_gate_decides_and_never_on_the_event_loop():
    asking: Gate = Asking()
    branch = gate(classifier=asking)
    assert branch.invoke("Sing!") == "alone"
    asking.threads.clear()
    assert await branch.ainvoke("Sing?") == "searched"
    assert threading.get_ident() not in asking.threads


async def test_a_language_model_decides_when_it_is_given():
    model = replying(lambda prompt: "yes" if "weir" in prompt else "No.")
    branch = gate(classifier=model)
    assert branch.invoke(RETRIEVED) == "searched"
    assert await branch.ainvoke(ALONE) == "alone"
    assert ALONE in model.prompts[1]
    assert gate(classifier=RunnableLambda(lambda _: "Perhaps.")).invoke(ALONE) == "searched"


def test_a_model_is_asked_with_a_prompt_of_the_framework():
    model = replying(lambda prompt: "no")
    prompt = PromptTemplate.from_template("Search {{now}} for {input}?")
    gate(classifier=model, prompt=prompt).invoke("a {brace}")
    assert model.prompts == ["Search {now} for a {brace}?"]


async def test_the_model_that_decides_is_traced_as_a_child():
    seen = Seen()
    gate(classifier=replying(lambda _: "yes")).invoke(ALONE, seeing(seen))
    assert seen.runs == [("model", True)]
    later = AsyncSeen()
    await gate(classifier=replying(lambda _: "yes")).ainvoke(ALONE, seeing(later))
    assert later.runs == seen.runs


async def test_both_branches_stream_with_the_keys_of_a_chain():
    documents = [Document("The weir was built in 1312.", id="weir")]
    model = replying(lambda prompt: "in 1312" if "<document" in prompt else "Le moulin moud.")
    chain = create_query_gate(create_longrag_chain(Plain(found=documents), model), model)
    pieces = list(chain.stream({"input": ALONE}))
    shown = [piece["answer"] for piece in pieces if piece.get("answer")]
    assert shown == ["Le ", "moulin ", "moud."]
    assert chain.invoke({"input": ALONE}) == {
        "input": ALONE,
        "context": [],
        "answer": "Le moulin moud.",
    }
    searched = [piece async for piece in chain.astream({"input": RETRIEVED})]
    assert "".join(piece.get("answer", "") for piece in searched) == "in 1312"
    assert chain.invoke({"input": RETRIEVED})["context"] == documents


def test_a_bare_model_is_given_a_bare_question():
    model = replying(lambda prompt: f"<{prompt}>")
    branch = create_query_gate(RunnableLambda(lambda _: "searched"), model)
    assert branch.invoke(ALONE).content == f"<{ALONE}>"


def test_a_model_with_retries_or_fallbacks_is_given_the_question_of_a_mapping():
    model = replying(lambda prompt: f"<{prompt}>")
    for around in (model.with_retry(), model.with_fallbacks([model]), model.bind(stop=["."])):
        branch = create_query_gate(RunnableLambda(lambda _: "searched"), around)
        assert branch.invoke({"input": ALONE})["answer"] == f"<{ALONE}>"
        assert branch.invoke(ALONE).content == f"<{ALONE}>"


async def test_answer_alone_asks_the_question_and_nothing_else():
    model = replying(lambda prompt: prompt.upper())
    chain = answer_alone(model)
    expected = {"input": "say a", "context": [], "answer": "SAY A"}
    assert chain.invoke({"input": "say a"}) == expected
    assert await chain.ainvoke({"input": "say a"}) == expected


@pytest.mark.parametrize("said", [None, {"answer": "a"}])
def test_an_answer_that_is_no_text_is_an_error_of_the_package(said):
    with pytest.raises(GenerationError, match="must be text or a message"):
        answer_alone(RunnableLambda(lambda _: said)).invoke({"input": ALONE})


def test_what_the_model_raises_is_raised():
    with pytest.raises(ConnectionError, match="no line"):
        gate(classifier=scripted(ConnectionError("no line"))).invoke(ALONE)


def test_what_is_no_classifier_or_no_question_is_refused():
    with pytest.raises(InvalidParameterError, match=r"^classifier must be"):
        gate(classifier="bert")
    with pytest.raises(InvalidParameterError, match="reads a prompt: omit it"):
        gate(prompt=PromptTemplate.from_template("{input}"))
    with pytest.raises(InvalidParameterError, match=r"^prompt must be a template with"):
        gate(classifier=replying(str), prompt=PromptTemplate.from_template("{question}"))
    for wrong in ({"question": ALONE}, 3, {"input": None}):
        with pytest.raises(InvalidParameterError, match=r"^input must be the question"):
            gate().invoke(wrong)
    for classifier in (None, replying(str)):
        with pytest.raises(InvalidParameterError, match=r"^query must be"):
            gate(classifier=classifier).invoke(" ")
