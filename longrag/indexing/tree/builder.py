"""From documents to a tree of summaries (RAPTOR §3), paying only for what is new.

A summary's id is a hash of the ids of the nodes it was made from, down to the leaves. A change is
therefore another build: unchanged clusters keep their ids, and with them their texts and vectors.
All that differs between a first build and a change is where the clusters come from.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from operator import index
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from longrag.calls import Compute, Embed, Flow, Generate, Request, ask, run, together
from longrag.errors import (
    InvalidParameterError,
)
from longrag.indexing.tree.assembly import TreeAssembly
from longrag.indexing.tree.changes import Groups, History, regroup
from longrag.indexing.tree.clusterer import Clusterer
from longrag.indexing.tree.clustering import clusterer
from longrag.indexing.tree.partitions import ContiguousClusterer
from longrag.indexing.tree.summaries import LlmSummarizer, Summarizer
from longrag.indexing.tree.tree import Tree
from longrag.ingestion.chunking import check_size, chunk_spans
from longrag.ingestion.sentences import SentenceSplitter, split_sentences, strip_span
from longrag.ingestion.units import check_documents
from longrag.models.tokens import count_tokens
from longrag.types import Document, Span, TokenCounter, TreeNode, stable_id

Scope: TypeAlias = Literal["corpus", "document"]
"""What becomes one tree: the whole corpus, or each document (the protocol of the paper)."""

Vector: TypeAlias = NDArray[np.float32]

# Python's default repr of an object, which holds its address.
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


def _plain_text(leaf: TreeNode, metadata: Mapping[str, object]) -> str:
    return leaf.text


@dataclass(frozen=True, slots=True)
class TreeEstimate:
    """The model calls that a build would make; tokens are those of the builder's counter."""

    leaves: int
    llm_calls: int
    prompt_tokens: int
    completion_tokens: int
    embedded_texts: int
    embedded_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBuilder:
    """The settings of a tree.

    Attributes:
        clusterer: groups the nodes of a layer: a name that ``clusterer`` knows, or your own.
        summarizer: writes the summary of a group.
        scope: what becomes one tree, "corpus" or "document".
        chunk_size: the largest size of a leaf, in tokens; None makes each document one leaf.
        max_cluster_tokens: the most tokens that one summary is made from.
        max_levels: the most levels above the leaves; None goes on until one node is left.
        random_state: seeds a clusterer that is given by name.
        texts_per_call: the most texts in one request to the embedder: what it embeds in one call,
            since a kill loses the calls in flight. It changes nothing about the tree.
        count_tokens: counts the tokens of a text.
        split_sentences: gives the spans of the sentences of a text.
        embedding_text: writes what is embedded of a leaf, from it and its document's metadata.

    Raises:
        InvalidParameterError: a setting is out of range.

    Source: RAPTOR §3; 100 tokens a leaf and 3,500 a cluster are the authors' defaults.
    """

    clusterer: Clusterer | str = "stable"
    summarizer: Summarizer = field(default_factory=LlmSummarizer)
    scope: Scope = "corpus"
    chunk_size: int | None = 100
    max_cluster_tokens: int = 3500
    max_levels: int | None = None
    random_state: int = 0
    texts_per_call: int = 32
    count_tokens: TokenCounter = count_tokens
    split_sentences: SentenceSplitter = split_sentences
    embedding_text: Callable[[TreeNode, Mapping[str, object]], str] = _plain_text

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise InvalidParameterError("scope", self.scope, '"corpus" or "document"')
        for name in ("chunk_size", "max_levels"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        check_size("max_cluster_tokens", self.max_cluster_tokens)
        check_size("texts_per_call", self.texts_per_call)
        self.clustering()

    def clustering(self) -> Clusterer:
        """Return the clusterer itself."""
        return clusterer(self.clusterer, random_state=self.random_state)

    def tokens(self, text: str) -> int:
        """Count the tokens of a text.

        Raises:
            InvalidParameterError: ``count_tokens`` gave something other than an integer from 0 on.
        """
        tokens = self.count_tokens(text)
        try:
            # JSON cannot hold NumPy's integers.
            counted = index(tokens)
        except TypeError:
            counted = -1
        if counted < 0:
            raise InvalidParameterError(
                "count_tokens", tokens, "a function that returns integers of at least 0"
            )
        return counted

    def leaves(self, document: Document) -> list[TreeNode]:
        """Cut a document into leaves of whole sentences, with their characters in it."""
        found = []
        alike: Counter[tuple[str, ...]] = Counter()
        for start, end in self._spans(document.text):
            text = document.text[start:end]
            leaf = TreeNode(
                id="",
                text=text,
                level=0,
                tokens=self.tokens(text),
                doc_ids=(document.id,),
                title=document.title,
                span=(start, end),
            )
            # What is embedded is part of a leaf's identity, so that a vector is known by the id.
            # Its place is not, so that text inserted before a leaf does not cause a new payment.
            shown = self.embedding_text(leaf, document.metadata)
            own = ("leaf", document.id, document.title, text, shown)
            found.append(replace(leaf, id=stable_id(*own, alike[own])))
            alike[own] += 1
        return found

    def _spans(self, text: str) -> list[Span]:
        if self.chunk_size is None:
            return [strip_span(text, 0, len(text))] if text.strip() else []
        return chunk_spans(
            text,
            chunk_size=self.chunk_size,
            count_tokens=self.tokens,
            split_sentences=self.split_sentences,
        )

    def estimate(self, documents: Sequence[Document]) -> TreeEstimate:
        """Count the calls of a build without making them: a dry run with groups of the usual size.

        The leaves are those of the build. How they group is not known before they are embedded:
        expect the calls to be off by up to a third, less for windows of neighbours.

        Raises:
            InvalidDocumentError: a document cannot be ingested.
        """
        size = getattr(self.clustering(), "typical_size", ContiguousClusterer().size)
        dry = replace(self, clusterer=ContiguousClusterer(size=max(round(size), 2)))
        tally = _Tally(self)
        tree = run(build_tree(documents, dry), tally.answer)
        return tally.estimate(sum(not node.level for node in tree.nodes.values()))


def build_tree(
    documents: Sequence[Document],
    builder: TreeBuilder | None = None,
    *,
    before: Tree | None = None,
    paid: Tree | None = None,
    unchanged: Collection[str] = (),
    afresh: bool = False,
) -> Flow[Tree]:
    """Build the tree of a corpus: leaves, then layer by layer clusters, summaries and vectors.

    The result does not depend on the order of the documents. A layer's clusters are computed in a
    ``Compute`` request, and all its summaries are asked for at the same time.

    Args:
        documents: all of them, each once.
        builder: the settings.
        before: a tree whose nodes need not be paid for again. Where the clusterer is not history
            independent and the scope is the corpus, its clusters are kept as far as they go, and
            changed only where leaves came or went.
        paid: a further tree whose nodes need not be paid for again.
        unchanged: the ids of documents that ``before`` was built with as they are, so that they
            need not be cut into leaves again.
        afresh: cluster every layer again; groups that come out as before are still not paid for.

    Raises:
        InvalidDocumentError: a document cannot be ingested; see ``check_documents``.
        SummaryError: a cluster could not be summarised. Every other summary of its layer has been
            asked for, so that a journal has them.
        EmbeddingError: the embedder returned unusable vectors.
        CallLimitError: the adapter's limit on calls was reached.

    Source: RAPTOR §3.
    """
    check_documents(documents)
    settings = builder or TreeBuilder()
    assembly = TreeAssembly(settings, documents, before, paid)
    leaves = assembly.add_leaves(unchanged)
    yield from assembly.embed(leaves)
    if settings.scope == "document":
        trees = [assembly.leaves_of(document) for document in documents]
        yield from together(
            _grow(assembly, tree, None)
            for tree in trees
            if afresh or not assembly.is_unchanged(tree)
        )
    else:
        local = not (afresh or before is None or _history_independent(settings.clustering()))
        yield from _grow(assembly, leaves, History(before) if local and before else None)
    return assembly.tree()


def _history_independent(clusterer: Clusterer) -> bool:
    return bool(getattr(clusterer, "history_independent", False))


def _grow(assembly: TreeAssembly, leaves: Sequence[str], history: History | None) -> Flow[None]:
    """Add the summaries above some leaves, layer by layer."""
    layer, level, most = list(leaves), 1, assembly.settings.max_levels
    assembly.keep(layer)
    while len(layer) > 1 and (most is None or level <= most):
        groups, origins = yield from _group(assembly, layer, level, history)
        if not groups:
            return
        clusters = [tuple(layer[index] for index in group) for group in groups]
        parents = yield from assembly.summarize(clusters, level)
        if history is not None:
            history.record(zip(origins, parents, strict=True))
        grouped = {id_ for cluster in clusters for id_ in cluster}
        assembly.keep(parents)
        layer = assembly.in_order({*parents, *(id_ for id_ in layer if id_ not in grouped)})
        level += 1


def _group(
    assembly: TreeAssembly, layer: Sequence[str], level: int, history: History | None
) -> Flow[Groups]:
    """Group a layer in a ``Compute``, so that a resumed build finds its groups in the journal."""
    settings = assembly.settings
    grouping = settings.clustering()
    value = assembly.layer(layer, level)
    nodes = [assembly.nodes[id_] for id_ in layer]
    old = history.groups(nodes, level) if history is not None else None
    name = _name(grouping)
    key = name and stable_id(
        "clusters",
        name,
        settings.max_cluster_tokens,
        level,
        json.dumps(old),
        *value.ids,
        sha256(value.vectors.tobytes()).hexdigest(),
        value.tokens,
    )

    def work() -> str:
        return json.dumps(regroup(value, old, grouping, max_tokens=settings.max_cluster_tokens))

    text = yield from ask(Compute(key, work, assembly.sources(layer)))
    groups, origins = json.loads(text)
    return groups, origins


def _name(clusterer: Clusterer) -> str:
    """Name a clusterer with its settings; "" if its repr holds an address."""
    kind, shown = type(clusterer), repr(clusterer)
    return "" if _ADDRESS.search(shown) else f"{kind.__module__}.{kind.__qualname__} {shown}"


class _Tally:
    """Answers requests with stand-ins and counts what they would have cost."""

    def __init__(self, builder: TreeBuilder) -> None:
        self._count = builder.tokens
        # A summarizer from outside the package may not say how long its summaries are.
        self._length = int(getattr(builder.summarizer, "summary_tokens", 100))
        self.calls = self.prompt = self.texts = self.embedded = 0

    def answer(self, request: Request) -> Any:
        match request:
            case Generate(prompt=prompt):
                self.calls += 1
                self.prompt += self._count(prompt)
                return " ".join(["word"] * self._length)
            case Embed(texts=texts):
                self.texts += len(texts)
                self.embedded += sum(map(self._count, texts))
                return np.ones((len(texts), 1), np.float32)
            case _:
                raise NotImplementedError(type(request).__name__)

    def estimate(self, leaves: int) -> TreeEstimate:
        return TreeEstimate(
            leaves=leaves,
            llm_calls=self.calls,
            prompt_tokens=self.prompt,
            completion_tokens=self.calls * self._length,
            embedded_texts=self.texts,
            embedded_tokens=self.embedded,
        )
