"""What language models write around an answer, or instead of it, taken off.

Small models repeat the instructions or the question, put "The answer is:" before an answer, and are
cut off in the middle of a sentence; models that reason open with their thoughts. All of this is
recognised by its words alone: no text of a document is part of what is compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from longrag.models.words import CJK_RUN
from longrag.prompts import TAGS

_LABELS: Final = (
    "answer",
    "short answer",
    "long answer",
    "summary",
    "the answer is",
    "the short answer is",
    "the answer to the question is",
    "the answer to this question is",
    "the answer to your question is",
    "the document reads",
    "the document says",
    "the document states",
    "the documents say",
    "the passage says",
    "here is the answer",
    "here is the summary",
    "here is a summary",
    "here is the summary of the passages",
    "sure here is the answer",
    "sure here is the summary",
    "sure here is a summary",
    "答案",
    "回答",
)
# Shorter sentences may well be answers.
_MIN_WORDS: Final = 4
_MIN_QUESTION_WORDS: Final = 3
_MIN_QUESTION_CJK: Final = 6
_CUT_WORDS: Final = 5

_THINK: Final = "<think>"
_THOUGHT_END: Final = "</think>"
_WORD: Final = re.compile(r"\w+")
_QUESTION: Final = re.compile(
    r"[?？]\s*$|^\W*(?:who|whose|whom|what|when|where|which|why|how|is|are|was|were|do|does|did|can)\b",
    re.IGNORECASE,
)
_TAG: Final = re.compile(rf"</?(?:{'|'.join(TAGS)})[^<>]{{0,200}}>")
_INSTRUCTIONS_END: Final = re.compile(r"(?<=[.!?。！？])\s+|(?<=[。！？])|\n+")
_CLOSING: Final = r"[\"'”’」)\]*_]{0,8}"
_SENTENCE_END: Final = re.compile(rf"(?:[.!?]{_CLOSING}(?=\s)|[。！？]{_CLOSING}|(?=\n))(\s*)")
_MAYBE_END: Final = re.compile(rf"[.!?。！？]{_CLOSING}$")
_BOUNDARY: Final = re.compile(rf"{_CLOSING}(?:[.!?:;。！？：]+{_CLOSING}(?=\s|$|[^.\w])|\s*\n)\s*")
_PLAIN_START: Final = re.compile(r"[\s*_#\"“]*\w")
_COLON: Final = re.compile(rf"{_CLOSING}\s?[:：]{_CLOSING}\s*")
_ENDED: Final = re.compile(rf"[.!?。！？…:：]{_CLOSING}\s*$|[\"”」|`]\s*$")
_LAST_END: Final = re.compile(rf"^.*(?:[.!?]{_CLOSING}(?=\s)|[。！？]{_CLOSING})", re.DOTALL)
_LIST_ITEM: Final = re.compile(r"\s*(?:[-*•·–]|\(?\d{1,2}[.):、])\s")


@dataclass(frozen=True, slots=True)
class PromptEcho:
    """The sentences of a prompt that are no answer, each as its words in small letters."""

    sentences: frozenset[str] = frozenset()

    @classmethod
    def of(cls, instructions: str, question: str = "") -> PromptEcho:
        """Collect the sentences of four words and more, and the question.

        Args:
            instructions: a prompt whose slots were filled with nothing, so that no text of a
                document is in it.
            question: one of three words and more is no answer to itself; a statement that is to be
                checked may well be.
        """
        sentences = _INSTRUCTIONS_END.split(_TAG.sub("\n", instructions))
        parts = [part for one in sentences for part in (one, *re.split(r"[:：]", one)[1:])]
        found = {words for part in parts if len((words := _words(part)).split()) >= _MIN_WORDS}
        asked = _words(question)
        cjk = sum(map(len, CJK_RUN.findall(asked)))
        long = len(asked.split()) >= _MIN_QUESTION_WORDS or cjk >= _MIN_QUESTION_CJK
        if long and (_QUESTION.search(question) or cjk):
            found.add(asked)
        return cls(frozenset(found))


class ThoughtFilter:
    """Leaves out the ``<think>`` block with which models that reason open a reply, as it streams.

    A block that is never closed was cut off, and with it the reply: nothing is left.
    """

    def __init__(self) -> None:
        self._held = ""
        self._state: Literal["before", "inside", "behind"] = "before"

    def feed(self, text: str) -> str:
        """Return what can be shown now."""
        if self._state == "behind":
            return text
        self._held += text
        if self._state == "before":
            begun = self._held.lstrip()
            if begun.startswith(_THINK):
                self._state = "inside"
            elif not _THINK.startswith(begun):
                self._state = "behind"
        if self._state == "inside":
            thought, end, behind = self._held.partition(_THOUGHT_END)
            if not end:
                # The first part of an end that comes in two pieces is kept.
                self._held = thought[-len(_THOUGHT_END) :]
                return ""
            self._held, self._state = behind, "behind"
        if self._state == "before":
            return ""
        shown, self._held = self._held, ""
        return shown

    def finish(self) -> str:
        """Return what was held back and is no thought."""
        return self._held if self._state == "before" else ""


def without_thoughts(reply: str) -> str:
    """Return a whole reply without the ``<think>`` block at its beginning.

    Where the prompt opens the block the reply holds only its end, ``</think>``: all before that is
    left out, unless the block was opened in the reply or the tag stands in code, within backticks.
    """
    thought, end, behind = reply.partition(_THOUGHT_END)
    if end and _THINK not in thought and thought.count("`") % 2 == 0:
        return behind
    stream = ThoughtFilter()
    return stream.feed(reply) + stream.finish()


class EchoFilter:
    """Leaves the echo of a prompt out of a reply while it streams.

    What ``feed`` and ``finish`` return, put together, is the reply without the sentences that
    repeat the prompt, and without a label such as "The answer is:" before it. Where a sentence
    begins like one of them it is held back until it differs; all else is returned as it comes, but
    for white space at the end of a sentence, which comes with the next.
    """

    def __init__(self, echo: PromptEcho) -> None:
        self._echo = echo.sentences
        # Behind the beginning of a reply a label is part of it.
        self._labels = frozenset(_LABELS) if echo.sentences else echo.sentences
        self._held = self._gap = ""
        self._inside = False

    @property
    def _known(self) -> frozenset[str]:
        return self._echo | self._labels

    def feed(self, text: str) -> str:
        """Return what can be shown now."""
        if not self._echo:
            return text
        self._held += text
        return "".join(self._release())

    def finish(self) -> str:
        """Return what was held back and is no echo."""
        shown = "".join(self._release(ended=True)) if self._echo else ""
        rest = self._gap + self._held if self._held.strip() else ""
        self._held = self._gap = ""
        return shown + rest

    def _release(self, *, ended: bool = False) -> Iterator[str]:
        while self._held:
            if self._inside:
                yield from self._pass()
                if self._inside or not self._held:
                    return
            # White space behind a sentence may come with a later piece than its end.
            begun = self._held.lstrip()
            self._gap += self._held[: len(self._held) - len(begun)]
            self._held = begun
            words = _words(begun)
            if not ended and (not words or any(one.startswith(words) for one in self._known)):
                return
            if ended and self._is_cut_echo(words):
                self._held = ""
                return
            after = self._skip(words)
            if after is None:
                if not words:
                    return
                self._inside, self._labels = True, frozenset()
                yield self._gap
                self._gap = ""
            else:
                self._held = self._held[after:]

    def _pass(self) -> Iterator[str]:
        """Yield the rest of a sentence, as far as it has come."""
        end = _SENTENCE_END.search(self._held)
        if end is not None:
            yield self._held[: end.start(1)]
            self._gap, self._held, self._inside = end[1], self._held[end.end() :], False
            return
        maybe = _MAYBE_END.search(self._held)
        at = maybe.start() if maybe else len(self._held)
        yield self._held[:at]
        self._held = self._held[at:]

    def _skip(self, words: str) -> int | None:
        """Return where the echo ends with which the held text begins, None without one."""
        found = [one for one in self._echo if words == one or words.startswith(f"{one} ")]
        if self._labels and _PLAIN_START.match(self._held):
            found += [one for one in self._labels if words == one or words.startswith(f"{one} ")]
        for one in sorted(found, key=len, reverse=True):
            *_, last = (match.end() for match, _ in zip(
                _WORD.finditer(self._held), one.split(), strict=False))  # fmt: skip
            boundary = _COLON if one not in self._echo else _BOUNDARY
            follows = boundary.match(self._held, last)
            if follows is not None:
                return follows.end()
            if one in self._echo and not self._held[last:].strip():
                return len(self._held)
        return None

    def _is_cut_echo(self, words: str) -> bool:
        return len(words.split()) >= _CUT_WORDS and any(one.startswith(words) for one in self._echo)


def without_echo(reply: str, echo: PromptEcho) -> str:
    """Return a whole reply without thoughts, echo of its prompt and white space at its ends."""
    stream = EchoFilter(echo)
    return (stream.feed(without_thoughts(reply)) + stream.finish()).strip()


def without_half_sentence(text: str) -> str:
    """Return a text without a last sentence that was cut off.

    It was where the text ends without a mark although an earlier sentence ends with one. A last
    line that is an item of a list stays, and so does a sentence that is most of the text.
    """
    if _ENDED.search(text):
        return text
    found = _LAST_END.match(text)
    if found is None or 2 * len(found[0]) < len(text):
        return text
    rest = text[found.end() :]
    last_line = rest.rpartition("\n")[2]
    return text if _LIST_ITEM.match(last_line) else found[0]


def _words(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))
