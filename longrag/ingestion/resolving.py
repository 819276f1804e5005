"""Link resolution: which document of the corpus a raw target names.

A link counts only when one document answers to it. Two equally good candidates leave it
unresolved, because a wrong edge puts unrelated documents into one unit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import unquote

from longrag.errors import InvalidDocumentError, InvalidParameterError
from longrag.ingestion.links import DefaultLinkExtractor, LinkExtractor
from longrag.ingestion.paths import (
    AMBIGUOUS,
    PathTable,
    add_unique,
    common_folder,
    fold,
    fold_target,
    is_web,
    join_path,
    join_url,
    stem,
    web_address,
    without_anchor,
)
from longrag.types import Document

LinkRule: TypeAlias = Callable[[str, Document], str | None]
"""Rewrites a raw target, given the document it is in, to a path, URL or document id.

None leaves the target to the next rule; ``"#"`` drops it. A rule is a plain function::

    def xref(target: str, source: Document) -> str | None:
        if not target.startswith("xref:"):
            return None
        module, _, command = target[5:].rpartition(".")
        return f"/modules/{module}/{command}"
"""

# Two letters at least: "C:" is a drive.
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")
# A title such as "Data: a history" is no data URL.
_NO_DOCUMENT = re.compile(
    r"(?:mailto|javascript|tel|sms):|data:[^\s,;]*[,;]|[#?]|\Z", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class PrefixRule:
    """Replaces a prefix of a target, whatever its case: ``PrefixRule("xref:", "/api/")``.

    Args:
        prefix: What the target must begin with.
        replacement: What takes its place.
        where: If given, the rule applies only to documents whose id begins with this, as with
            several versions of one manual.
    """

    prefix: str
    replacement: str
    where: str | None = None

    def __post_init__(self) -> None:
        if not self.prefix:
            raise InvalidParameterError("prefix", self.prefix, "a non-empty string")

    def __call__(self, target: str, source: Document) -> str | None:
        """Return the rewritten target, or None when the rule does not apply."""
        if self.where is not None and not source.id.startswith(self.where):
            return None
        if target[: len(self.prefix)].casefold() != self.prefix.casefold():
            return None
        return self.replacement + target[len(self.prefix) :]


@dataclass(frozen=True, slots=True)
class UnresolvedLink:
    """A target that no document answered to, or more than one did."""

    doc_id: str
    target: str


@dataclass(frozen=True, slots=True)
class LinkReport:
    """The edges of a corpus and what was left over.

    ``links`` are pairs of indices (source, target) into the documents: unique, sorted, no document
    linked to itself. ``unresolved`` and ``external`` (http and https targets outside the corpus)
    are in the order of documents and their targets.
    """

    links: tuple[tuple[int, int], ...]
    unresolved: tuple[UnresolvedLink, ...]
    external: tuple[UnresolvedLink, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a document is: its path without a leading slash, its folder and its URL, or ""."""

    path: str
    folder: str
    url: str


class LinkResolver:
    """Finds the document a target names.

    Tried in order: the rules; a document id; a URL, with scheme, letter case of the host, trailing
    slash, fragment and query aside; a path, relative to the source document or to the root, with
    or without its extension, ``index`` and ``README`` standing for their folder; a title, or else a
    file name, in any letter case and with underscores as spaces; an alias; and last a path in any
    letter case with backslashes as slashes. Where one step finds several documents only an
    alias can still decide. Construction and each resolution are linear in what they are given.

    Args:
        documents: The corpus.
        rules: Rewriters of targets; the first that does not return None decides.
        aliases: Further names, each with the id of its document.
        path_keys: Metadata keys that may hold a document's path, best first. Without any, its id
            is its path.
        url_keys: Metadata keys that may hold a document's http or https address, best first.

    Raises:
        InvalidDocumentError: If two documents share an id.
        InvalidParameterError: If an alias names a document that is not there.
    """

    def __init__(
        self,
        documents: Sequence[Document],
        *,
        rules: Sequence[LinkRule] = (),
        aliases: Mapping[str, str] | None = None,
        path_keys: tuple[str, ...] = ("path", "file_path", "source", "file_name"),
        url_keys: tuple[str, ...] = ("url", "source"),
    ) -> None:
        self._rules = tuple(rules)
        self._path_keys = path_keys
        self._url_keys = url_keys
        self._doc_ids = tuple(document.id for document in documents)
        self._index_of = _index_ids(documents)
        self._places = [self._place(document) for document in documents]
        paths = [place.path for place in self._places]
        pages = [web_address(place.url).partition("?")[0] for place in self._places]
        self._files, self._folded_files = PathTable(paths), PathTable(paths, folded=True)
        self._pages, self._folded_pages = PathTable(pages), PathTable(pages, folded=True)
        self._common_folder = common_folder(path for path in paths if path)
        self._addresses: dict[str, int] = {}
        for index, place in enumerate(self._places):
            if "?" in place.url:
                add_unique(self._addresses, web_address(place.url), index)
        self._titles, self._names = _name_tables(documents, self._places)
        self._aliases = self._alias_table(aliases or {})

    def resolve(self, target: str, source: Document) -> str | None:
        """Return the id of the document a target names, or None.

        None means an unknown or ambiguous target, or one that names no document at all:
        an anchor of the same page, ``mailto:``, ``javascript:``, ``tel:`` or ``data:``.
        """
        target = self.rewrite(target, source)
        if target in self._index_of:
            return target
        if is_no_document(target):
            return None
        index = self._find(target, self._place_of(source))
        return None if index is None else self._doc_ids[index]

    def rewrite(self, target: str, source: Document) -> str:
        """Return the target as the first rule that applies rewrites it, else unchanged."""
        for rule in self._rules:
            rewritten = rule(target, source)
            if isinstance(rewritten, str):
                return rewritten.strip()
            if rewritten is not None:
                raise InvalidParameterError(
                    "rules", rewritten, f"functions that return a string or None ({rule!r})"
                )
        return target.strip()

    def _find(self, target: str, place: _Place) -> int | None:
        """Walk the steps after the exact id; an ambiguous step leaves the decision to aliases."""
        bare = without_anchor(target)
        found = self._index_of.get(bare)
        if found is None:
            found = self._by_location(target, bare, place, folded=False)
        if found is None:
            found = self._by_name(target, bare)
        if found is None or found == AMBIGUOUS:
            alias = self._aliases.get(fold_target(target))
            alias = self._aliases.get(fold_target(bare)) if alias is None else alias
            found = found if alias is None else alias
        if found is None:
            found = self._by_location(target, bare.replace("\\", "/"), place, folded=True)
        return None if found == AMBIGUOUS else found

    def _by_location(self, target: str, bare: str, place: _Place, *, folded: bool) -> int | None:
        if is_web(target):
            return self._by_url(target, folded=folded)
        if place.url:
            found = self._by_url(join_url(place.url, target), folded=folded)
            if found is not None:
                return found
        return self._by_path(bare, place.folder, folded=folded)

    def _by_url(self, url: str, *, folded: bool) -> int | None:
        address = web_address(url)
        page, mark, _ = address.partition("?")
        if mark and address in self._addresses:
            return self._addresses[address]
        found = (self._folded_pages if folded else self._pages).find(page)
        # Two queries that differ are two pages: /view?id=1 is no link to /view?id=2.
        if mark and found is not None and found >= 0 and "?" in self._places[found].url:
            return None
        return found

    def _by_path(self, path: str, folder: str, *, folded: bool) -> int | None:
        path = path.partition("?")[0]
        if path.lower().startswith("file://"):
            path = "/" + path[7:]
        if _SCHEME.match(path):
            return None
        files = self._folded_files if folded else self._files
        for spelling in (path, unquote(path)) if "%" in path else (path,):
            for start in self._starts(spelling, folder):
                found = files.find(join_path(start, spelling))
                if found is not None:
                    return found
        return None

    def _starts(self, path: str, folder: str) -> tuple[str, ...]:
        """Return the folders a path may count from: its page's, or the root and the common one."""
        roots = ("", self._common_folder) if self._common_folder else ("",)
        if path.startswith("/"):
            return roots
        # A bare name counts from its page alone: README.md is in many folders.
        if "/" not in path or path.startswith("."):
            return (folder,)
        return (folder, *roots)

    def _by_name(self, target: str, bare: str) -> int | None:
        for spelling in (target, bare) if bare != target else (bare,):
            name = fold_target(spelling)
            for table in (self._titles, self._names):
                if name in table:
                    return table[name]
        return None

    def _place_of(self, document: Document) -> _Place:
        index = self._index_of.get(document.id)
        return self._place(document) if index is None else self._places[index]

    def _place(self, document: Document) -> _Place:
        metadata = document.metadata
        urls = (metadata.get(key) for key in self._url_keys)
        url = next((url for url in (*urls, document.id) if is_web(url)), "")
        paths = (metadata.get(key) for key in self._path_keys)
        path = next((path for path in paths if _is_path(path)), None)
        if path is None:
            path = document.id if _is_path(document.id) else ""
        path = str(path).replace("\\", "/").removeprefix("file://")
        path = join_path("", path)
        return _Place(path, path.rpartition("/")[0], str(url).strip())

    def _alias_table(self, aliases: Mapping[str, str]) -> dict[str, int]:
        table: dict[str, int] = {}
        for alias, doc_id in aliases.items():
            if doc_id not in self._index_of:
                raise InvalidParameterError(
                    f"aliases[{alias!r}]", doc_id, "the id of one of the documents"
                )
            add_unique(table, fold(alias), self._index_of[doc_id])
        return table


def resolve_links(
    documents: Sequence[Document],
    *,
    extractor: LinkExtractor | None = None,
    resolver: LinkResolver | None = None,
) -> LinkReport:
    """Extract and resolve the links among documents, in time linear in their text.

    Args:
        documents: The corpus; the result does not depend on its order but through the indices.
        extractor: Reads the targets; ``DefaultLinkExtractor()`` if None.
        resolver: Names their documents; ``LinkResolver(documents)`` if None. Documents it knows
            beyond the given ones count as unresolved.

    Raises:
        InvalidDocumentError: If two documents share an id, or metadata links are malformed.
    """
    index_of = _index_ids(documents)
    extractor = DefaultLinkExtractor() if extractor is None else extractor
    resolver = LinkResolver(documents) if resolver is None else resolver
    links: list[tuple[int, int]] = []
    unresolved: list[UnresolvedLink] = []
    external: list[UnresolvedLink] = []
    for source, document in enumerate(documents):
        indices: set[int] = set()
        for target in extractor(document):
            doc_id = resolver.resolve(target, document)
            if doc_id is not None and doc_id in index_of:
                indices.add(index_of[doc_id])
                continue
            rewritten = resolver.rewrite(target, document)
            if not is_no_document(rewritten):
                leftover = external if is_web(rewritten) else unresolved
                leftover.append(UnresolvedLink(document.id, target))
        links.extend((source, index) for index in sorted(indices - {source}))
    return LinkReport(tuple(links), tuple(unresolved), tuple(external))


def is_no_document(target: str) -> bool:
    """Tell whether a target names no document: empty, an anchor, ``mailto:`` and its like."""
    return _NO_DOCUMENT.match(target) is not None


def _is_path(value: object) -> bool:
    return isinstance(value, str) and bool(value) and not is_web(value)


def _index_ids(documents: Iterable[Document]) -> dict[str, int]:
    index_of: dict[str, int] = {}
    for index, document in enumerate(documents):
        if index_of.setdefault(document.id, index) != index:
            raise InvalidDocumentError(
                f"documents {index_of[document.id]} and {index} share the id {document.id!r}"
            )
    return index_of


def _name_tables(
    documents: Sequence[Document], places: Sequence[_Place]
) -> tuple[dict[str, int], dict[str, int]]:
    """Index documents by title, and by file name without extension."""
    titles: dict[str, int] = {}
    names: dict[str, int] = {}
    for index, (document, place) in enumerate(zip(documents, places, strict=True)):
        add_unique(titles, fold(document.title), index)
        add_unique(names, fold(stem(place.path.rpartition("/")[2])), index)
    return titles, names
