"""From a question to the prompt that is decoded, and from what was decoded to the answer."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from longrag.decoding.generation import Generation
from longrag.errors import InvalidParameterError
from longrag.ingestion.key_extraction import one_line
from longrag.models.tokenizer import MARKERS
from longrag.prompts import RICHES_MULTI_HOP, RICHES_SINGLE_HOP

_NOTHING_ASKED: Final = "..."

LABELS: Final = ("question", "passage", "keyword", "query", "answer")
"""What the lines and parts of a prompt begin with, before a colon."""

_LABEL: Final = re.compile(rf"({'|'.join(LABELS)})(?=[:\uff1a])", re.IGNORECASE)
_ANSWER: Final = re.compile(r"(?<!\w)([*_]{0,3})answer[*_]{0,3}[ \t]{0,8}[:\uff1a]", re.IGNORECASE)
_WRAPPED: Final = re.compile(r"(\*{1,3}|`{1,3})([^*`]+)\1")


def defuse(text: str, *, markers: tuple[str, str] = MARKERS) -> str:
    """Return a text that means nothing to the form of a prompt it is put into.

    It is one line, a label in it is parted from its colon and a marker from its first character.
    What is left is verbatim.
    """
    line = _LABEL.sub(r"\1 ", one_line(text))
    for marker in markers:
        first, rest = marker.strip()[:1], marker.strip()[1:]
        line = re.sub(
            f"{re.escape(first)}(?={re.escape(rest)})", f"{first} " if rest else " ", line
        )
    return line


def fill(
    template: str,
    slots: Mapping[str, str],
    *,
    raw: Mapping[str, str] = MappingProxyType({}),
    markers: tuple[str, str] = MARKERS,
) -> str:
    """Put texts into the slots of a template, defused; other braces stand for themselves.

    Args:
        template: a text with a slot ``{name}`` for each text.
        slots: the texts by the names of their slots.
        raw: texts that have the form of the prompt already and are put in as they are.
        markers: what a text may not hold.

    Raises:
        InvalidParameterError: the template is no string with each of the slots, or a text is no
            string.
    """
    for name, text in (*slots.items(), *raw.items()):
        if not isinstance(text, str):
            raise InvalidParameterError(name, text, "a string")
        if not isinstance(template, str) or f"{{{name}}}" not in template:
            raise InvalidParameterError("template", template, f"a string with the slot {{{name}}}")
    texts = {name: defuse(text, markers=markers) for name, text in slots.items()} | dict(raw)
    # All at once: a text that holds the name of another slot is not filled in its turn.
    names = re.compile("|".join(rf"\{{{re.escape(name)}\}}" for name in texts))
    return names.sub(lambda found: texts[found[0][1:-1]], template)


def riches_prompt(
    question: str, template: str = RICHES_SINGLE_HOP, *, markers: tuple[str, str] = MARKERS
) -> str:
    """Return the prompt of a question, which cannot break the form of the template.

    Args:
        question: the question, as it was asked.
        template: a text with the slot ``{question}``; other braces stand for themselves.
        markers: what stands around a span in the template and in the output; the templates of
            ``longrag.prompts`` are rewritten for others than ``<<`` and ``>>``.

    Raises:
        InvalidParameterError: a question that is blank, or a template without the slot.
    """
    if isinstance(question, str) and not question.strip():
        raise InvalidParameterError("question", question, "not blank")
    return fill(with_markers(template, markers), {"question": question}, markers=markers)


def prior_prompt(template: str = RICHES_SINGLE_HOP, *, markers: tuple[str, str] = MARKERS) -> str:
    """Return a template's prompt without a question, up to where a span is opened.

    How probable a key is behind it tells how probable the key is whatever is asked; see
    ``RichesDecoder.generate``.

    Raises:
        InvalidParameterError: a template without the slot ``{question}``.
    """
    hint = " keyword: ..." if template.rstrip().endswith("passage:") else ""
    return riches_prompt(_NOTHING_ASKED, template, markers=markers) + hint


def with_markers(template: str, markers: tuple[str, str]) -> str:
    """Return a template of ``longrag.prompts`` with other markers; any other as it is.

    Examples with other markers than the decoder's teach a model to quote where nothing holds it.
    """
    if markers == MARKERS or template not in (RICHES_SINGLE_HOP, RICHES_MULTI_HOP):
        return template
    others = dict(zip(MARKERS, markers, strict=True))
    return re.sub("|".join(map(re.escape, MARKERS)), lambda found: others[found[0]], template)


def parse_answer(output: str | Generation, *, markers: tuple[str, str] = MARKERS) -> str:
    """Return what stands behind the last ``answer:`` of an output; an empty string if none does.

    A label within a span is the corpus's and means nothing. The answer ends with its line or where
    a span begins, and is on the next line with text where its own has none. Capitals and Markdown's
    emphasis around label or answer make no difference. Where spans are is known of a generation,
    and is read off the markers of a string, an open one reaching to its end.
    """
    free = "\n".join(_free(output, markers))
    found = deque(_ANSWER.finditer(free), maxlen=1)
    if not found:
        return ""
    rest = free[found[0].end() :]
    value, _, below = rest.partition("\n")
    if not value.strip(" \t\r*_"):
        value = below.lstrip().partition("\n")[0]
        if _LABEL.match(value.lstrip(" \t*_#")):
            return ""
    return _plain(value.strip(), found[0][1])


def thoughts(generation: Generation, *, markers: tuple[str, str] = MARKERS) -> tuple[str, ...]:
    """Return the free text before each span, one for each, without the label ``keyword:``.

    They are what the model wrote by itself to say what it looks for next (RICHES §4); no evidence.
    """
    free = _free(generation, markers)
    found = (next(free).strip() for _ in generation.spans)
    return tuple(re.sub(r"\A(?:passage:\s*)?keyword:\s*", "", text, flags=re.I) for text in found)


def _free(output: str | Generation, markers: tuple[str, str]) -> Iterator[str]:
    """Yield the free text before each span, and that behind the last one."""
    opening, closing = (marker.strip() for marker in markers)
    if isinstance(output, str):
        shown = f"{re.escape(opening)}.*?(?:{re.escape(closing)}|\\Z)"
        yield from re.split(shown, output, flags=re.DOTALL)
        return
    done = 0
    for span in output.spans:
        before = output.text[done : span.start]
        yield _behind(before, closing, done).rstrip().removesuffix(opening)
        done = span.end
    # What opens behind the last span was never closed: it is no evidence and no thought either.
    yield _behind(output.text[done:], closing, done).partition(opening)[0]


def _behind(text: str, closing: str, done: int) -> str:
    return text.lstrip().removeprefix(closing) if done else text


def _plain(value: str, emphasis: str) -> str:
    """Take off the emphasis that began before the label, and that around the answer itself."""
    if emphasis:
        shown = value.removeprefix(emphasis)
        value = (shown if shown != value else value.removesuffix(emphasis)).strip()
    wrapped = _WRAPPED.fullmatch(value)
    return wrapped[2].strip() if wrapped else value
