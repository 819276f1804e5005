"""Retrieved nodes made shorter for one question (Recomp)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import Field, PlainSerializer, SerializeAsAny
from llama_index.core.llms.llm import LLM
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.schema import (
    BaseNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.settings import Settings

from llama_index_longrag._bridge import token_counter
from llama_index_longrag._documents import copied
from llama_index_longrag._nodes import hide, is_unit, shared_fields, to_unit
from llama_index_longrag._requests import Models, asked, to_prompt, to_template
from llama_index_longrag._settings import identify
from llama_index_longrag._summaries import embed_identity, llm_identity
from llama_index_longrag.postprocessors import CheckedPostprocessor
from longrag.calls import Flow
from longrag.errors import InvalidParameterError
from longrag.ingestion.chunking import check_size
from longrag.prompts import COMPRESS
from longrag.refinement.compression import Summary, compress_abstractive, compress_extractive
from longrag.refinement.pieces import Compressed, Limit, Piece
from longrag.types import LongUnit, Member, stable_id

_SLOTS = {"query_str": "question", "context_str": "context", "max_words": "max_words"}
_OF_THE_TEXT = ("members", "best_chunk", "pieces")


class CompressPostprocessor(CheckedPostprocessor):
    """Keep of retrieved nodes what a question needs (Recomp).

    "extractive" keeps the sentences that are nearest to the question, over all nodes together, in
    their order; any embedding model will do. ``metadata["pieces"]`` of a node that was shortened
    has for each stretch that was kept its characters ``start_char`` and ``end_char`` in the text as
    it was, and ``at``, the character at which it now stands; with the node's ``start_char_idx``
    they are characters of its document. Members of long units are moved along.

    "abstractive" has a language model write what each node says about the question; any LLM will
    do. Nodes that say nothing of it are left out. With ``together`` one call reads all nodes, and
    one node comes of them, whose ``metadata["node_ids"]`` names them.

    Nodes are copied, never changed; their ids, scores and sources stay. One of which nothing is
    kept is left out, and one without text passes through.

    Raises:
        InvalidParameterError: a setting that is not allowed, or no question.
        EmbeddingError: the embedding model returned unusable vectors.
        GenerationError: the language model gave no text.

    Source: Best Practices §3.7; Xu et al. 2023.
    """

    method: Literal["extractive", "abstractive"] = Field(
        default="extractive", description='"extractive" or "abstractive".'
    )
    ratio: float | None = Field(
        default=None,
        strict=True,
        description="The share to keep; 0.4 where there is no other limit.",
    )
    token_budget: int | None = Field(
        default=None,
        strict=True,
        description="extractive: the tokens that may be kept of all nodes together.",
    )
    max_words: int | None = Field(
        default=None, strict=True, description="abstractive: the words asked for in each summary."
    )
    together: bool = Field(
        default=False, strict=True, description="abstractive: whether one call reads all nodes."
    )
    embed_model: Annotated[
        BaseEmbedding | None, PlainSerializer(lambda model: model and embed_identity(model))
    ] = Field(default=None, description="extractive: None is Settings.embed_model.")
    llm: Annotated[LLM | None, PlainSerializer(lambda llm: llm and llm_identity(llm))] = Field(
        default=None, description="abstractive: None is Settings.llm."
    )
    compress_template: SerializeAsAny[BasePromptTemplate] = Field(
        default_factory=lambda: to_template(
            COMPRESS, **{own: name for name, own in _SLOTS.items()}
        ),
        description="abstractive: has query_str and context_str, and may have max_words.",
    )
    num_workers: int = Field(
        default=4, strict=True, description="abstractive: the calls in flight at a time."
    )
    tokenizer: Annotated[Callable[[str], Sequence[Any]] | None, PlainSerializer(identify)] = Field(
        default=None, description="Counts tokens; None is LlamaIndex's global tokenizer."
    )

    def model_post_init(self, context: Any, /) -> None:
        """Refuse settings out of range."""
        super().model_post_init(context)
        check_size("num_workers", self.num_workers)
        abstractive = self.method == "abstractive"
        other = {"token_budget": None} if abstractive else {"max_words": None, "together": False}
        for name, unset in other.items():
            value = getattr(self, name)
            if value != unset:
                raise InvalidParameterError(name, value, f"left out for method {self.method!r}")
        Limit(self.ratio, self.token_budget)
        if self.max_words is not None:
            check_size("max_words", self.max_words)
            if self.ratio is not None:
                raise InvalidParameterError("ratio", self.ratio, "None where max_words is given")

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which the postprocessor is serialised."""
        return "CompressPostprocessor"

    def _get_prompts(self) -> PromptDictType:
        return {"compress": self.compress_template}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        if "compress" in prompts:
            self.compress_template = prompts["compress"]

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return self._models().run(self._flow(nodes, asked(query_bundle)))

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return await self._models().arun(self._flow(nodes, asked(query_bundle)))

    def _models(self) -> Models:
        workers = self.num_workers if self.method == "abstractive" else 1
        return Models(llm=self.llm, embed_model=self.embed_model, num_workers=workers)

    def _flow(self, nodes: Sequence[NodeWithScore], query: str) -> Flow[list[NodeWithScore]]:
        texts = [result.node.get_content(metadata_mode=MetadataMode.NONE) for result in nodes]
        if not any(text.strip() for text in texts):
            return list(nodes)
        if self.method == "extractive":
            kept = yield from compress_extractive(
                query,
                texts,
                ratio=self.ratio,
                token_budget=self.token_budget,
                count_tokens=token_counter(self.tokenizer),
            )
            return _extracts(nodes, texts, kept)
        summaries = yield from compress_abstractive(
            query,
            texts,
            ratio=self.ratio,
            max_words=self.max_words,
            together=self.together,
            prompt=to_prompt(self.compress_template, self.llm or Settings.llm, **_SLOTS),
        )
        return _summaries(nodes, texts, summaries)


def _extracts(
    nodes: Sequence[NodeWithScore], texts: Sequence[str], kept: Compressed
) -> list[NodeWithScore]:
    results = []
    for index, (result, before) in enumerate(zip(nodes, texts, strict=True)):
        text = kept.texts[index]
        if not before.strip() or text == before.strip():
            results.append(result)
        elif text:
            pieces = [piece for piece in kept.pieces if piece.text_index == index]
            node = _rewritten(result.node, text)
            node.metadata["pieces"] = [
                {
                    "start_char": piece.start,
                    "end_char": piece.end,
                    "at": piece.at,
                    "complete": piece.complete,
                }
                for piece in _of_first_text(pieces, result.node)
            ]
            node.metadata |= _moved(result.node, text, pieces)
            results.append(NodeWithScore(node=_hidden(node), score=result.score))
    return results


def _of_first_text(pieces: Sequence[Piece], node: BaseNode) -> Sequence[Piece]:
    """Return pieces of a node that was shortened before as pieces of the text it had at first."""
    earlier = _earlier(node)
    if not earlier:
        return pieces
    # What joins two pieces stands in no document, so that a piece may become several.
    return [
        Piece(
            piece.text_index,
            first.start + left - first.at,
            first.start + right - first.at,
            piece.at + left - piece.start,
            (piece.complete or right < piece.end) and (first.complete or right < end),
        )
        for piece in pieces
        for first in earlier
        if (left := max(piece.start, first.at))
        < (right := min(piece.end, end := first.at + first.end - first.start))
    ]


def _earlier(node: BaseNode) -> list[Piece]:
    """Return what an earlier compression kept, if that is still the text."""
    try:
        pieces = [
            Piece(0, one["start_char"], one["end_char"], one["at"], one["complete"])
            for one in node.metadata.get("pieces", ())
        ]
        length = pieces[-1].at + pieces[-1].end - pieces[-1].start if pieces else 0
    except (KeyError, TypeError):
        return []
    return pieces if length == len(node.get_content(metadata_mode=MetadataMode.NONE)) else []


def _rewritten(node: BaseNode, text: str) -> BaseNode:
    """Copy a node with another text, and without what was true of the text it had."""
    other = copied(node)
    other.embedding = None
    other.set_content(text)
    for key in _OF_THE_TEXT:
        other.metadata.pop(key, None)
    if "complete" in other.metadata:
        other.metadata["complete"] = False
    return other


def _hidden(node: BaseNode) -> BaseNode:
    """Hide what is for programs from models."""
    keys = ["pieces", "node_ids"]
    for names in (node.excluded_embed_metadata_keys, node.excluded_llm_metadata_keys):
        names += [key for key in keys if key in node.metadata and key not in names]
    return node


def _moved(node: BaseNode, text: str, pieces: Sequence[Piece]) -> dict[str, Any]:
    """Return the members of a unit, and its best chunk, as they stand in what was kept of it."""
    if not is_unit(node):
        return {}
    unit = to_unit(node)
    # A member remembers the characters [start, end) of the unit that it was.
    moved = [
        (
            left,
            right,
            Member(
                member.doc_id,
                member.title,
                piece.at + left - piece.start,
                member.doc_start + left - member.start,
                member.doc_start + right - member.start,
            ),
        )
        for piece in pieces
        for member in unit.members
        if (left := max(piece.start, member.start)) < (right := min(piece.end, member.end))
    ]
    if not moved:
        return {}
    members = [member for _, _, member in moved]
    metadata: dict[str, Any] = {
        "doc_ids": list(dict.fromkeys(member.doc_id for member in members)),
        "members": [asdict(member) for member in members],
    }
    if "best_chunk" in node.metadata:
        metadata["best_chunk"] = _best(node.metadata["best_chunk"], unit, text, moved)
    return metadata


def _best(
    chunk: dict[str, Any],
    unit: LongUnit,
    text: str,
    moved: Sequence[tuple[int, int, Member]],
) -> dict[str, Any]:
    """Return what is left of the best chunk; the first member where nothing is."""
    overlap = [min(right, chunk["end"]) - max(left, chunk["start"]) for left, right, _ in moved]
    _, _, member = moved[overlap.index(max(overlap))] if max(overlap) > 0 else moved[0]
    return {
        **chunk,
        "doc_id": member.doc_id,
        "title": member.title,
        "text": text[member.start : member.end],
        "start": member.start,
        "end": member.end,
        "doc_start": member.doc_start,
        "doc_end": member.doc_end,
    }


def _summaries(
    nodes: Sequence[NodeWithScore], texts: Sequence[str], summaries: Sequence[Summary]
) -> list[NodeWithScore]:
    by_first = {summary.text_indices[0]: summary for summary in summaries}
    results = []
    for index, result in enumerate(nodes):
        if not texts[index].strip():
            results.append(result)
        elif index in by_first:
            summary = by_first[index]
            about = [nodes[i] for i in summary.text_indices]
            node = (
                _rewritten(result.node, summary.text) if len(about) == 1 else _one(about, summary)
            )
            results.append(NodeWithScore(node=_hidden(node), score=result.score))
    return results


def _one(about: Sequence[NodeWithScore], summary: Summary) -> TextNode:
    """Make a node of a summary of several, with what they agree on."""
    nodes = [result.node for result in about]
    node_fields = shared_fields(nodes)
    for key in (*_OF_THE_TEXT, "unit_id"):
        node_fields["metadata"].pop(key, None)
    node_ids = [node.node_id for node in nodes]
    doc_ids = [
        doc_id
        for node in nodes
        for doc_id in node.metadata.get("doc_ids") or [node.ref_doc_id or node.node_id]
    ]
    node_fields["metadata"] |= {"node_ids": node_ids, "doc_ids": list(dict.fromkeys(doc_ids))}
    sources = {node.ref_doc_id for node in nodes}
    if len(sources) == 1 and None not in sources:
        source = RelatedNodeInfo(node_id=str(nodes[0].ref_doc_id))
        node_fields["relationships"] = {NodeRelationship.SOURCE: source}
    id_ = stable_id("summary", *node_ids, summary.text)
    return TextNode(id_=id_, text=summary.text, **hide(node_fields, ["doc_ids"]))
