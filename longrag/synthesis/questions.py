"""What a question asks for: a person, a date, a number, a reason; in English and Chinese."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from longrag.models.words import STOPWORDS, content_terms, terms, word_set
from longrag.synthesis.candidates import DATES, NUMBERS, tokenize

QuestionKind: TypeAlias = Literal[
    "person", "place", "time", "number", "reason", "manner", "boolean", "thing"
]

_MEASURE = "many|much|long|far|old|tall|high|big|large|fast|deep|wide|often|heavy|hot|cold"
_NUMBER = "percentage|percent|number|amount|population|age|size|length|height|speed|rate|cost|price"
_TIME = "years?|date|day|month|decade|century|time"
_PLACE = "city|country|state|place|location|continent|region|town|county|province|island"
_WHAT = r"\b(?:what|which)(?: (?:is|was|are|were))?(?: the)?"
_PATTERNS: tuple[tuple[QuestionKind, str], ...] = (
    (
        "number",
        rf"\bhow (?:{_MEASURE})\b|{_WHAT}(?: \w+)? (?:{_NUMBER})\b"
        r"|多少|几(?![何乎年月日号点])|多[长远大高久]",
    ),
    (
        "time",
        rf"\bwhen\b|\b(?:what|which) (?:{_TIME})\b"
        r"|哪一?年|哪一?[天月日]|什么时候|何时|什么时间|几[年月日号点]",
    ),
    ("person", r"\b(?:who|whom|whose)\b|谁|何人"),
    (
        "place",
        rf"\bwhere\b|\b(?:what|which) (?:{_PLACE})\b"
        r"|哪里|哪儿|何处|什么地方|哪一?个?(?:城市|国家|地方)",
    ),
    ("reason", rf"\bwhy\b|{_WHAT} reason\b|为什么|为何"),
    ("manner", r"\bhow\b|怎么|怎样|如何"),
    ("thing", r"\b(?:what|which)\b|什么|哪"),
)
_KINDS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _PATTERNS)
_BOOLEAN = re.compile(
    r"\s*(?:is|are|was|were|do|does|did|can|could|has|have|had|will|would|should|may|must)\b",
    re.IGNORECASE,
)
_BOOLEAN_CJK = re.compile(r"吗|是否|是不是|能不能")
_DEFINES_CJK = re.compile(r"什么是|是什么|是指什么|什么意思")
_YEAR = re.compile(r"\byears?\b|哪一?年", re.IGNORECASE)
_AUXILIARIES = word_set(
    "is are was were do does did can could has have had will would should been might may must"
)
_NEGATION = re.compile(
    r"\b(?:not?|never|cannot|neither|nor|without)\b|n['’]t\b|不|没有|未|无", re.IGNORECASE
)
_MOST_FOLLOWING = 400
_MOST_TOKEN_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class ParsedQuestion:
    """A question taken apart.

    ``terms`` are its content terms in order. ``focus`` are the terms of the noun that "which" or
    "how many" asks about. ``wants_subject`` says that the answer is the subject of the verb ("who
    wrote it"), ``defines`` that the question asks what something is.
    """

    text: str
    kind: QuestionKind
    terms: tuple[str, ...]
    focus: tuple[str, ...]
    wants_subject: bool
    defines: bool
    negated: bool
    year_only: bool


def parse_question(text: str) -> ParsedQuestion:
    """Take a question apart by its interrogative; without one it asks for a thing."""
    kind, rest = _kind(text)
    words = [t.text.casefold() for t in tokenize(rest, 0, min(len(rest), _MOST_FOLLOWING))]
    count = next((i for i, w in enumerate(words) if w in STOPWORDS or not w.isalnum()), len(words))
    has_focus = kind in ("thing", "number", "place", "time")
    noun, tail = (words[:count], words[count:]) if has_focus else ([], words)
    auxiliary = bool(tail) and tail[0] in _AUXILIARIES
    content = tuple(content_terms(text))
    return ParsedQuestion(
        text=text,
        kind=kind,
        terms=content,
        focus=tuple(term for word in noun[:3] if word.isascii() for term, _ in terms(word)),
        wants_subject=not auxiliary,
        defines=len(content) <= 4
        and kind == "thing"
        and ((not noun and auxiliary) or _DEFINES_CJK.search(text) is not None),
        negated=negates(text, 0, len(text)),
        year_only=kind == "time" and _YEAR.search(text) is not None,
    )


def negates(text: str, start: int, end: int) -> bool:
    """Whether a stretch of text holds a negation."""
    return _NEGATION.search(text, start, end) is not None


def expected_in(question: ParsedQuestion) -> Callable[[str, int, int], bool] | None:
    """Give a test of whether ``text[start:end]`` holds the kind of thing a question asks for.

    None where any sentence may: questions for a thing, a reason, a way, or yes and no.
    """
    if question.kind in ("time", "number"):
        pattern = DATES if question.kind == "time" else NUMBERS
        return lambda text, start, end: pattern.search(text, start, end) is not None
    if question.kind not in ("person", "place"):
        return None
    known = frozenset(question.terms)

    def holds_new_name(text: str, start: int, end: int) -> bool:
        tokens = tokenize(text, start, min(end, start + _MOST_TOKEN_CHARACTERS))
        return any(
            token.text[0].isupper()
            and not token.is_stopword
            and known.isdisjoint(term for term, _ in terms(token.text))
            for token in tokens[1:]
        )

    return holds_new_name


def _kind(text: str) -> tuple[QuestionKind, str]:
    """Name the kind of question and what follows its interrogative."""
    if _BOOLEAN.match(text) or _BOOLEAN_CJK.search(text):
        return "boolean", text
    for kind, pattern in _KINDS:
        match = pattern.search(text)
        if match:
            return kind, text[match.end() :]
    return "thing", text
