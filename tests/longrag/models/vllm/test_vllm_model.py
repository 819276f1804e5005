"""vLLM over HTTP: the numbers are the model's, few requests are needed, and faults are told."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longrag.errors import (
    GenerationError,
    InvalidParameterError,
    MissingExtraError,
    TokenizerError,
)
from longrag.models import LanguageModel, Next, VllmLanguageModel
from tests.conformance.language_models import LanguageModelSuite
from tests.tiny_models import CharacterTokenizer, TableModel, random_table
from tests.vllm_stand_in import VllmStandIn, answers, hangs

ALPHABET = " \n<>abcdefghijklmnopqrstuvwxyzTM1684.[]"
TOKENIZER = CharacterTokenizer(ALPHABET)
SIZE = TOKENIZER.vocab_size
TABLE = random_table(SIZE, seed=3)
ORACLE = TableModel(TOKENIZER, TABLE)


@pytest.fixture
def serve(tmp_path):
    """Start a stand-in server, and make models of it that are closed in the end."""
    entered = []

    def start(probabilities=TABLE, *, tokenizer=TOKENIZER, server=None, **settings):
        stand_in = VllmStandIn(tmp_path, tokenizer, probabilities, **(server or {}))
        entered.append(stand_in.__enter__())
        return stand_in, connect(stand_in, **{"tokenizer": tokenizer, **settings})

    def connect(stand_in, **settings):
        client = stand_in.client()
        entered.append(client.__enter__())
        given = {
            "model": "served",
            "end_ids": (stand_in.tokenizer.vocab_size - 1,),
            "retry_wait": 0.0,
            "context_window": 500,
            **settings,
        }
        return VllmLanguageModel("http://vllm/v1", http_client=client, **given)

    yield start
    for one in reversed(entered):
        one.__exit__(None, None, None)


def ids(*numbers):
    return np.array(sorted(numbers), np.int64)


def agree(found, expected):
    assert [one.ids.tolist() for one in found] == [one.ids.tolist() for one in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, rtol=1e-6)
        assert (one.ids.dtype, one.logprobs.dtype) == (np.int64, np.float64)


def score(model, prompts, asked):
    with model.session(prompts) as session:
        return session.score(asked)


def assert_as_the_table(model, prompts, asked, table=TABLE, tokenizer=TOKENIZER):
    agree(score(model, prompts, asked), score(TableModel(tokenizer, table), prompts, asked))


PROMPTS = [[1, 2, 3], [4]]
QUESTIONS = [
    Next(0, (), 1),
    Next(1, (5, 6), 4, banned=ids(*range(10))),
    Next(1, (5, 6), 4, allowed=ids(*range(30))),
    Next(0, (7,), 3, allowed=ids(2, 9)),
    Next(0, (7,), 2, allowed=ids(2, 9, 11), banned=ids(9)),
    Next(0, (), SIZE + 5),
    Next(0, (8,), 2, allowed=ids()),
    Next(1, (8,), 2, allowed=ids(5, 6), banned=ids(5, 6, 7)),
]


@pytest.mark.parametrize("max_logprobs", [1, 5, 20, 1000])
@pytest.mark.parametrize("max_token_ids", [1, 3, 128])
@pytest.mark.parametrize("max_prompts", [1, 64])
def test_scores_are_those_of_the_model_whatever_the_limits(
    serve, max_logprobs, max_token_ids, max_prompts
):
    _, model = serve(
        server={"max_logprobs": max_logprobs, "max_prompts": max_prompts},
        max_logprobs=max_logprobs,
        max_token_ids=max_token_ids,
        max_prompts=max_prompts,
    )
    assert_as_the_table(model, PROMPTS, QUESTIONS)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm")
    with VllmStandIn(folder, TOKENIZER, TABLE, max_logprobs=6) as stand_in, stand_in.client() as c:
        yield VllmLanguageModel(
            "http://vllm/v1",
            model="served",
            tokenizer=TOKENIZER,
            end_ids=(),
            http_client=c,
            max_logprobs=6,
            max_token_ids=8,
        )


some_ids = st.sets(st.integers(0, SIZE - 1), max_size=SIZE).map(lambda found: ids(*found))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.builds(
            Next,
            st.integers(0, 1),
            st.lists(st.integers(0, SIZE - 1), max_size=3).map(tuple),
            st.integers(1, 12),
            st.none() | some_ids,
            some_ids,
        ),
        max_size=6,
    )
)
def test_any_questions_together_are_answered_as_each_is(shared, asked):
    assert_as_the_table(shared, PROMPTS, asked)


def test_of_equally_probable_tokens_the_lower_id_comes_first(serve):
    def flat(prefix):
        return np.full(SIZE, 1 / SIZE)

    _, model = serve(flat)
    asked = [Next(0, (), 3), Next(0, (), 3, allowed=ids(*range(3, 38))), Next(0, (), SIZE)]
    found = score(model, [[1]], asked)
    assert [one.ids.tolist() for one in found] == [[0, 1, 2], [3, 4, 5], list(range(SIZE))]


def test_padded_ids_behind_the_tokenizers_are_never_told(serve):
    wider = random_table(SIZE + 20, seed=4)
    _, model = serve(wider, server={"vocab_size": SIZE + 20})
    (found,) = score(model, [[1]], [Next(0, (), SIZE)])
    expected = np.log(wider((1,))[:SIZE])
    assert sorted(found.ids.tolist()) == list(range(SIZE))
    np.testing.assert_allclose(found.logprobs, expected[found.ids], rtol=1e-6)
    (first,) = score(model, [[1]], [Next(0, (), 1, banned=ids(3))])
    assert first.ids.tolist() == [np.argmax(np.where(np.arange(SIZE) == 3, -9, expected))]


def test_a_token_that_a_server_samples_by_its_own_defaults_is_not_taken_for_probable(serve):
    rare = int(np.argmin(TABLE((1,))))
    stand_in, model = serve(
        server={"bias": {rare: 100}, "max_logprobs": 2}, max_logprobs=2, max_token_ids=9
    )
    assert_as_the_table(model, [[1]], [Next(0, (), 2, allowed=ids(*range(SIZE)))])
    assert stand_in.completions()[0]["logprobs"] == 2


def test_equals_of_the_last_probable_token_are_asked_for_whatever_was_sampled(serve):
    def nearly_flat(prefix):
        weights = np.ones(SIZE)
        weights[20] = 0.5
        return weights / weights.sum()

    _, model = serve(
        nearly_flat,
        server={"bias": {20: 100}, "max_logprobs": 2},
        max_logprobs=2,
        max_token_ids=9,
    )
    (found,) = score(model, [[1]], [Next(0, (), 2, allowed=ids(*range(SIZE)))])
    assert found.ids.tolist() == [0, 1]


def test_a_token_that_may_follow_and_has_no_probability_is_an_error(serve):
    def table(prefix):
        return np.eye(SIZE)[7]

    _, model = serve(table)
    assert score(model, [[1]], [Next(0, (), 1)])[0].ids.tolist() == [7]
    for asked in (Next(0, (), 2), Next(0, (), 2, allowed=ids(7, 8)), Next(0, (), 1, banned=ids(7))):
        with pytest.raises(GenerationError, match="gives no probability to"):
            score(model, [[1]], [asked])


# What a step costs


def test_a_beam_within_keys_takes_one_request(serve):
    stand_in, model = serve()
    beam = [Next(0, (place,), 10, allowed=ids(place, place + 20)) for place in range(10)]
    assert_as_the_table(model, PROMPTS, beam)
    (body,) = stand_in.completions()
    assert body["prompt"] == [[1, 2, 3, place] for place in range(10)]
    assert body["logprob_token_ids"] == [*range(10), *range(20, 30)]
    assert (body["max_tokens"], body["temperature"], body["add_special_tokens"]) == (1, 0, False)


def test_free_text_and_the_first_tokens_of_keys_take_one_request_if_the_probable_suffice(serve):
    stand_in, model = serve(max_token_ids=10)
    asked = [Next(0, (), 1), Next(1, (), 2, allowed=ids(*range(SIZE))), Next(0, (), 3)]
    assert_as_the_table(model, PROMPTS, asked)
    (body,) = stand_in.completions()
    assert body["prompt"] == PROMPTS
    assert (body["logprobs"], "logprob_token_ids" in body) == (20, False)


def test_hypotheses_that_may_go_on_alike_share_their_requests_for_ids(serve):
    stand_in, model = serve(server={"max_logprobs": 1}, max_logprobs=1, max_token_ids=10)
    asked = [Next(0, (token,), 5, allowed=ids(*range(30))) for token in range(4)]
    assert_as_the_table(model, PROMPTS, asked)
    first, *second = stand_in.completions()
    assert len(first["prompt"]) == 4
    assert [len(body["prompt"]) for body in second] == [4, 4, 4]
    assert sorted(body["logprob_token_ids"][0] for body in second) == [0, 10, 20]


def test_prompts_beyond_the_limit_are_sent_as_further_requests(serve):
    stand_in, model = serve(server={"max_prompts": 3}, max_prompts=3)
    assert_as_the_table(model, [[1]], [Next(0, (token,), 1) for token in range(7)])
    assert sorted(len(body["prompt"]) for body in stand_in.completions()) == [1, 3, 3]


def test_requests_are_in_flight_together_and_bounded(serve):
    stand_in, model = serve(server={"wait": 0.05}, max_prompts=1, max_in_flight=3)
    assert_as_the_table(model, [[1]], [Next(0, (token,), 1) for token in range(9)])
    assert stand_in.most_open == 3


def test_where_all_probable_tokens_are_banned_others_are_asked_for_one_by_one(serve):
    stand_in, model = serve(server={"max_logprobs": 4}, max_logprobs=4, max_token_ids=4)
    order = np.argsort(-TABLE((1,)))
    assert_as_the_table(model, [[1]], [Next(0, (), 2, banned=ids(*order[:6].tolist()))])
    biases = [body["logit_bias"] for body in stand_in.completions()[1:]]
    assert [len(bias) for bias in biases] == [4, 5, 6, 7]
    assert set(biases[0].values()) == {-100}


def test_an_older_server_is_used_with_its_most_probable_tokens_alone(serve):
    stand_in, model = serve(
        server={"max_logprobs": 1000, "knows_token_ids": False},
        max_logprobs=1000,
        max_token_ids=0,
    )
    assert_as_the_table(model, PROMPTS, QUESTIONS)
    assert all(body["logprobs"] == SIZE for body in stand_in.completions())
    assert not any("logprob_token_ids" in body for body in stand_in.completions())


def test_an_older_server_that_tells_too_few_tokens_is_an_error(serve):
    _, model = serve(server={"knows_token_ids": False}, max_logprobs=3, max_token_ids=0)
    last = int(np.argmin(TABLE((1,))))
    with pytest.raises(GenerationError, match="Start the server with --max-logprobs -1"):
        score(model, [[1]], [Next(0, (), 1, allowed=ids(last))])


def test_all_tokens_of_free_text_are_asked_for_by_id_where_that_takes_fewer_requests(serve):
    stand_in, model = serve(max_token_ids=10)
    assert_as_the_table(model, [[1]], [Next(0, (), SIZE, banned=ids(4, 5))])
    assert ["logit_bias" in body for body in stand_in.completions()] == [False] * 5


def test_sessions_of_several_threads_do_not_disturb_one_another(serve):
    _, model = serve(max_token_ids=5)
    barrier = threading.Barrier(4)

    def run(number):
        prompts = [[number + 1], [number, 2]]
        barrier.wait()
        for _ in range(3):
            assert_as_the_table(model, prompts, QUESTIONS)
        return number

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [0, 1, 2, 3]


# Prompts and what the server tells of itself


def test_the_server_makes_the_ids_of_prompts_with_what_it_puts_before_them(serve):
    stand_in, model = serve(server={"prefix": [SIZE - 1]})
    assert model.prompt_ids("abc") == [SIZE - 1, *TOKENIZER.encode("abc")]
    model.prompt_ids("a")
    assert stand_in.paths == ["/tokenize"] * 3


def test_a_chat_prompt_is_made_by_the_servers_template(serve):
    _, model = serve(server={"prefix": [SIZE - 1]}, chat=True)
    assert model.prompt_ids("abc") == TOKENIZER.encode("[abc]")


def test_another_tokenizer_than_the_servers_is_refused(serve):
    other = CharacterTokenizer(ALPHABET[::-1])
    _, model = serve(server=None, tokenizer=TOKENIZER)
    model.tokenizer = other
    with pytest.raises(TokenizerError, match="Give the tokenizer of the served model"):
        model.prompt_ids("abc")


@pytest.mark.parametrize("own", [{}, {"chat": True}, {"prefix_ids": [SIZE - 1]}])
def test_half_of_a_surrogate_pair_is_refused_before_the_server_is_asked(serve, own):
    stand_in, model = serve(**own)
    with pytest.raises(TokenizerError, match="cannot be written as UTF-8"):
        model.prompt_ids("a\ud83d")
    assert stand_in.paths == []


def test_a_given_prefix_asks_the_server_nothing(serve):
    stand_in, model = serve(server={"tokenizes": False}, prefix_ids=[SIZE - 1])
    assert model.prompt_ids("ab") == [SIZE - 1, *TOKENIZER.encode("ab")]
    assert stand_in.paths == []


def test_a_server_without_tokenize_is_told_of(serve):
    _, model = serve(server={"tokenizes": False})
    with pytest.raises(GenerationError, match="/tokenize refused with status 404"):
        model.prompt_ids("ab")


def test_the_context_window_is_the_servers_unless_given(serve):
    stand_in, model = serve(server={"max_model_len": 77}, context_window=None)
    assert (model.context_window, model.context_window) == (77, 77)
    assert stand_in.paths == ["/v1/models"]
    assert model.name == "served"


def test_a_given_context_window_and_name_ask_nothing(serve):
    stand_in, model = serve(context_window=12, name="weights", end_ids=[5, 2, 5])
    assert (model.context_window, model.name, model.end_ids) == (12, "weights", (2, 5))
    assert stand_in.paths == []
    assert isinstance(model.context_window, int)


def test_a_model_that_is_not_served_is_refused_by_name(serve):
    _, model = serve(model="other", context_window=None)
    with pytest.raises(InvalidParameterError, match="one that is served: 'served'"):
        score(model, [[1]], [Next(0, (), 1)])
    _, model = serve(model="other")
    with pytest.raises(GenerationError, match="`other` does not exist"):
        score(model, [[1]], [Next(0, (), 1)])


def test_an_endpoint_that_tells_no_context_window_leaves_it_open(serve):
    stand_in, model = serve(context_window=None)
    stand_in.faults = [answers(200, {"data": [{"id": "served"}]})]
    assert model.context_window is None


@pytest.mark.parametrize("answer", [[], {"data": 3}, {"data": [None]}, {"models": []}])
def test_a_list_of_models_that_is_none_is_an_error(serve, answer):
    stand_in, model = serve(context_window=None)
    stand_in.faults = [answers(200, answer)]
    with pytest.raises(GenerationError, match="does not list models"):
        _ = model.context_window


# Faults

ONE = [Next(0, (), 1)]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_fault_that_passes_is_tried_again(serve, status):
    stand_in, model = serve()
    stand_in.faults = [answers(status, {"error": {"message": "busy"}})] * 3
    assert_as_the_table(model, [[1]], ONE)
    assert len(stand_in.paths) == 4


def test_a_fault_that_stays_is_told_with_the_servers_words(serve):
    stand_in, model = serve(max_retries=1)
    stand_in.faults = [answers(503, {"message": "loading the model"})] * 9
    with pytest.raises(GenerationError, match=r"in 2 tries .* status 503, loading the model"):
        score(model, [[1]], ONE)
    assert len(stand_in.paths) == 2


@pytest.mark.parametrize("wait", ["0.01", formatdate(0, usegmt=True), "soon", "-4"])
def test_a_wait_that_the_server_asks_for_is_kept(serve, wait):
    stand_in, model = serve()
    stand_in.faults = [answers(429, {}, headers=[("Retry-After", wait)])]
    assert_as_the_table(model, [[1]], ONE)


def test_a_wait_of_more_than_a_minute_is_an_error_at_once(serve):
    stand_in, model = serve()
    stand_in.faults = [answers(429, {"detail": "quota"}, headers=[("Retry-After", "3600")])]
    with pytest.raises(GenerationError, match=r"in 1 tries .* status 429, quota"):
        score(model, [[1]], ONE)


def test_a_timeout_is_tried_again_and_then_told(serve):
    stand_in, model = serve(timeout=0.1, max_retries=1)
    stand_in.faults = [hangs(0.3)]
    assert_as_the_table(model, [[1]], ONE)
    stand_in.faults = [hangs(0.3)] * 2
    with pytest.raises(GenerationError, match=r"in 2 tries of at most 0\.1 seconds: Read"):
        score(model, [[1]], ONE)


def test_an_answer_that_breaks_off_is_tried_again(serve):
    stand_in, model = serve()
    stand_in.faults = [answers(200, b'{"choices": []}', cut=5)]
    assert_as_the_table(model, [[1]], ONE)
    assert len(stand_in.paths) == 2


def test_a_server_that_is_not_there_is_told_by_its_address():
    def refuse(request):
        raise httpx.ConnectError("[Errno 111] Connection refused")

    with httpx.Client(transport=httpx.MockTransport(refuse)) as client:
        model = VllmLanguageModel(
            "http://vllm:8000/v1/",
            model="served",
            tokenizer=TOKENIZER,
            end_ids=(),
            context_window=500,
            http_client=client,
            retry_wait=0.0,
        )
        with pytest.raises(GenerationError, match=r"^http://vllm:8000/v1/completions .* 4 tries"):
            score(model, [[1]], ONE)


GOOD = {
    "tokens": ["token_id:1"],
    "token_logprobs": [-1.0],
    "top_logprobs": [{"token_id:1": -1.0}],
}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "answered with no JSON"),
        (b'{"choices": [', "answered with no JSON"),
        (b"<html>Welcome</html>", "no JSON: <html>Welcome"),
        (b"\xff\xfe\xff", "answered with no JSON"),
        (b"[]", "none of vLLM's completions"),
        (b'"text"', "none of vLLM's completions"),
        ({}, "none of vLLM's completions"),
        ({"choices": None}, "none of vLLM's completions"),
        ({"choices": [{"text": "x"}]}, "none of vLLM's completions"),
        ({"choices": []}, r"the choices \[\] for 1 prompts"),
        ({"choices": [{"index": 1, "logprobs": GOOD}]}, r"the choices \[1\] for 1 prompts"),
        ({"choices": [{"index": 0, "text": "x"}]}, "log-probabilities by token id"),
        ({"choices": [{"index": 0, "logprobs": None}]}, "cannot be constrained"),
        ({"choices": [{"index": 0, "logprobs": {**GOOD, "tokens": []}}]}, "by token id"),
        ({"choices": [{"index": 0, "logprobs": {**GOOD, "tokens": ["a"]}}]}, "by token id"),
        ({"choices": [{"index": 0, "logprobs": {**GOOD, "top_logprobs": [None]}}]}, "by token"),
        ({"choices": [{"index": 0, "logprobs": {**GOOD, "token_logprobs": [None]}}]}, "by token"),
        (
            {"choices": [{"index": 0, "logprobs": {**GOOD, "token_logprobs": [float("nan")]}}]},
            "NaN",
        ),
        ({"choices": [{"index": 0, "logprobs": {**GOOD, "token_logprobs": [2.5]}}]}, "of 2.5"),
    ],
)
def test_an_answer_that_is_not_vllms_is_an_error(serve, answer, words):
    stand_in, model = serve()
    stand_in.faults = [answers(200, answer)]
    with pytest.raises(GenerationError, match=words):
        score(model, [[1]], ONE)


@pytest.mark.parametrize(
    ("status", "answer", "words"),
    [
        (400, {"error": {"message": "too long"}}, "status 400: too long"),
        (401, {"error": "Unauthorized"}, "status 401: Unauthorized Give the api_key"),
        (403, b"go away", "status 403: go away Give an api_key"),
        (404, {"detail": "Not Found"}, "status 404: Not Found base_url goes up to and with /v1"),
        (422, {"detail": [{"loc": ["body"]}]}, "status 422: .*'loc'"),
        (307, b"", "status 307"),
        (
            400,
            {"error": {"message": "Unrecognized request argument supplied: logprob_token_ids"}},
            "Unrecognized .* It cannot be constrained. .* VllmLanguageModel",
        ),
    ],
)
def test_a_refusal_is_told_with_the_servers_words_and_a_remedy(serve, status, answer, words):
    stand_in, model = serve()
    stand_in.faults = [answers(status, answer)]
    with pytest.raises(GenerationError, match=words):
        score(model, [[1]], ONE)
    assert len(stand_in.paths) == 1


@pytest.mark.parametrize(
    ("server", "own", "asked", "parameter"),
    [
        ({"max_logprobs": 5}, {}, Next(0, (), 1), "max_logprobs"),
        ({"max_prompts": 1}, {}, Next(0, (2,), 1), "max_prompts"),
        (
            {"vocab_size": 300},
            {"max_token_ids": 200, "tokenizer": CharacterTokenizer("a", extra=299)},
            Next(0, (), 1, allowed=ids(*range(150))),
            "max_token_ids",
        ),
    ],
)
def test_a_limit_of_the_server_below_the_models_names_the_parameter(
    serve, server, own, asked, parameter
):
    _, model = serve(random_table(server.get("vocab_size", SIZE)), server=server, **own)
    with pytest.raises(InvalidParameterError, match=f"{parameter} must be at most what") as raised:
        score(model, [[1], [2]], [asked, Next(1, (), 1)])
    assert raised.value.parameter == parameter


def test_a_prompt_beyond_the_context_window_is_refused_by_the_server(serve):
    _, model = serve(server={"max_model_len": 3})
    assert_as_the_table(model, [[1, 2]], ONE)
    with pytest.raises(GenerationError, match="maximum context length is 3"):
        score(model, [[1, 2]], [Next(0, (3,), 1)])


@pytest.mark.parametrize(
    ("server", "asked", "words"),
    [
        (
            {"knows_token_ids": False},
            Next(0, (), 1, allowed=ids(1, 2)),
            "ignores logprob_token_ids",
        ),
        ({"knows_token_names": False}, Next(0, (), 1), "not tell log-probabilities by token id"),
        ({"mode": "raw_logits"}, Next(0, (), 1), "--logprobs-mode raw_logprobs"),
        (
            {"mode": "processed_logprobs"},
            Next(0, (), 1, banned=ids(*np.argsort(-TABLE((1,)))[:25].tolist())),
            "processed log-probabilities",
        ),
    ],
)
def test_a_server_that_does_not_do_as_asked_is_found_out(serve, server, asked, words):
    rare = int(np.argmin(TABLE((1,))))
    if asked.allowed is not None:
        asked = Next(0, (), 1, allowed=ids(rare))
    _, model = serve(server=server, max_token_ids=5)
    with pytest.raises(GenerationError, match=words):
        score(model, [[1]], [asked])


def test_the_key_is_sent_and_never_told(serve):
    stand_in, model = serve(server={"api_key": "s3cret"}, api_key="s3cret")
    assert_as_the_table(model, [[1]], ONE)
    assert stand_in.headers[0]["Authorization"] == "Bearer s3cret"
    stand_in.api_key = "another"
    with pytest.raises(GenerationError, match="status 401") as raised:
        score(model, [[1]], ONE)
    assert "s3cret" not in str(raised.value)
    assert "s3cret" not in repr(model)


# What is refused before anything is sent


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1",
        "https://eu.api.openai.com/v1/",
        "https://API.OpenAI.com./v1",
        "https://me.openai.azure.com/openai",
        "https://api.anthropic.com",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "https://openrouter.ai/api/v1",
    ],
)
def test_hosted_apis_are_refused_with_what_is_needed(url):
    with pytest.raises(InvalidParameterError, match="serve them with vLLM"):
        VllmLanguageModel(url, model="m", tokenizer=TOKENIZER, end_ids=())


class ChatModel:
    """What a framework's chat model is to us: something else."""


@pytest.mark.parametrize("url", [ChatModel(), None, b"http://vllm/v1", 8000])
def test_what_is_no_url_is_refused_by_its_type(url):
    with pytest.raises(InvalidParameterError, match="URL of a vLLM server") as raised:
        VllmLanguageModel(url, model="m", tokenizer=TOKENIZER, end_ids=())
    assert raised.value.received == f"{type(url).__module__}.{type(url).__qualname__}"


@pytest.mark.parametrize("url", ["", "vllm", "localhost:8000/v1", "ftp://vllm/v1", "http:///v1"])
def test_a_url_without_scheme_or_host_is_refused(url):
    with pytest.raises(InvalidParameterError, match="base_url must be the URL"):
        VllmLanguageModel(url, model="m", tokenizer=TOKENIZER, end_ids=())


def test_a_url_with_a_password_is_refused_and_not_repeated():
    with pytest.raises(InvalidParameterError, match=r"without a user, .* Give api_key") as raised:
        VllmLanguageModel("http://me:s3cret@vllm/v1", model="m", tokenizer=TOKENIZER, end_ids=())
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("max_logprobs", 0),
        ("max_logprobs", 2.0),
        ("max_prompts", 0),
        ("max_in_flight", True),
        ("max_retries", -1),
        ("max_token_ids", -1),
        ("timeout", 0),
        ("timeout", float("nan")),
        ("retry_wait", -0.1),
        ("prefix_ids", [1]),
    ],
)
def test_settings_that_are_not_allowed_are_refused(parameter, value):
    given = {"end_ids": (), parameter: value, "chat": parameter == "prefix_ids"}
    with pytest.raises(InvalidParameterError, match=f"^{parameter} must be"):
        VllmLanguageModel("http://vllm/v1", model="m", tokenizer=TOKENIZER, **given)


def test_end_ids_are_the_tokenizers_or_must_be_given():
    with pytest.raises(InvalidParameterError, match=r"end_ids .* Give \(\) if"):
        VllmLanguageModel("http://vllm/v1", model="m", tokenizer=TOKENIZER)
    tokenizer = CharacterTokenizer("ab", extra=2)
    tokenizer.end_ids = [3, 2]
    with VllmLanguageModel("http://vllm/v1", model="m", tokenizer=tokenizer) as model:
        assert model.end_ids == (2, 3)


def test_without_httpx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'longrag\[vllm\]'"):
        VllmLanguageModel("http://vllm/v1", model="m", tokenizer=TOKENIZER, end_ids=())


def test_a_given_client_stays_open_and_an_own_one_is_closed(serve):
    _, model = serve()
    model.close()
    assert_as_the_table(model, [[1]], ONE)
    own = VllmLanguageModel(
        "http://vllm/v1", model="m", tokenizer=TOKENIZER, end_ids=(), context_window=9
    )
    own.close()
    with pytest.raises(RuntimeError, match="closed"):
        score(own, [[1]], ONE)


def test_it_is_a_language_model(serve):
    _, model = serve()
    typed: LanguageModel = model
    assert typed.end_ids == (SIZE - 1,)


class TestSuite(LanguageModelSuite):
    """The suite of all language models, over a server that tells twenty tokens at most."""

    tokenizer = CharacterTokenizer(ALPHABET + "A", extra=300 - len(ALPHABET) - 1)

    @pytest.fixture
    def model(self, serve):
        table = random_table(300, seed=8)
        return serve(table, tokenizer=self.tokenizer, context_window=None)[1]

    @pytest.fixture
    def oracle(self):
        return TableModel(self.tokenizer, random_table(300, seed=8)).logprobs
