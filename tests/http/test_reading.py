"""Reading through OpenAI's protocol: both frameworks, sync, async and streamed; faults arrive."""

import openai
import pytest

from tests.http.conftest import LONG, QUESTION, SHORT, LlamaReader, chat_model, llama_llm
from tests.openai_server import (
    OpenAIServer,
    ScriptedWriter,
    cut,
    fail_in_stream,
    hang_up,
    on_loopback,
    refuse,
    send_page,
    stall,
)

pytestmark = on_loopback


def joined(told):
    texts = {"long_answer": "", "answer": ""}
    for key, piece in told:
        texts[key] += piece
    return texts["long_answer"], texts["answer"]


def test_a_reader_reads_alike_in_every_way(server, framework):
    reader = framework(server)
    assert reader.read() == (LONG, SHORT)
    assert reader.aread() == (LONG, SHORT)
    told = list(reader.stream())
    assert len([piece for key, piece in told if key == "long_answer"]) > 3
    assert joined(told) == joined(reader.astream()) == (LONG, SHORT)
    bodies = server.bodies()
    assert [bool(body.get("stream")) for body in bodies] == [False] * 4 + [True] * 4
    for body in bodies:
        assert [message["role"] for message in body["messages"]] == ["user"]
        assert QUESTION in str(body["messages"][0]["content"])


def test_a_reply_that_repeats_the_prompt_is_no_answer(framework):
    for echo in ("Answer the question in a few words taken from the documents.",
                 f'The answer to the question is: "{QUESTION}"'):  # fmt: skip
        with OpenAIServer(ScriptedWriter(lambda _, echo=echo: echo)) as server:
            reader = framework(server, one_turn=1000)
            for _, answer in (reader.read(), joined(reader.stream()), joined(reader.astream())):
                assert answer == "The documents do not answer this question."


def test_a_model_that_completes_text_is_asked_by_the_other_route(server):
    assert LlamaReader(server, is_chat_model=False).read() == (LONG, SHORT)
    assert len(server.bodies("/v1/completions")) == 2
    assert server.bodies("/v1/chat/completions") == []


def test_a_busy_server_is_asked_again_after_the_time_it_names(server, framework):
    server.faults = [refuse(429, "too many requests", retry_after=0.01), None, refuse(500)]
    assert framework(server, max_retries=2).read() == (LONG, SHORT)
    assert len(server.requests) == 4


FAULTS = {
    "busy": (refuse(429, retry_after=0.01), openai.RateLimitError),
    "broken": (refuse(500), openai.InternalServerError),
    "unknown model": (refuse(404), openai.NotFoundError),
    "hung up": (hang_up, openai.APIConnectionError),
    "not JSON": (send_page, Exception),
}


@pytest.mark.parametrize(("fault", "error"), FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("turn", [0, 1])
def test_what_a_server_refuses_is_raised_in_either_turn(server, framework, fault, error, turn):
    for way in ("read", "aread"):
        server.faults = [None] * turn + [fault]
        with pytest.raises(error):
            getattr(framework(server), way)()
        assert server.faults == []
    assert framework(server).read() == (LONG, SHORT)


def test_a_server_that_does_not_answer_is_given_up(server, framework):
    for way in ("read", "aread"):
        server.faults = [stall]
        with pytest.raises(openai.APITimeoutError):
            getattr(framework(server, timeout=0.3), way)()


@pytest.mark.parametrize("fault", [cut(3), fail_in_stream(3)], ids=["cut", "failed"])
def test_a_stream_that_breaks_off_raises_and_what_came_before_was_shown(server, framework, fault):
    server.faults = [fault]
    shown = []
    with pytest.raises(Exception, match=r"peer closed|engine died|incomplete"):
        shown.extend(told for told in framework(server).stream())
    text, answer = joined(shown)
    assert answer == ""
    assert LONG.startswith(text)
    assert len(text) < len(LONG)
    server.faults = [fault]
    with pytest.raises(Exception, match=r"peer closed|engine died|incomplete"):
        framework(server).astream()


def test_a_wrong_key_is_told(framework):
    with (
        OpenAIServer(ScriptedWriter(str), api_key="right") as server,
        pytest.raises(openai.AuthenticationError, match="Incorrect API key"),
    ):
        framework(server).read()


def test_tokens_are_counted_by_the_server(server):
    from langchain_core.callbacks import get_usage_metadata_callback

    from tests.http.conftest import LangChainReader

    with get_usage_metadata_callback() as counted:
        LangChainReader(server).read()
        list(LangChainReader(server, stream_usage=True).stream())
    (usage,) = counted.usage_metadata.values()
    bodies = server.bodies()
    sent = sum(len(body["messages"][0]["content"].split()) for body in bodies)
    assert usage["input_tokens"] == sent
    assert usage["output_tokens"] == 2 * (
        len(LONG.split()) + len(f"The answer is: {SHORT}".split())
    )


def test_both_clients_reach_the_same_model(server):
    assert str(llama_llm(server).complete("Hello")) == chat_model(server).invoke("Hello").text
