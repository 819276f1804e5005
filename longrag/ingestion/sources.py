"""Reading documents from files: Markdown, HTML and plain text, with their titles and paths."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from datetime import date
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from longrag.errors import InvalidDocumentError, InvalidParameterError
from longrag.executors import check_executor, map_items
from longrag.ingestion.links import HtmlLinkExtractor
from longrag.ingestion.markup import markdown_parser, parse_html, plain_inline, split_front_matter
from longrag.ingestion.paths import EXTENSIONS
from longrag.types import Document

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser
    from yaml import SafeLoader, ScalarNode

_MARKDOWN: Final = (".md", ".markdown", ".mdx")
_HTML: Final = (".html", ".htm")

_FILES_A_TASK: Final = 32

# Front matter must not replace the path or the links of the page itself.
_RESERVED: Final = frozenset({"path", "links", "hyperlink"})

_MAYBE_H1: Final = re.compile(r"^[ ]{0,3}(?:#[ \t]|=+[ \t]*\r?$)", re.MULTILINE)
_ANY_TAG: Final = re.compile(r"<[^<>]*>")

# Noncharacters of Unicode, which no text should hold, mark the ends of blocks and for the
# white space that preformatted text keeps.
_BREAK: Final = "\ufdd0"
_KEPT: Final = str.maketrans("\n \t", "\ufdd1\ufdd2\ufdd3")
_RESTORED: Final = {new: old for old, new in _KEPT.items()}
_BLOCKS: Final = (
    "address article aside blockquote br caption center dd details dialog div dl dt fieldset "
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr legend li main menu nav "
    "ol optgroup option p pre search section summary table td th tr ul"
)
_INVISIBLE: Final = ["script", "style", "noscript", "template", "head", "svg", "iframe", "object"]


def read_documents(
    path: str | os.PathLike[str], *, executor: Executor | None = None
) -> list[Document]:
    r"""Read one file, or every file below a folder, that is Markdown, HTML or text.

    Files end in .md, .markdown, .mdx, .html, .htm, .txt or .rst, in any letter case. Hidden files
    and folders are skipped, and symbolic links to folders are not followed. A document's id is
    its path below the folder with "/" between the parts (the file name for a single file); its
    title the ``title`` of its front matter, else its first level-one heading or its ``<title>``,
    else its file name without extension. The text is the Markdown without front matter, the
    visible text of the HTML, or the file as it is. Metadata hold ``path``, the front matter's
    finite scalars (dates in ISO form; merge keys are not followed), and for HTML the list of
    ``links`` its text no longer shows.

    Bytes are UTF-8, with or without a byte order mark; what cannot be decoded becomes U+FFFD
    in a text, and ``\xff`` in the name of a file.

    Args:
        path: the file or folder.
        executor: reads and parses files, for instance a ``ProcessPoolExecutor``; None does it in
            the calling thread. It must see the same files. The result is the same.

    Returns:
        The documents in the order of their ids.

    Raises:
        InvalidParameterError: If nothing is there, or nothing that can be read as a document.
        InvalidDocumentError: If a file cannot be read; the message names it.
    """
    files = [(doc_id, file) for doc_id, file in find_files(path) if is_readable(doc_id)]
    check_executor(executor)
    documents = list(map_items(_read_one, files, executor, part_size=_FILES_A_TASK))
    if not documents:
        raise InvalidParameterError(
            "path", str(path), f"a file or a folder of files that end in {', '.join(EXTENSIONS)}"
        )
    return documents


def find_files(path: str | os.PathLike[str]) -> list[tuple[str, Path]]:
    """List one file, or every visible file below a folder, as ids and paths, sorted by id.

    Raises:
        InvalidParameterError: nothing is there.
        InvalidDocumentError: a folder cannot be listed; the message names it.
    """
    root = Path(path)
    return [(_name(root.name), root)] if _is_file(root, path) else sorted(_walk(root))


def _read_one(file: tuple[str, Path]) -> Document:
    return read_file(*file)


def _is_file(root: Path, path: object) -> bool:
    try:
        if root.is_file():
            return True
        # An empty path would quietly mean the current folder.
        if root.is_dir() and str(path):
            return False
    except (OSError, ValueError):
        # A null character in a path raises ValueError on some versions, returns False on others.
        pass
    raise InvalidParameterError("path", str(path), "an existing file or folder")


def _walk(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield ids and paths of the visible regular files below a folder."""

    def refuse(error: OSError) -> None:
        raise InvalidDocumentError(f"cannot list {error.filename!r}: {error.strerror}") from error

    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = Path(folder, name)
            # Reading a pipe or device would block for ever.
            if not name.startswith(".") and file.is_file():
                yield _name(file.relative_to(root).as_posix()), file


def _name(path: str) -> str:
    """Escape the bytes of a file name that are not UTF-8, since they could not be encoded later."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def is_readable(doc_id: str) -> bool:
    """Tell whether ``read_file`` reads files of this name."""
    return doc_id.lower().endswith(EXTENSIONS)


def read_file(doc_id: str, file: Path) -> Document:
    """Read one file of Markdown, HTML or text; see ``read_documents``.

    Raises:
        InvalidDocumentError: the file cannot be read.
    """
    try:
        text = file.read_bytes().decode("utf-8-sig", "replace")
    except OSError as error:
        raise InvalidDocumentError(f"cannot read {str(file)!r}: {error.strerror}") from error
    stem, suffix = PurePosixPath(doc_id).stem, file.suffix.lower()
    if suffix in _MARKDOWN:
        return _read_markdown(doc_id, text, stem)
    if suffix in _HTML:
        return _read_html(doc_id, text, stem)
    return Document(doc_id, text, stem, MappingProxyType({"path": doc_id}))


def _read_markdown(doc_id: str, text: str, stem: str) -> Document:
    fields, body = _front_matter(text)
    title = fields.get("title")
    title = str(title).strip() if title is not None else ""
    metadata = {
        "path": doc_id,
        **{key: value for key, value in fields.items() if key not in _RESERVED},
    }
    title = title or _first_heading(body) or stem
    return Document(doc_id, body, title, MappingProxyType(metadata))


def _front_matter(text: str) -> tuple[Mapping[str, str | int | float | bool], str]:
    """Return the finite scalars of a YAML front matter and the body; malformed YAML is body."""
    source, body = split_front_matter(text)
    if source is None:
        return {}, text
    # Slow to import, and many corpora hold no front matter.
    import yaml

    class Loader(yaml.SafeLoader):
        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            """Ignore merge keys, since merging takes time exponential in their depth."""

    Loader.add_constructor("tag:yaml.org,2002:merge", _as_text)
    Loader.add_constructor("tag:yaml.org,2002:value", _as_text)
    try:
        fields = yaml.load(source, Loader)
        if isinstance(fields, dict):
            return dict(_scalars(fields)), body
    except (
        yaml.YAMLError,
        ValueError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ):
        # A value that is not what its tag says raises four of these, an impossible date the
        # second, a number out of range the fifth, and brackets nested a thousand deep the last.
        pass
    return {}, text


def _as_text(loader: SafeLoader, node: ScalarNode) -> str:
    return str(loader.construct_scalar(node))


def _scalars(fields: Mapping[object, object]) -> Iterator[tuple[str, str | int | float | bool]]:
    for key, value in fields.items():
        if isinstance(value, date):
            yield str(key), value.isoformat()
        elif isinstance(value, str) or (isinstance(value, (int, float)) and math.isfinite(value)):
            yield str(key), value


def _first_heading(body: str) -> str:
    """Return the text of the first level-one heading outside code, quotes and lists, or ""."""
    if not _MAYBE_H1.search(body):
        return ""
    tokens = markdown_parser().parse(body)
    for index, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h1" and token.level == 0:
            return plain_inline(tokens[index + 1].content)
    return ""


def _read_html(doc_id: str, text: str, stem: str) -> Document:
    document = Document(doc_id, text)
    metadata = MappingProxyType({"path": doc_id, "links": list(HtmlLinkExtractor()(document))})
    tree = parse_html(text)
    if tree is None:
        visible = " ".join(_ANY_TAG.sub(" ", text).split())
        return Document(doc_id, visible, stem, metadata)
    title = _node_text(tree, "head title") or _node_text(tree, "h1") or stem
    return Document(doc_id, _visible_text(tree), title, metadata)


def _node_text(tree: LexborHTMLParser, selector: str) -> str:
    node = tree.css_first(selector)
    return "" if node is None else " ".join(node.text().split())


def _visible_text(tree: LexborHTMLParser) -> str:
    """Return the text of a page, one line for each block; the tree is consumed."""
    tree.strip_tags(_INVISIBLE)
    for node in tree.css(", ".join(_BLOCKS.split())):
        node.insert_before(_BREAK)
        node.insert_after(_BREAK)
    for node in tree.css("pre"):
        node.replace_with(node.text().translate(_KEPT))
    text = tree.root.text() if tree.root is not None else ""
    blocks = (" ".join(block.split()) for block in text.split(_BREAK))
    return "\n".join(block for block in blocks if block).translate(_RESTORED)
