"""Reading markup: YAML front matter, HTML trees and the two Markdown parsers links are read with.

Whatever the text, time is about linear in its length: these parsers see pages nobody has checked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from html import unescape
from typing import TYPE_CHECKING
from urllib.parse import urljoin

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from selectolax.lexbor import LexborHTMLParser

MAX_HTML_DEPTH = 5_000
"""Open elements beyond which HTML is scanned for tags and no longer built into a tree."""

_FRONT_MATTER = re.compile(
    r"\ufeff?---[ \t]*\r?\n(?P<yaml>(?:[^\n]*\n){0,2000}?)(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)"
)
_YAML_KEY = re.compile(
    r"""(?:[ \t]*(?:#[^\n]*)?\r?\n)*["']?[\w.$ -]{1,200}["']?[ \t]{0,8}:(?:\s|\Z)"""
)
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
_HREF = re.compile(
    r"<a(?:rea)?[\s/](?:[^<>]*?[\s/\"'])?href\s*=\s*"
    r"(?:\"(?P<double>[^\"<>]*)\"|'(?P<single>[^'<>]*)'|(?P<bare>[^\s\"'<>]+))",
    re.IGNORECASE,
)
_VOID_TAGS = frozenset({"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "wbr"})
WIKI_LINK = re.compile(r"\[\[([^\[\]|\n]+)(?:\|[^\[\]]*)?\]\](?!\(|\[[^\[])")
"""``[[target]]`` or ``[[target|label]]`` with the target as its group, and no Markdown link."""


def split_front_matter(text: str) -> tuple[str | None, str]:
    r"""Split a leading YAML block fenced by ``---`` from the text that follows it.

    The block must begin on the first line, hold a ``key:`` before anything else, and be closed
    within 2,000 lines; otherwise the text is returned whole. The YAML itself is not parsed.

    Returns:
        The YAML source without its fences, or None, and the remaining text.
    """
    match = _FRONT_MATTER.match(text)
    if match is None or not _YAML_KEY.match(match["yaml"]):
        return None, text
    return match["yaml"], text[match.end() :]


def parse_html(text: str) -> LexborHTMLParser | None:
    """Parse HTML into a tree, or return None when it nests deeper than ``MAX_HTML_DEPTH``."""
    if _nests_too_deeply(text):
        return None
    # A C extension, loaded only by those who read HTML.
    from selectolax.lexbor import LexborHTMLParser

    # Lone surrogates cannot be encoded and would make the parser raise.
    return LexborHTMLParser(text.encode("utf-8", "replace").decode("utf-8"))


def _nests_too_deeply(text: str) -> bool:
    """Tell whether building the tree could take quadratic time, counting unclosed tags by name."""
    if text.count("<") <= MAX_HTML_DEPTH:
        return False
    depth = 0
    unclosed: Counter[str] = Counter()
    for slash, name in _TAG.findall(text):
        tag = name.lower()
        if not slash and tag not in _VOID_TAGS:
            unclosed[tag] += 1
            depth += 1
        elif slash and unclosed[tag]:
            unclosed[tag] -= 1
            depth -= 1
        if depth > MAX_HTML_DEPTH:
            return True
    return False


def html_targets(text: str) -> Iterator[str]:
    """Yield the targets of ``<a href>`` and ``<area href>`` in order, joined to ``<base href>``.

    HTML that nests too deeply is read tag by tag, without its base.
    """
    tree = parse_html(text)
    if tree is None:
        for match in _HREF.finditer(text):
            yield unescape(match["double"] or match["single"] or match["bare"] or "").strip()
        return
    base = tree.css_first("base[href]")
    prefix = (base.attributes.get("href") or "").strip() if base is not None else ""
    for node in tree.css("a[href], area[href]"):
        target = (node.attributes.get("href") or "").strip()
        yield _join(prefix, target) if prefix and target else target


def _join(base: str, target: str) -> str:
    try:
        return urljoin(base, target)
    except ValueError:
        # urljoin refuses a malformed host such as "http://["; the author's text is kept.
        return target


@lru_cache(maxsize=1)
def markdown_parser() -> MarkdownIt:
    """Return the shared parser of CommonMark with tables; targets come as written."""
    # Tens of milliseconds of import that plain text never needs.
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    # Emphasis cannot hide a link; pairing its delimiters only takes time.
    parser.disable(["emphasis", "text_join"])
    return _as_written(parser)


@lru_cache(maxsize=1)
def wiki_parser() -> MarkdownIt:
    """Return the shared parser whose inline tokens of type ``wiki_link`` hold ``[[targets]]``."""
    # Imported late for the reason given above.
    from markdown_it import MarkdownIt

    # No tables: the bar of [[target|label]] would end a cell.
    parser = MarkdownIt("commonmark").disable(["emphasis", "text_join"])
    parser.inline.ruler.before("link", "wiki_link", _wiki_link)
    return _as_written(parser)


def plain_inline(markdown: str) -> str:
    """Return what a reader sees of one line of Markdown, without markup and images."""
    # Imported late for the reason given above.
    from markdown_it import MarkdownIt

    shown = {"text", "text_special", "code_inline", "softbreak", "hardbreak"}
    tokens = MarkdownIt("commonmark").parseInline(markdown)
    parts = (token.content or " " for token in tokens[0].children or () if token.type in shown)
    return " ".join("".join(parts).split())


def _as_written(parser: MarkdownIt) -> MarkdownIt:
    """Keep targets as their author wrote them, neither percent-encoded nor refused."""
    parser.normalizeLink = str  # type: ignore[assignment, method-assign]
    parser.validateLink = bool  # type: ignore[assignment, method-assign]
    return parser


def _wiki_link(state: StateInline, silent: bool) -> bool:
    """Recognise ``[[target|label]]`` and ``![[target]]`` where Markdown looks for a link."""
    start = state.pos + state.src.startswith("!", state.pos)
    match = WIKI_LINK.match(state.src, start)
    if match is None or match.end() > state.posMax or _is_reference(match[1], state):
        return False
    if not silent:
        token = state.push("wiki_link", "", 0)
        token.content = match[1]
        token.info = "embed" if start > state.pos else ""
    state.pos = match.end()
    return True


def _is_reference(label: str, state: StateInline) -> bool:
    """Tell whether ``[[label]]`` is a Markdown reference in brackets, defined in this document."""
    # Already imported with the parser that called.
    from markdown_it.common.utils import normalizeReference

    return normalizeReference(label) in state.env.get("references", ())
