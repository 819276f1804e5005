"""Questions to the documentation of a project, from the links that its authors wrote.

A question is a paragraph with one ``:ref:`` of Sphinx, to another section, as a reader sees it; a
label without words of its own shows none here, since its title would give the section away. It is
answered where a whole line is read that only this section of its page has. All these paragraphs are
taken out of the pages, so that none can be found by itself, and the changelogs, which give
paragraphs too, are left out whole. Nothing is chosen by hand or by a search.

Limits: a paragraph is longer than what people type, and is a statement; other sections can answer
as well as the one that is linked, so rankings are compared and not the shares themselves.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from longrag.ingestion.rst import fold_label, plain_rst
from longrag.ingestion.sources import read_documents
from longrag.models.words import content_terms
from longrag.types import Document

NOT_PAGES = {
    "sqlalchemy": ["changelog/changelog_*", "changelog/unreleased_*/**"],
    "pytest": ["changelog.rst", "announce/**", "reference/plugin_list.rst"],
}
_FEWEST_WORDS = 6
_SHORTEST_LINE = 20
_PARAGRAPH = re.compile(r"(?:^[ \t]*\S.*\n?)+", re.MULTILINE)
_LINK = re.compile(r":ref:`(?:([^`<]*?)\s*<([^`>]+)>|([^`<]+))`")
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.|#\.)\s+")
_LABEL = re.compile(r"^\.\. _([^:\n]+):[ \t]*\n", re.MULTILINE)
_HEADING = re.compile(r"^(\S.*)\n([=\-~^\"'#*+.`])\2{2,}[ \t]*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class DocumentationQuestion:
    """A paragraph, the page that it links to, and the lines that only that section has."""

    question: str
    page: str
    lines: tuple[str, ...]


def linked_sections(
    checkouts: Path, name: str
) -> tuple[list[Document], list[DocumentationQuestion]]:
    """Return the pages of a project without the paragraphs that ask, and the questions.

    Args:
        checkouts: holds the repositories of ``documentation_questions.json`` by their names.
        name: a name of ``NOT_PAGES``.
    """
    described = json.loads(Path(__file__).with_name("documentation_questions.json").read_text())
    folder = checkouts / name / described["corpora"][name]["folder"]
    kept = {one.id for one in read_documents(folder, include=["*.rst"], exclude=NOT_PAGES[name])}
    every = [
        replace(one, text=f"{one.text}\n") for one in read_documents(folder, include=["*.rst"])
    ]
    sections = {
        label: (page.id, section)
        for page in every
        if page.id in kept
        for label, section in _sections(page.text)
    }
    asked, pages = [], []
    for page in every:
        asking = [
            (paragraph, words, label)
            for paragraph, words, label in _paragraphs(page.text)
            if label in sections and paragraph not in sections[label][1]
        ]
        asked += [(words, label) for _, words, label in asking]
        text = page.text
        for paragraph, _, _ in asking:
            text = text.replace(paragraph, "")
        if page.id in kept:
            pages.append(replace(page, text=text))
    lines_of = {page.id: Counter(map(str.strip, page.text.splitlines())) for page in pages}
    questions = []
    for words, label in dict(asked).items():
        id_, section = sections[label]
        lines = tuple(
            line
            for line in map(str.strip, section.splitlines())
            if len(line) >= _SHORTEST_LINE
            and not line.startswith(("..", ":"))
            and lines_of[id_][line] == 1
        )
        if lines:
            questions.append(DocumentationQuestion(words, id_, lines))
    return pages, questions


def _paragraphs(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each paragraph with one link and enough words: itself, what is shown, and the label."""
    for paragraph in map(re.Match.group, _PARAGRAPH.finditer(text)):
        links = list(_LINK.finditer(paragraph))
        body = _ITEM.sub("", paragraph, count=1) if _ITEM.match(paragraph) else paragraph
        if len(links) != 1 or body.lstrip().startswith("..") or "::" in body:
            continue
        if any(_ITEM.match(line) for line in body.splitlines()):
            continue
        (link,) = links
        shown = plain_rst(" ".join(_LINK.sub(lambda one: one[1] or "", body).split()))
        if len(content_terms(_LINK.sub("", body))) >= _FEWEST_WORDS:
            yield paragraph, shown, fold_label(link[2] or link[3])


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield the labels of sections, each with the text up to the next heading."""
    headings = list(_HEADING.finditer(text))
    for heading, following in zip(headings, [*headings[1:], None], strict=False):
        end = following.start() if following else len(text)
        before = text[: heading.start()].rstrip() + "\n"
        while labels := list(_LABEL.finditer(before[(at := before[:-1].rfind("\n") + 1) :])):
            yield fold_label(labels[0][1].strip("`")), text[heading.end() : end]
            before = before[:at].rstrip() + "\n"
