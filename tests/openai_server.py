"""A server with OpenAI's protocol on the loopback, over any writer, which can misbehave.

It answers `/v1/models`, `/v1/chat/completions`, `/v1/completions` and `/v1/embeddings` as vLLM,
llama.cpp and Ollama do: whole or as server-sent events, with the counts of tokens. What it writes
is up to a writer: a real model (`tests.real_model.writer`), or a function of the last message.
"""

import json
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

on_loopback = pytest.mark.allow_hosts(["127.0.0.1"])
"""Marks tests that talk to the server: the suite forbids every other address."""


@dataclass
class Written:
    """A reply in the making: ``pieces`` is read once, and the last two fields are true after it."""

    pieces: object
    prompt_tokens: int
    completion_tokens: int = 0
    finish_reason: str = "stop"


class ScriptedWriter:
    """Writes what a function makes of the last message, a word a piece; a token is a word."""

    def __init__(self, reply):
        self.reply = reply

    def write(self, prompt, *, max_tokens=None, stop=()):
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        written = Written((), len(text.split()))
        written.pieces = self._pieces(self.reply(text), written, max_tokens, stop)
        return written

    def _pieces(self, reply, written, max_tokens, stop):
        reply = reply[: min((at for at in map(reply.find, stop) if at >= 0), default=len(reply))]
        for number, word in enumerate(reply.split(" ")):
            if max_tokens is not None and number == max_tokens:
                written.finish_reason = "length"
                return
            written.completion_tokens += 1
            yield word if number == 0 else f" {word}"


class Refused(Exception):
    def __init__(self, status, message, kind="invalid_request_error"):
        super().__init__(message)
        self.status = status
        self.kind = kind


@dataclass
class OpenAIServer:
    """Serves ``writer`` under a model's name; use it as a context manager.

    ``faults`` are taken one a request, each a function from the request's handler to whether it
    answered; None answers well. ``requests`` keeps path, body and headers of every request.
    """

    writer: object
    model: str = "served"
    embed: object = None
    api_key: str | None = None
    faults: list = field(default_factory=list)
    requests: list = field(default_factory=list)

    def __enter__(self):
        self.lock = threading.Lock()
        self.released = threading.Event()
        self.open = self.most_open = 0
        self._server = LoopbackServer(("127.0.0.1", 0), _Handler)
        self._server.served = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *raised):
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def bodies(self, path="/v1/chat/completions"):
        return [body for asked, body, _ in self.requests if asked == path]

    def listing(self):
        return {"object": "list", "data": [{"id": self.model, "object": "model", "created": 0,
                                            "owned_by": "tests"}]}  # fmt: skip

    def embeddings(self, body):
        if self.embed is None:
            raise Refused(404, "this server has no embeddings")
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        rows = [
            {"object": "embedding", "index": at, "embedding": list(map(float, vector))}
            for at, vector in enumerate(self.embed(texts))
        ]
        count = sum(len(text.split()) for text in texts)
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "model": self.model, "data": rows, "usage": usage}

    def begin(self, body, chat):
        if body.get("model") != self.model:
            raise Refused(404, f"The model `{body.get('model')}` does not exist.")
        prompt = body["messages"] if chat else body["prompt"]
        if not chat and not isinstance(prompt, str):
            raise Refused(400, "one prompt, a string, is served here")
        stop = body.get("stop") or ()
        max_tokens = body.get("max_completion_tokens") or body.get("max_tokens")
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        return self.writer.write(prompt, max_tokens=max_tokens, stop=stops)

    def whole(self, body, written, chat):
        text = "".join(written.pieces)
        said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        return self._card(body, chat, said, written.finish_reason) | {"usage": _usage(written)}

    def events(self, body, written, chat):
        for number, piece in enumerate(written.pieces):
            delta = {"content": piece} | ({} if number else {"role": "assistant"})
            yield self._card(body, chat, {"delta": delta} if chat else {"text": piece}, None, True)
        end = {"delta": {}} if chat else {"text": ""}
        yield self._card(body, chat, end, written.finish_reason, True)
        if (body.get("stream_options") or {}).get("include_usage"):
            last = self._card(body, chat, end, None, True)
            yield last | {"choices": [], "usage": _usage(written)}

    def _card(self, body, chat, said, finish_reason, stream=False):
        kind = ("chat.completion.chunk" if stream else "chat.completion") if chat else (
            "text_completion")  # fmt: skip
        choice = {"index": 0, "finish_reason": finish_reason, "logprobs": None, **said}
        return {"id": "cmpl-1", "object": kind, "created": 0, "model": body["model"],
                "choices": [choice]}  # fmt: skip


def _usage(written):
    total = written.prompt_tokens + written.completion_tokens
    return {
        "prompt_tokens": written.prompt_tokens,
        "completion_tokens": written.completion_tokens,
        "total_tokens": total,
    }


def refuse(status, message="on command", *, retry_after=None):
    """Answer with a status, and ``Retry-After`` in seconds where it is given."""

    def fault(handler):
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        handler.send_json(status, {"error": {"message": message, "type": "fault"}}, headers)
        return True

    return fault


def stall(handler):
    """Say nothing until the client is gone, or the server's ``released`` is set."""
    served = handler.server.served
    handler.connection.settimeout(0.05)
    while not served.released.is_set():
        try:
            if not handler.connection.recv(1, socket.MSG_PEEK):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    handler.close_connection = True
    return True


def hang_up(handler):
    """Close the connection without an answer."""
    handler.abort()
    return True


def send_page(handler):
    """Answer with the page of a proxy instead of JSON."""
    page = b"<html>Bad gateway</html>"
    handler.send_response(200)
    handler.send_header("Content-Type", "text/html")
    handler.send_header("Content-Length", str(len(page)))
    handler.end_headers()
    handler.wfile.write(page)
    return True


def cut(after):
    """Close the connection after ``after`` events of a stream."""

    def fault(handler):
        handler.cut_after = after
        return False

    return fault


def fail_in_stream(after):
    """Send an error as the event after ``after`` others, as vLLM does, and end the stream."""

    def fault(handler):
        handler.fail_after = after
        return False

    return fault


class LoopbackServer(ThreadingHTTPServer):
    """Waits for its threads when it is closed."""

    daemon_threads = False
    block_on_close = True

    def handle_error(self, request, client_address):
        """A client that went away is no error of the server's."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cut_after = fail_after = None

    def log_message(self, *_):
        pass

    def end_headers(self):
        # A client that keeps a connection open for another event loop never closes it.
        self.send_header("Connection", "close")
        self.close_connection = True
        super().end_headers()

    def do_GET(self):
        self.answer({})

    def do_POST(self):
        self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def answer(self, body):
        served = self.server.served
        with served.lock:
            served.requests.append((self.path, body, dict(self.headers)))
            fault = served.faults.pop(0) if served.faults else None
            served.open += 1
            served.most_open = max(served.most_open, served.open)
        self.cut_after = self.fail_after = None
        try:
            if fault is None or not fault(self):
                self.serve(served, body)
        except Refused as refused:
            error = {"message": str(refused), "type": refused.kind, "code": refused.status}
            self.send_json(refused.status, {"error": error})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with served.lock:
                served.open -= 1

    def serve(self, served, body):
        if served.api_key and self.headers["Authorization"] != f"Bearer {served.api_key}":
            raise Refused(401, "Incorrect API key provided", "authentication_error")
        match self.path:
            case "/v1/models":
                self.send_json(200, served.listing())
            case "/v1/embeddings":
                self.send_json(200, served.embeddings(body))
            case "/v1/chat/completions" | "/v1/completions":
                chat = self.path.startswith("/v1/chat")
                written = served.begin(body, chat)
                if body.get("stream"):
                    self.send_events(served.events(body, written, chat))
                else:
                    self.send_json(200, served.whole(body, written, chat))
            case _:
                raise Refused(404, "Not Found")

    def send_json(self, status, content, headers=()):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def send_events(self, events):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, event in enumerate(events):
            if number == self.cut_after:
                self.abort()
                return
            if number == self.fail_after:
                failed = {"error": {"message": "the engine died", "type": "server_error"}}
                self.send_event(json.dumps(failed))
                break
            self.send_event(json.dumps(event))
        self.send_event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def send_event(self, data):
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.flush()

    def abort(self):
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
