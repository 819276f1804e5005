"""Where LlamaIndex's values meet those of RICHES: settings, outputs, citations, passages."""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from llama_index.core.schema import (
    BaseNode,
    Document,
    NodeRelationship,
    NodeWithScore,
    RelatedNodeInfo,
    TextNode,
)

from llama_index_longrag._nodes import hide, look, to_document
from longrag.decoding import Generation, RetrievedSpan, RichesDecoder, Source, Usage, thoughts
from longrag.errors import InvalidDocumentError, InvalidParameterError
from longrag.ingestion import paragraphs
from longrag.types import stable_id

T = TypeVar("T")

PASSAGE_KEYS = ("quotes",)


def decoder_settings(decoder: RichesDecoder) -> dict[str, Any]:
    """Write down all that decides about a decoder's outputs; the weights by their name."""
    names = ("beam_size", "adaptive", "search", "max_new_tokens", "max_rows")
    limits = ("min_spans", "max_spans", "max_span_tokens", "repeat_keys")
    constraint = decoder._constraint(decoder.stop)
    return {
        "language_model": decoder.language_model.name,
        "tokenizer": decoder.language_model.tokenizer.fingerprint,
        "key_index": decoder.key_index.fingerprint,
        **{name: getattr(decoder, name) for name in names},
        **{name: getattr(constraint, name) for name in limits},
        "stop": list(decoder.stop),
        "markers": list(decoder.markers),
    }


def settings_digest(settings: dict[str, Any]) -> str:
    """Hash a decoder's settings into 16 characters."""
    return stable_id("riches", json.dumps(settings, sort_keys=True))[:16]


def check_decoder(decoder: object) -> RichesDecoder:
    """Return a decoder, or refuse what is none."""
    if not isinstance(decoder, RichesDecoder):
        remedy = "RichesLLM.from_defaults and RichesQueryEngine.from_documents make one."
        raise InvalidParameterError("decoder", type(decoder).__name__, "a RichesDecoder", remedy)
    return decoder


def to_raw(generation: Generation, decoder: RichesDecoder) -> dict[str, Any]:
    """Write down an output: what was retrieved, on which thoughts, and what it took."""
    before = thoughts(generation, markers=decoder.markers)
    usage = generation.usage
    return {
        "model": decoder.language_model.name,
        "key_index": decoder.key_index.fingerprint,
        "text": generation.text,
        "trace": [
            {"thought": thought, **asdict(span), "sources": [asdict(s) for s in span.sources]}
            for thought, span in zip(before, generation.spans, strict=True)
        ],
        "logprob": generation.logprob,
        "finish_reason": generation.finish_reason,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.new_tokens,
            "total_tokens": usage.prompt_tokens + usage.new_tokens,
            "calls": usage.calls,
            "rows": usage.rows,
        },
    }


def from_raw(raw: dict[str, Any]) -> Generation:
    """Read back what ``to_raw`` wrote."""
    usage = raw["usage"]
    return Generation(
        text=raw["text"],
        spans=tuple(_span(**step) for step in raw["trace"]),
        logprob=raw["logprob"],
        finish_reason=raw["finish_reason"],
        usage=Usage(
            usage["prompt_tokens"], usage["completion_tokens"], usage["calls"], usage["rows"]
        ),
    )


def _span(*, thought: str, sources: Sequence[dict[str, Any]], **known: Any) -> RetrievedSpan:
    return RetrievedSpan(sources=tuple(Source(**source) for source in sources), **known)


def cited(span: RetrievedSpan) -> tuple[Source, ...]:
    """Return the sources of a span that are shown.

    All places of its words; of passages that it only stands for, which are ranked, the best.
    """
    own = tuple(source for source in span.sources if source.verbatim)
    return own or span.sources[:1]


class _Place(NamedTuple):
    """The characters ``[start, end)`` of a document, under a name."""

    start: int
    end: int
    id: str


class Corpus:
    """The nodes that keys were made from, to show what a span quotes.

    A node is one passage; a LlamaIndex ``Document`` has many, its paragraphs.

    Raises:
        InvalidDocumentError: two nodes have one id, or one is none.
    """

    def __init__(self, nodes: Sequence[BaseNode], title_key: str = "title") -> None:
        for position, node in enumerate(nodes):
            if not isinstance(node, BaseNode):
                kind = type(node).__name__
                raise InvalidDocumentError(
                    f"document {position} must be a LlamaIndex document or node, got {kind}"
                )
        self.documents = [to_document(node, title_key) for node in nodes]
        self._nodes = {node.node_id: node for node in nodes}
        self._documents = {document.id: document for document in self.documents}
        self._paragraphs: dict[str, list[_Place]] = {}
        for found in paragraphs(self.documents):
            if not self.is_one_passage(found.doc_id):
                place = _Place(found.start, found.end, found.id)
                self._paragraphs.setdefault(found.doc_id, []).append(place)

    def is_one_passage(self, doc_id: str) -> bool:
        """Whether a node is returned as it was given, and not by its paragraphs."""
        return not isinstance(self._nodes[doc_id], Document)

    def citation(self, span: RetrievedSpan, source: Source) -> dict[str, Any]:
        """Describe where a part of an output comes from."""
        document = self._documents.get(source.doc_id)
        return {
            "text": document.text[source.start : source.end] if document else span.text,
            "title": document.title if document else "",
            "doc_id": source.doc_id,
            "start_char": source.start,
            "end_char": source.end,
            "response_start": span.start,
            "response_end": span.end,
        }

    def nodes(self, found: Iterable[tuple[Source, RetrievedSpan]]) -> list[NodeWithScore]:
        """Return the passages that were quoted, each once, with what was quoted of it."""
        results: dict[str, NodeWithScore] = {}
        for source, span in found:
            node = self._node(source, span)
            result = NodeWithScore(node=node, score=span.logprob)
            result = results.setdefault(node.node_id, result)
            quote = {
                "text": span.text,
                "start_char": source.start,
                "end_char": source.end,
                "verbatim": source.verbatim,
                "logprob": span.logprob,
                "proved": span.proved,
            }
            if quote not in result.node.metadata["quotes"]:
                result.node.metadata["quotes"].append(quote)
        return list(results.values())

    def _node(self, source: Source, span: RetrievedSpan) -> BaseNode:
        own = self._nodes.get(source.doc_id)
        if own is None:
            return _of_unknown(source, span)
        metadata = {
            "metadata": {**own.metadata, "quotes": []},
            "excluded_embed_metadata_keys": own.excluded_embed_metadata_keys,
            "excluded_llm_metadata_keys": own.excluded_llm_metadata_keys,
        }
        if not isinstance(own, Document):
            return own.model_copy(update=hide(metadata, PASSAGE_KEYS))
        place = self._paragraph(source) or _Place(0, len(own.text), own.node_id)
        return TextNode(
            id_=place.id,
            text=own.text[place.start : place.end],
            start_char_idx=place.start,
            end_char_idx=place.end,
            relationships={NodeRelationship.SOURCE: own.as_related_node_info()},
            **hide({**look(own), **metadata}, PASSAGE_KEYS),
        )

    def _paragraph(self, source: Source) -> _Place | None:
        """Return the paragraph that holds the characters of a source; None where none does."""
        known = self._paragraphs.get(source.doc_id, [])
        place = bisect_right(known, source.start, key=attrgetter("start")) - 1
        if place < 0 or known[place].end < source.end:
            return None
        return known[place]


def _of_unknown(source: Source, span: RetrievedSpan) -> TextNode:
    """Make a node of a quote whose document was not given."""
    return TextNode(
        id_=stable_id("quote", source.doc_id, source.start, source.end, span.text),
        text=span.text,
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=source.doc_id)},
        metadata={"quotes": []},
        excluded_embed_metadata_keys=list(PASSAGE_KEYS),
        excluded_llm_metadata_keys=list(PASSAGE_KEYS),
    )


async def in_thread(step: Callable[[], T]) -> T:
    """Run a step in a thread; a cancellation waits for its end, since nothing can cut it short."""
    running = asyncio.ensure_future(asyncio.to_thread(step))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            # Who cancels twice does not stop it sooner, and a running generator cannot be closed.
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        if not running.cancelled():
            # What it raised is of no interest any more.
            running.exception()
        raise


async def off_the_loop(pieces: Generator[T, None, None]) -> AsyncGenerator[T, None]:
    """Advance a generator in threads; it is closed, and its model stopped, with this one."""
    with closing(pieces):
        while (piece := await in_thread(partial(next, pieces, None))) is not None:
            yield piece
