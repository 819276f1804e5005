"""Texts as the words that are compared: what differs in nothing else is the same quote."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

# Scripts without spaces, where each character is a word.
ALONE: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\U00020000-\U0003ffff"
)
# Characters that have no width.
_HIDDEN: Final = "\u00ad\u200b-\u200d\u2060\ufeff"
_LETTER: Final = f"(?:(?![{ALONE}])[^\\W_]|[\u0300-\u036f{_HIDDEN}])"
_MINUS: Final = "-\u2010-\u2015\u2212"
# Where a word may begin.
_BEFORE: Final = r"(?<![^\s(\[{*_`\"'“‘])"
TOKEN: Final = re.compile(
    rf"""(?P<word>{_LETTER}+(?:(?:\\?_+|['’ʼ]|(?<=\d)[.,:/．，：／](?=\d)){_LETTER}+)*|[{ALONE}])
    |(?P<less>&[lg]t;(?=\s|\d))
    |(?P<skip>\]\([^()\s]*(?:\s+"[^"\n]*")?\)|\]\[[^\]\s]*\]|&(?:nbsp|quot|lt|gt|\#39);
      |</?(?i:b|i|u|em|strong|br|p|div|span|code|a|sup|sub|t[dhr])\b[^<>]*>)
    |(?P<and>&amp;|&&?)
    |(?P<sign>(?<=\d)\s*[{_MINUS}*/]\s*(?=\d)|{_BEFORE}[-\u2012\u2013\u2212](?=\d)
      |{_BEFORE}--?(?=[^\W\d_])|[%°$€£¥₹±≠≤≥≈×÷√^@¬→←]|[!<>+-]=|=>|\+\+|(?<!=)={{1,3}}(?!=)
      |(?<=[\s`])[<>+*](?=[\s`])|[<>~](?=\s?\d)|(?<=\$)_(?!\w)|\+(?=\w)|(?<=\w)\#|\#(?=\d)
      |(?<!\[)!(?=\w))""",
    re.VERBOSE,
)

# What stands before the text of a line that is quoted.
_MARGIN: Final = re.compile("[> \t\xa0]*")

_NEGATIONS: Final = frozenset(
    re.findall(
        r"\S+",
        "not no never none nobody nothing neither nor nowhere without cannot hardly scarcely "
        "barely rarely seldom unlikely false fail fails failed lack lacks lacked deny denies "
        "denied refuse refuses refused nicht kein keine keinen keiner nie niemals ohne jamais "
        "sans aucun aucune nunca 不 没 沒 無 无 未 勿 莫 否 ず ぬ",
    )
)
_CONDITIONS: Final = frozenset(("if", "only", "unless", "except", "until"))
_SCALES: Final = frozenset(
    "% ° percent hundred thousand million billion trillion bc bce am pm".split()  # noqa: SIM905
)
_PLAIN: Final = tuple(
    f"<{form}>"
    for form in ("compat", "wide", "narrow", "font", "initial", "medial", "final", "isolated")
)
_TYPOGRAPHY: Final = str.maketrans("“”„‟‘’‚‛«»‐‑‒–—―−", '""""\'\'\'\'""-------')


class Token(NamedTuple):
    """One word, number or sign: the form that is compared, and its characters in the text."""

    norm: str
    start: int
    end: int


class Region(NamedTuple):
    """Characters of a text that are code: in a fenced block, or between backticks in a line."""

    start: int
    end: int
    fenced: bool


@lru_cache(1 << 16)
def fold(word: str) -> str:
    """Return the form in which a word is compared; an exponent or a fraction stays what it is."""
    if word.isascii():
        return word.replace("\\", "").lower()
    plain = "".join(
        unicodedata.normalize("NFKC", one)
        if unicodedata.decomposition(one).startswith(_PLAIN)
        else one
        for one in word
    )
    shown = re.sub(f"[{_HIDDEN}\\\\]", "", plain)
    return re.sub("[’ʼ]", "'", unicodedata.normalize("NFC", shown).casefold())


def read_tokens(text: str) -> list[Token]:
    """Return what is compared of a text, in order."""
    found: list[Token] = []
    # The last sign that may open a line, and where its line's margin ends.
    seen, margin = 0, _margin_of(text, 0)
    for match in TOKEN.finditer(text):
        kind = match.lastgroup
        start, end = match.span()
        if kind == "word":
            norm = fold(match[0])
        elif kind == "skip":
            continue
        elif kind == "and":
            norm = "and"
        elif kind == "less":
            norm = "<" if match[0] == "&lt;" else ">"
        else:
            norm = match[0].strip()
            if norm in ">+*":
                line = text.rfind("\n", seen, start) + 1
                seen, margin = start, _margin_of(text, line) if line else margin
                if start <= margin:
                    continue  # what opens an item of a list, or a line that is quoted
            norm = "-" if norm in "‐‑‒–—―−" else norm
        if norm:
            found.append(Token(norm, start, end))
    return found


def _margin_of(text: str, line: int) -> int:
    margin = _MARGIN.match(text, line)
    return margin.end() if margin else line


def links_of(text: str) -> list[str]:
    """Return where the Markdown links of a text lead to, as they are written."""
    cuts = (cut for cut in TOKEN.finditer(text) if cut.lastgroup == "skip")
    return [cut[0].casefold() for cut in cuts if cut[0][0] == "]"]


def is_negation(norm: str) -> bool:
    """Tell whether a word turns a statement round."""
    return norm in _NEGATIONS or norm.endswith("n't")


def is_condition(norm: str) -> bool:
    """Tell whether a word makes a statement hold in some cases alone."""
    return norm in _CONDITIONS


def is_scale(norm: str) -> bool:
    """Tell whether a word after a number belongs to its value."""
    return norm in _SCALES


def is_number(norm: str) -> bool:
    """Tell whether a token is a number, a word with a digit, or a sign."""
    return not norm[0].isalpha() or any(map(str.isdigit, norm))


def stands_alone(norm: str) -> bool:
    """Tell whether a token is a character of a script without spaces."""
    return re.match(f"[{ALONE}]", norm) is not None


def weigh(norms: Iterable[str]) -> float:
    """Count words; a character of a script without spaces is half a word."""
    return sum(0.5 if stands_alone(norm) else 1.0 for norm in norms)


@lru_cache(1 << 16)
def without_accents(norm: str) -> str:
    """Return a word without its accents."""
    if norm.isascii():
        return norm
    parts = unicodedata.normalize("NFD", norm)
    return "".join(one for one in parts if not unicodedata.combining(one))


def squeeze(text: str, *, fenced: bool) -> str:
    """Return code as it is compared: without white space; in a line also whatever its case is."""
    solid = "".join(text.split())
    return solid if fenced else solid.translate(_TYPOGRAPHY).casefold()


_FENCE: Final = re.compile(r"^[ \t>]*(`{3,}|~{3,})([^\n`]*)$", re.MULTILINE)
_INLINE: Final = re.compile(r"(?<!`)(`{1,2})(?!`)((?:[^\n`]|(?!\1(?!`))`){1,1000})\1(?!`)")


def code_regions(text: str, *, cut: bool = False) -> list[Region]:
    """Return the stretches of a Markdown text that are code, in order.

    Args:
        text: the text.
        cut: whether it begins somewhere inside a document, where a block may be open already.
    """
    marks = list(_FENCE.finditer(text))
    found = _fenced(text, marks, inside=False)
    if cut and marks and not marks[0][2].strip() and (len(marks) % 2 or _misread(text, found)):
        found = _fenced(text, marks, inside=True)
    regions, at = [], 0
    for start, end in [*found, (len(text), len(text))]:
        inline = (match.span(2) for match in _INLINE.finditer(text, at, start))
        regions += [Region(*span, fenced=False) for span in inline]
        if start < end:
            regions.append(Region(start, end, fenced=True))
        at = end
    return regions


def _misread(text: str, found: list[tuple[int, int]]) -> bool:
    """Tell whether a block seems to hold the opening line of another."""
    return any(
        mark[2].strip() and mark.start() > start
        for start, end in found
        for mark in _FENCE.finditer(text, start, end)
    )


def _fenced(text: str, marks: list[re.Match[str]], *, inside: bool) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    opening, begin = ("```" if inside else ""), 0
    for mark in marks:
        if not opening:
            opening, begin = mark[1], mark.end()
        elif mark[1].startswith(opening) and not mark[2].strip():
            found.append((begin, mark.start()))
            opening = ""
    return [*found, (begin, len(text))] if opening else found
