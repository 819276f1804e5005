"""What a query classifier sees of a query: n-grams of what is asked, and the shape of the text.

A query is read as an instruction and, where one is pasted, a body: what follows the first line, a
colon, or is in quotation marks. Words and characters are those of the instruction; of the body
only its words count, in a separate block, so that the names in a text to be translated do not
look like the names in a question. Chinese is read by the character.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import pairwise
from unicodedata import normalize

READ_FIRST = 1500
"""The characters read from the start of a query that is longer than both together."""

READ_LAST = 500
"""The characters read from the end of such a query."""

_HEAD = 8
_TAIL = 4
_CHARACTERS = (2, 3)
_EDGE = 4
_MARK = 0.3
_SHORTEST_QUOTE = 18
_SHORTEST_QUOTE_CHINESE = 8
_SHORTEST_BODY = 12
_SHORTEST_HEADING = 4
_BODY = "¶"

_CHINESE = re.compile(r"[\u3400-\u9fff]")
_TOKEN = re.compile(
    r"[^\W\d_\u3400-\u9fff]+(?:'[^\W\d_\u3400-\u9fff]+)*|\d+|[\u3400-\u9fff]|[^\w\s]"
)
_QUOTED = re.compile(r'"[^"]+"|“[^“”]+”|「[^「」]+」|『[^『』]+』')
_COLON = re.compile(r":(?=\s|[A-Za-z]|[^\x00-\x7f])")
_YEAR = re.compile(r"(?<!\d)(?:1[5-9]|20)\d\d(?!\d)")
_ARITHMETIC = re.compile(r"\d\s*[-+*/^×÷%=]")
_IDENTIFIER = re.compile(
    r"(?<![^\W_])(?:[A-Za-z]{1,24}[-_.]?\d|\d{1,24}[A-Za-z]|[A-Za-z\d]{1,24}[_.:/\\]{1,2}[A-Za-z]"
    r"|[a-z]{1,24}[A-Z])"
)
_ACRONYM = re.compile(r"(?<![^\W_])[A-Z]{2,24}(?![^\W\d_s])")
_SENTENCE_END = re.compile(r"[.!?。](?:\s|$|[\"”])|[。！]")
_AFTER_STOP = frozenset('.!?:"“')
_QUESTION_WORDS = frozenset({
    "who", "what", "when", "where", "which", "why", "how", "whose", "whom",
    "is", "are", "was", "were", "does", "do", "did", "can",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Block:
    """Distinct features of one kind, in order; ``scale`` is None where they share unit length."""

    features: tuple[str, ...]
    scale: float | None = None


def blocks(query: str) -> tuple[Block, ...]:
    """Return the features of a query: its words, characters, body and shape.

    The first letter of a feature names its kind. Of a query of more than ``READ_FIRST`` +
    ``READ_LAST`` characters only its beginning and its end are read.
    """
    # Normalising can make one character eighteen, so what comes out of it is bounded too.
    text = _window(normalize("NFKC", _window(query))).replace("’", "'").strip()
    instruction, body = _split(text)
    words = _words(instruction)
    pasted = _words(body)
    found = (
        Block(_distinct(_word_features(words, _words(text)))),
        Block(_distinct(_character_features(instruction))),
        Block(_distinct(f"b{word}" for word in pasted)),
        Block(_distinct(_shape(text, instruction, words, len(pasted))), _MARK),
    )
    return tuple(block for block in found if block.features)


def novelty(found: tuple[Block, ...], known: Container[str]) -> Block:
    """Return a mark of how many of the words of an instruction are unknown, for its length.

    Keyword searches use an open vocabulary; instructions about a given text use few words, most of
    which occur in the training queries.
    """
    words = [
        feature
        for block in found
        for feature in block.features
        if feature[0] == "w" and " " not in feature and feature[1].isalnum()
    ]
    unknown = sum(word not in known for word in words)
    length = int(1.5 * math.log2(len(words) + 1))
    return Block((f"?{min(3, unknown)} of {min(4, length)}",), _MARK)


def _window(query: str) -> str:
    if len(query) <= READ_FIRST + READ_LAST:
        return query
    return f"{query[:READ_FIRST]}\n{query[-READ_LAST:]}"


def _split(text: str) -> tuple[str, str]:
    """Separate the instruction from text pasted after or inside it."""
    line, newline, rest = text.partition("\n")
    bodies = [rest] if newline else []
    instruction = f"{line} {_BODY}" if newline else line

    def take(found: re.Match[str]) -> str:
        chinese = _CHINESE.search(found[0]) is not None
        if len(found[0]) < (_SHORTEST_QUOTE_CHINESE if chinese else _SHORTEST_QUOTE):
            return found[0]
        bodies.append(found[0])
        return f" {_BODY} "

    instruction = _QUOTED.sub(take, instruction)
    colon = _COLON.search(instruction, _SHORTEST_HEADING)
    if colon and len(instruction) - colon.end() >= _SHORTEST_BODY:
        bodies.append(instruction[colon.end() :])
        instruction = f"{instruction[: colon.end()]} {_BODY}"
    return instruction, "\n".join(bodies)


def _words(text: str) -> list[str]:
    return ["0" if found.isdigit() else found.lower() for found in _TOKEN.findall(text)]


def _distinct(features: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(features))


def _word_features(words: list[str], whole: list[str]) -> Iterator[str]:
    head = words[:_HEAD]
    tail = [*whole[-_TAIL:], "$"]
    for kind, run in (("w", words), ("h", head), ("t", tail[:-1])):
        for word in run:
            yield f"{kind}{word}"
    for kind, run in (("w", words), ("h", ["^", *head]), ("t", tail)):
        for first, second in pairwise(run):
            yield f"{kind}{first} {second}"


def _character_features(instruction: str) -> Iterator[str]:
    text = f" {' '.join(re.sub(r'[0-9]+', '0', instruction.lower()).split())} "
    for size in _CHARACTERS:
        for start in range(len(text) - size + 1):
            yield f"c{text[start : start + size]}"
    for start in range(len(text) - _EDGE + 1):
        # Within a word they say little more than the shorter ones, and are half of all features.
        if text[start] == " " or text[start + _EDGE - 1] == " ":
            yield f"c{text[start : start + _EDGE]}"


def _shape(text: str, instruction: str, words: list[str], pasted: int) -> Iterator[str]:
    """Yield marks of length, layout, punctuation, numbers, names and identifiers."""
    tokens = _TOKEN.findall(text)
    yield f"#length {int(math.log2(len(tokens) + 1))}"
    yield f"#asked {int(1.5 * math.log2(len(words) + 1))}"
    yield f"#body {min(8, int(math.log2(pasted + 1)))}"
    yield f"#lines {min(4, text.count(chr(10)))}"
    yield f"#sentences {min(5, len(_SENTENCE_END.findall(text)))}"
    yield f"#numbers {min(3, words.count('0'))}"
    yield f"#names {min(3, _capitals(tokens))}"
    yield f"#names in head {min(2, _capitals(tokens[:14]))}"
    yield f"#chinese {len(_CHINESE.findall(text)) > 0.2 * len(text)}"
    for name, present in (
        ("colon", _COLON.search(text)),
        ("quote", _QUOTED.search(text)),
        ("year", _YEAR.search(text)),
        ("arithmetic", _ARITHMETIC.search(text)),
        ("code", re.search(r"[=(){};<>\[\]]", text)),
        ("asks", text.endswith("?")),
        ("identifier", _IDENTIFIER.search(instruction)),
        ("acronym", _ACRONYM.search(instruction)),
        ("question word", words and words[0] in _QUESTION_WORDS),
    ):
        if present:
            yield f"#{name}"


def _capitals(tokens: list[str]) -> int:
    """Count the capitalised words that do not begin a sentence."""
    return sum(
        word[0].isupper() and word.partition("'")[0] != "I" and before not in _AFTER_STOP
        for before, word in pairwise(tokens)
    )
