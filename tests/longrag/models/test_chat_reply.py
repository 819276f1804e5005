"""Events of a stream, however it is cut; and what a failure's line may hold."""

import json

from hypothesis import given
from hypothesis import strategies as st

from longrag.models.chat_reply import read_events
from longrag.models.plain_failures import is_too_long, one_line, secrets_of

# U+2028 and U+0085 end lines in Unicode, and not in this protocol.
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\u2028\x85\x0b"))


@given(
    st.lists(_TEXTS), st.lists(st.integers(1, 9)), st.booleans(), st.sampled_from(["\n", "\r\n"])
)
def test_however_a_stream_is_cut_its_events_are_the_same(texts, sizes, ended, end):
    datas = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    lines = [line for data in datas for line in (": a comment", f"data: {data}", "")]
    stream = (end.join(lines) + (end if ended else "")).encode()
    if not ended and lines:
        stream = stream.removesuffix(end.encode())
    chunks, at = [], 0
    for size in sizes:
        chunks.append(stream[at : at + size])
        at += size
    chunks.append(stream[at:])
    assert list(read_events(chunks)) == [data.encode() for data in datas]


def test_an_event_is_given_when_its_line_has_come():
    taken = []

    def chunks():
        yield b'data: {"a": 1}\n'
        taken.append("second")
        yield b"data: [DONE]\n"

    events = read_events(chunks())
    assert next(events) == b'{"a": 1}'
    assert taken == []
    assert list(events) == [b"[DONE]"]


def test_secrets_are_known_by_their_names(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    monkeypatch.setenv("LONGRAG_MODEL", "a-public-name")
    options = {"api_key": "sk-of-the-options", "model": "a-long-name", "token": "short", "auth": 7}
    secrets = secrets_of(options)
    assert {"sk-of-the-environment", "sk-of-the-options"} <= set(secrets)
    assert not {"a-public-name", "a-long-name", "short"} & set(secrets)
    said = one_line("refused\n  sk-of-the-options, or\tsk-of-the-environment", secrets)
    assert said == "refused ***, or ***"


def test_what_servers_say_of_a_long_prompt_is_known():
    for said in (
        "This model's maximum context length is 2048 tokens. However, you requested 8188 tokens",
        "the request exceeds the available context size, try increasing it",
        "Requested tokens (8188) exceed context window of 2048",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Input is too long: too many input tokens",
    ):
        assert is_too_long(said)
    assert not is_too_long("model 'context' not found")
