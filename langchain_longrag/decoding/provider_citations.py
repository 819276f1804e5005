"""What a provider cites in a message, looked up in the documents that it was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from langchain_core.documents import Document
from langchain_core.messages import AIMessage

from langchain_longrag.bridge.passages import to_passages
from longrag.errors import InvalidParameterError
from longrag.quoting import QuoteIndex
from longrag.quoting.answers import CheckedAnswer
from longrag.quoting.citations import (
    Citable,
    check_cited,
    locate_parts,
    read_annotations,
    read_grounding,
)
from longrag.recipes.quotable import quotable


def check_citations(
    message: AIMessage, documents: Sequence[Document], *, corpus: QuoteIndex | None = None
) -> CheckedAnswer:
    """Look up what a provider cites in a message, word for word, in the documents it was given.

    Reads the citations of Anthropic, the annotations of OpenAI and the grounding metadata of Gemini
    as their packages deliver them, and any ``Citation`` in ``content_blocks``; of a stream, the sum
    of its chunks. A citation's ``cited_text`` is looked up in the document that it names by its id,
    address, file or title, or else by its number. Where a provider gives no text of the source, the
    words of the answer that it annotates are looked up ("segment"): what fails there is not the
    source's wording, and may still be true. An annotation without words is ``skipped``, and one
    that names no document of these is also ``unknown``.

    ``start`` and ``end`` of each are characters of ``message.text``; Gemini's bytes are converted.
    What has no citation is not looked at. The same arguments give the same result.

    Example:
        ```python
        from langchain_core.messages import AIMessage

        cited = {
            "type": "char_location",
            "document_index": 1,
            "document_title": "The weir",
            "cited_text": "It was built in 1312.",
        }
        message = AIMessage(  # as ChatAnthropic gives it
            [{"type": "text", "text": "It is of 1312.", "citations": [cited]}],
            response_metadata={"model_provider": "anthropic"},
        )
        checked = check_citations(message, documents)
        ((written, found),) = checked.quotes
        assert (found.status, found.sources[0].doc_id) == ("verbatim", "weir.md")
        assert not checked.failed and not checked.skipped
        ```

    Args:
        message: the answer of a model.
        documents: what the model was given, in the same order: ``document_index`` of Anthropic
            counts it. They may be chunks or units, and ``sources`` are then those of their texts.
        corpus: other documents; a quote that stands there alone is told as "misattributed".

    Raises:
        InvalidParameterError: an argument is not of its type.
    """
    if not isinstance(message, AIMessage):
        raise InvalidParameterError("message", type(message).__name__, "an AIMessage")
    if not isinstance(documents, Sequence) or not all(
        isinstance(one, Document) for one in documents
    ):
        raise InvalidParameterError("documents", documents, "a list of documents of LangChain")
    citable = [
        Citable.of(quotable([passage]), cast("Document", passage.source).metadata)
        for passage in to_passages(documents)
    ]
    parts = locate_parts(str(message.text), _read_blocks(message))
    # The first block repeats them without their parts, and without what was retrieved from files.
    grounding = message.response_metadata.get("grounding_metadata")
    found = read_grounding(grounding, parts) or read_annotations(parts)
    return check_cited(found, citable, corpus=corpus)


def _read_blocks(message: AIMessage) -> Iterator[tuple[str, Sequence[object]]]:
    """Yield the text of each block of a message with its annotations; "" where it is no text."""
    try:
        blocks: Sequence[Any] = message.content_blocks
    except (AttributeError, KeyError, TypeError, ValueError):
        blocks = ()  # the framework reads keys that a reply may lack
    if "".join(map(_read_text, blocks)) != message.text:
        # It leaves out what a stream gave as plain strings beside blocks.
        content = message.content
        blocks = [content] if isinstance(content, str) else content
    for block in blocks:
        cited: list[object] = []
        for key in ("annotations", "citations"):
            value = block.get(key) if isinstance(block, Mapping) else None
            cited += value if isinstance(value, list) else []
        yield _read_text(block), cited


def _read_text(block: object) -> str:
    if isinstance(block, Mapping):
        block = block.get("text") if block.get("type") == "text" else None
    return block if isinstance(block, str) else ""
