"""The reply of a server with OpenAI's chat protocol: its events, what they say, where it ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from longrag.errors import GenerationError, ModelCallError
from longrag.models.plain_failures import TOO_LONG_REMEDY, is_too_long, one_line, sentence
from longrag.models.text_model import ModelUsage, Show
from longrag.models.tokens import count_tokens

if TYPE_CHECKING:
    import httpx

PATH_REMEDY: Final = "--base-url must end where /chat/completions follows, mostly with /v1"

_DATA: Final = b"data:"
# A long prompt of which a server counted a smaller share was cut: tokenizers do not differ so much.
_WHOLE, _LONG = 0.6, 1000
_WHY_EMPTY: Final = {"length": " within its limit of tokens", "content_filter": ", by its filter"}


class FailedAttempt(ConnectionError):
    """One attempt of a call that failed; status, body and headers tell whether it is repeated."""

    def __init__(
        self,
        line: str,
        *,
        status: int | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(line)
        self.status_code, self.body, self.headers = status, body, headers


class ShowFailed(Exception):
    """What showed a reply raised ``error``: no failure of the model's, and not repeated."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def read_events(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the data of each event of a stream as soon as its line has come.

    This protocol has one line of data an event. Lines end with a line feed; other characters that
    end lines in Unicode may be part of the data. A last line without an end is data too: whether
    the stream is whole is told by what it says. However the stream is cut into chunks, the events
    are the same.
    """
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from filter(None, map(_data, lines))
    if last := _data(rest):
        yield last


def _data(line: bytes) -> bytes:
    return line[len(_DATA) :].strip() if line.startswith(_DATA) else b""


class ChatReply:
    """One reply as it comes: a stream of events, or whole from a server that does not stream.

    Args:
        url: names the server, in errors.
        secrets: texts that no error may hold.
        show: is given each piece.

    Attributes:
        text: what has come.
        ended: whether the server said that this is all.
    """

    def __init__(self, url: str, secrets: tuple[str, ...], show: Show) -> None:
        self._url, self._secrets, self._show = url, secrets, show
        self.text = ""
        self.ended = False
        self._finish_reason = ""
        self._counts: Mapping[str, Any] = {}

    def read(self, response: httpx.Response) -> None:
        """Read to the end, and show each piece.

        Raises:
            GenerationError: it is no reply of a chat model.
            ModelCallError: it broke off after something was shown.
            FailedAttempt: it broke off before.
            ShowFailed: what shows it raised.
        """
        kind = response.headers.get("Content-Type", "")
        if "json" in kind or "html" in kind:
            self._take(self._parse(response.read()), "message")
            self.ended = True
        else:
            self._read_events(response.iter_bytes())
        if not self.ended:
            raise self.cut_off()

    def cut_off(self) -> Exception:
        """Return the error of a reply that broke off."""
        if not self.text:
            return FailedAttempt(
                f"{self._url} closed the connection before its answer began. Look into the"
                " server's log, or ask again."
            )
        return ModelCallError(
            f"{self._url} broke off in its answer, which is not whole. Look into the server's log,"
            " or ask again.",
            kind="unavailable",
        )

    def usage(self, prompt: str) -> ModelUsage:
        """Return what the reply used: the server's counts, or ours where it gives none.

        Raises:
            GenerationError: the reply is empty.
        """
        if not self.text:
            raise GenerationError(
                f"{self._url} gave an empty answer{_WHY_EMPTY.get(self._finish_reason, '')}. Ask"
                " another model, or raise max_tokens by --llm-options."
            )
        expected = count_tokens(prompt)
        asked = self._counts.get("prompt_tokens")
        written = self._counts.get("completion_tokens")
        notes = []
        if self._finish_reason == "length":
            notes.append("the answer ends at the server's limit of tokens")
        if not (isinstance(asked, int) and asked > 0 and isinstance(written, int)):
            return ModelUsage(
                1, expected, count_tokens(self.text), estimated=True, notes=tuple(notes)
            )
        if expected > _LONG and asked < _WHOLE * expected:
            notes.append(
                f"the server read {asked:,} of some {expected:,} tokens: its context may be too"
                " short; give a smaller --token-budget"
            )
        return ModelUsage(1, asked, written, notes=tuple(notes))

    def _read_events(self, chunks: Iterator[bytes]) -> None:
        first, events = b"", 0

        def kept() -> Iterator[bytes]:
            nonlocal first
            for chunk in chunks:
                first = first or chunk
                yield chunk

        for data in read_events(kept()):
            events += 1
            if data == b"[DONE]":
                self.ended = True
                return
            self._take(self._parse(data), "delta")
        if not events and first.strip() and not first.startswith(b":"):
            raise self._no_reply(first)

    def _take(self, event: Mapping[str, Any], part: str) -> None:
        if error := event.get("error"):
            said = server_message({"error": error}, self._secrets)
            remedy = TOO_LONG_REMEDY if is_too_long(said) else "Look into the server's log."
            raise ModelCallError(
                f"{self._url} failed while it answered: {sentence(said)} {remedy}",
                kind="unavailable",
            )
        if isinstance(counts := event.get("usage"), dict):
            self._counts = counts
        choices: Any = event.get("choices")
        if part == "delta" and choices == []:
            # An event of counts alone.
            return
        try:
            choice = choices[0]
            piece = (choice.get(part) or {}).get("content") or ""
            reason = choice.get("finish_reason")
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise self._no_reply(json.dumps(event).encode()) from error
        if not isinstance(piece, str):
            raise self._no_reply(json.dumps(event).encode())
        if reason:
            self._finish_reason, self.ended = str(reason), True
        if piece:
            self.text += piece
            try:
                self._show(piece)
            except Exception as error:  # noqa: BLE001 - raised as it is where the call is over
                raise ShowFailed(error) from None

    def _parse(self, data: bytes) -> Mapping[str, Any]:
        event = parse_json(data)
        if not isinstance(event, dict):
            raise self._no_reply(data)
        return event

    def _no_reply(self, data: bytes) -> GenerationError:
        if data.lstrip().startswith(b"<"):
            return GenerationError(
                f"{self._url} answered with a web page and no JSON: {PATH_REMEDY}."
            )
        said = one_line(data.decode("utf-8", "replace"), self._secrets)
        return GenerationError(
            f"{self._url} answered with what is no reply of a chat model: {said!r}. It must be a"
            f" server with OpenAI's protocol, and {PATH_REMEDY}."
        )


def parse_json(data: bytes) -> Any:
    """Return the value of JSON; None where it is no JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def server_message(body: Any, secrets: tuple[str, ...], text: str = "") -> str:
    """Return what a server says of an error, on one line and without secrets.

    Args:
        body: the JSON value of its answer.
        secrets: what is not to be shown.
        text: the answer, for where the value holds no message.
    """
    said = body
    for name in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(name):
            said = said[name]
    if not isinstance(said, str):
        said = "a web page" if text.lstrip().startswith("<") else text or "no message"
    return one_line(said, secrets)
