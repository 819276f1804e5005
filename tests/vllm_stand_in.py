"""A server with vLLM's HTTP protocol and limits on a unix socket, which can misbehave.

What it checks and how it answers follows vLLM's completion protocol and serving code: which fields
are refused and with what words, that the sampled token comes first and on top of the most probable,
that the logarithm of zero is -9999, and that log-probabilities are those before any processing.
"""

import itertools
import json
import threading
import time
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn, UnixStreamServer

import httpx
import numpy as np

MAX_LOGPROB_TOKEN_IDS = 128
_NUMBERS = itertools.count()


class Refused(Exception):
    def __init__(self, status, message, kind="BadRequestError"):
        super().__init__(message)
        self.status = status
        self.kind = kind


class VllmStandIn:
    """Serves ``probabilities``, a function from all tokens so far to the next one's.

    ``faults`` are taken one a request, each a function from the request's handler to whether it
    answered; ``bias`` is what the server's own defaults do to what it samples. ``requests`` keeps
    the bodies that were answered, ``paths`` every path asked for.
    """

    def __init__(self, folder, tokenizer, probabilities, *, prefix=(), **settings):
        self.tokenizer = tokenizer
        self.probabilities = probabilities
        self.prefix = list(prefix)
        self.vocab_size = settings.pop("vocab_size", tokenizer.vocab_size)
        self.model = "served"
        self.max_logprobs = settings.pop("max_logprobs", 20)
        self.max_prompts = settings.pop("max_prompts", 1024)
        self.max_model_len = settings.pop("max_model_len", 512)
        self.api_key = settings.pop("api_key", None)
        self.mode = settings.pop("mode", "raw_logprobs")
        self.knows_token_ids = settings.pop("knows_token_ids", True)
        self.in_rust = settings.pop("in_rust", False)
        self.knows_token_names = settings.pop("knows_token_names", True)
        self.tokenizes = settings.pop("tokenizes", True)
        self.bias = settings.pop("bias", {})
        self.wait = settings.pop("wait", 0.0)
        assert not settings, settings
        self.faults = []
        self.requests = []
        self.paths = []
        self.headers = []
        self.open = 0
        self.most_open = 0
        self.lock = threading.Lock()
        self.path = str(folder / f"{next(_NUMBERS)}.sock")
        self._server = _Server(self.path, _Handler)
        self._server.stand_in = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *raised):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def client(self, **settings):
        return httpx.Client(transport=httpx.HTTPTransport(uds=self.path), **settings)

    def completions(self):
        return [body for body in self.requests if "logprobs" in body]

    def logits(self, row):
        with np.errstate(divide="ignore"):
            return np.log(np.asarray(self.probabilities(tuple(row)), np.float64))

    def answer(self, method, path, body):
        if (method, path) == ("GET", "/v1/models"):
            card = {"id": self.model, "object": "model", "owned_by": "vllm", "root": "/weights"}
            return {"object": "list", "data": [{**card, "max_model_len": self.max_model_len}]}
        if (method, path) == ("POST", "/tokenize") and self.tokenizes:
            text = self.render(body["messages"]) if "messages" in body else body["prompt"]
            last = body.get("messages", [{"role": "user"}])[-1]["role"]
            goes_on = body.get("continue_final_message", False)
            assert goes_on == (last == "assistant")
            assert body.get("add_generation_prompt", True) != goes_on
            before = self.prefix if body.get("add_special_tokens", "messages" not in body) else []
            tokens = [*before, *self.tokenizer.encode(text)]
            return {"count": len(tokens), "max_model_len": self.max_model_len, "tokens": tokens}
        if (method, path) == ("POST", "/v1/completions"):
            return self.complete(body)
        raise Refused(404, "Not Found", "NotFoundError")

    def render(self, messages):
        """A chat template: each message in brackets, of which the assistant's last stays open."""
        text = "".join(f"[{message['content']}]" for message in messages)
        return text[:-1] if messages[-1]["role"] == "assistant" else text

    def complete(self, body):
        if body.get("model") != self.model:
            message = f"The model `{body.get('model')}` does not exist."
            raise Refused(404, message, "NotFoundError")
        prompts = body["prompt"]
        if prompts and isinstance(prompts[0], int):
            prompts = [prompts]
        self.check(body, prompts)
        choices = [self.choice(index, row, body) for index, row in enumerate(prompts)]
        count = sum(map(len, prompts))
        usage = {"prompt_tokens": count, "completion_tokens": len(choices), "total_tokens": count}
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "model": self.model,
            "choices": choices,
            "usage": usage,
        }

    def check(self, body, prompts):
        if len(prompts) > self.max_prompts:
            raise Refused(
                400,
                f"prompt list length {len(prompts)} exceeds the maximum allowed count of"
                f" {self.max_prompts}.",
            )
        for row in prompts:
            if not row:
                raise Refused(400, "Either prompt or prompt_embeds must be provided and non-empty.")
            if len(row) + body["max_tokens"] > self.max_model_len:
                raise Refused(
                    400, f"This model's maximum context length is {self.max_model_len} tokens."
                )
            if not all(0 <= token < self.vocab_size for token in row):
                raise Refused(400, "Token id is out of vocabulary")
        ids = body.get("logprob_token_ids") if self.knows_token_ids else None
        if ids is None and body["logprobs"] > self.max_logprobs:
            raise Refused(
                400,
                f"Requested sample logprobs of {body['logprobs']}, which is greater than max"
                f" allowed: {self.max_logprobs}",
            )
        if self.in_rust:
            self.check_in_rust(ids, body["logprobs"])
        if ids is not None:
            self.check_ids(ids)

    def check_in_rust(self, ids, asked):
        """What the front end in Rust refuses beside what the one in Python does."""
        if asked > self.max_logprobs:
            raise Refused(
                400,
                f"requested logprobs of {asked}, which is greater than max allowed:"
                f" {self.max_logprobs}",
            )
        if ids is not None and asked != len(ids):
            raise Refused(
                400,
                f"logprobs must equal len(logprob_token_ids). Got {asked} and {len(ids)}.",
            )

    def check_ids(self, ids):
        if not ids:
            raise Refused(400, "`logprob_token_ids` must not be an empty list.")
        if len(ids) > MAX_LOGPROB_TOKEN_IDS:
            raise Refused(
                400,
                f"Requested logprob_token_ids of length {len(ids)}, which is greater than max"
                f" allowed: {MAX_LOGPROB_TOKEN_IDS}",
            )
        wrong = [token for token in ids if not 0 <= token < self.vocab_size]
        if wrong:
            raise Refused(400, f"token_id(s) {wrong} in logprob_token_ids contain out-of-vocab")

    def choice(self, index, row, body):
        assert body["max_tokens"] == 1
        assert body["temperature"] == 0
        raw = self.logits(row)
        processed = raw.copy()
        for token, bias in {**self.bias, **body.get("logit_bias", {})}.items():
            processed[int(token)] += min(100.0, max(-100.0, bias))
        sampled = int(np.argmax(processed))
        values = {"raw_logprobs": raw, "processed_logprobs": processed, "raw_logits": raw + 50}[
            self.mode
        ]
        if self.mode == "processed_logprobs":
            values = values - np.logaddexp.reduce(values)
        values = values.astype(np.float32)
        ids = body.get("logprob_token_ids") if self.knows_token_ids else None
        asked = body["logprobs"]
        if ids is None:
            # Which of equals are listed is left open there: here it is never the one wanted.
            ids = np.lexsort((-np.arange(len(values)), -values))[:asked].tolist()
        told = dict.fromkeys([sampled, *ids])
        name = self.name if body.get("return_tokens_as_token_ids") else self.text
        top = {name(token): max(float(values[token]), -9999.0) for token in told}
        logprobs = {
            "text_offset": [0],
            "tokens": [name(sampled)],
            "token_logprobs": [max(float(values[sampled]), -9999.0)],
            "top_logprobs": [top],
        }
        return {
            "index": index,
            "text": self.text(sampled),
            "logprobs": logprobs,
            "finish_reason": "length",
        }

    def name(self, token):
        return f"token_id:{token}" if self.knows_token_names else self.text(token)

    def text(self, token):
        return self.tokenizer.decode([token])


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Say nothing of clients that hung up, as they do when they time out."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self):
        return "client"

    def log_message(self, *words):
        pass

    def do_GET(self):
        self._do(None)

    def do_POST(self):
        self._do(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _do(self, body):
        stand_in = self.server.stand_in
        with stand_in.lock:
            stand_in.open += 1
            stand_in.most_open = max(stand_in.most_open, stand_in.open)
            stand_in.paths.append(self.path)
            stand_in.headers.append(dict(self.headers))
            fault = stand_in.faults.pop(0) if stand_in.faults else None
        try:
            if fault is None or not fault(self):
                self._answer(stand_in, body)
        finally:
            with stand_in.lock:
                stand_in.open -= 1

    def _answer(self, stand_in, body):
        time.sleep(stand_in.wait)
        key = stand_in.api_key
        try:
            if key is not None and self.headers.get("Authorization") != f"Bearer {key}":
                raise Refused(401, "Unauthorized", "AuthenticationError")
            answer = stand_in.answer(self.command, self.path, body)
        except Refused as refused:
            error = {"message": str(refused), "type": refused.kind, "code": refused.status}
            self.reply(refused.status, {"error": error})
            return
        with stand_in.lock:
            stand_in.requests.append(body or {})
        self.reply(200, answer)

    def reply(self, status, answer, *, headers=(), cut=0):
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) - cut])
        if cut:
            self.close_connection = True


def answers(status, answer=b"", **settings):
    """Return a fault: this answer instead of the right one."""

    def fault(handler):
        handler.reply(status, answer, **settings)
        return True

    return fault


def hangs(seconds):
    """Return a fault: nothing for a while, then the right answer."""

    def fault(handler):
        time.sleep(seconds)
        return False

    return fault
