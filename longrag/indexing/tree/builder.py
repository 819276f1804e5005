"""From documents to a tree of summaries (RAPTOR §3), paying only for what is new.

A summary's id is a hash of the ids of the nodes it was made from, down to the leaves. So a change
is another build: clusters that are as before have the ids they had, and with them their texts and
vectors. All that differs between a first build and a change is where the clusters come from.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from operator import index
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from longrag.calls import Compute, Embed, Flow, Generate, Request, ask, run, together
from longrag.errors import (
    EmbeddingError,
    GenerationError,
    InvalidParameterError,
    LongragError,
    SummaryError,
)
from longrag.indexing.tree.changes import Groups, History, regroup
from longrag.indexing.tree.clusterer import Clusterer, Layer
from longrag.indexing.tree.clustering import clusterer
from longrag.indexing.tree.partitions import ContiguousClusterer
from longrag.indexing.tree.summaries import LlmSummarizer, Passage, Summarizer, summarize
from longrag.indexing.tree.tree import Tree
from longrag.indexing.vectors import check_vectors
from longrag.ingestion.chunking import check_size, chunk_spans
from longrag.ingestion.sentences import SentenceSplitter, split_sentences, strip_span
from longrag.ingestion.units import check_documents
from longrag.journal import ANY_DOCUMENT
from longrag.models.tokens import count_tokens
from longrag.types import Document, Span, TokenCounter, TreeNode, stable_id

Scope: TypeAlias = Literal["corpus", "document"]
"""What becomes one tree: the whole corpus, or each document (the protocol of the paper)."""

Vector: TypeAlias = NDArray[np.float32]

# What Python shows of an object that does not show itself.
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")

# What is made from more documents names none of them: the root's alone would be most of a journal.
_NAMED_DOCUMENTS = 256


def _plain_text(leaf: TreeNode, metadata: Mapping[str, object]) -> str:
    return leaf.text


@dataclass(frozen=True, slots=True)
class TreeEstimate:
    """What a build would ask of its models; tokens are those of the builder's counter."""

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
            InvalidParameterError: ``count_tokens`` gave something else than an integer from 0 on.
        """
        tokens = self.count_tokens(text)
        try:
            # numpy's integers are no JSON.
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
            # Its place is not: what is written before a leaf is no reason to pay for it again.
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
        """Count what a build would ask, without asking: a dry run with groups of the usual size.

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
        afresh: cluster every layer again even so; what comes out as before is still not paid for.

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
    known = _Known(settings, documents, before, paid)
    leaves = known.add_leaves(unchanged)
    yield from known.embed(leaves)
    if settings.scope == "document":
        trees = [known.leaves_of(document) for document in documents]
        yield from together(
            _grow(known, tree, None) for tree in trees if afresh or not known.stands(tree)
        )
    else:
        local = not (afresh or before is None or _history_independent(settings.clustering()))
        yield from _grow(known, leaves, History(before) if local and before else None)
    return known.tree()


def _history_independent(clusterer: Clusterer) -> bool:
    return bool(getattr(clusterer, "history_independent", False))


def _grow(known: _Known, leaves: Sequence[str], history: History | None) -> Flow[None]:
    """Add the summaries above some leaves, layer by layer."""
    layer, level, most = list(leaves), 1, known.settings.max_levels
    known.keep(layer)
    while len(layer) > 1 and (most is None or level <= most):
        groups, origins = yield from _group(known, layer, level, history)
        if not groups:
            return
        clusters = [tuple(layer[index] for index in group) for group in groups]
        parents = yield from known.summarize(clusters, level)
        if history is not None:
            history.record(zip(origins, parents, strict=True))
        grouped = {id_ for cluster in clusters for id_ in cluster}
        known.keep(parents)
        layer = known.in_order({*parents, *(id_ for id_ in layer if id_ not in grouped)})
        level += 1


def _group(
    known: _Known, layer: Sequence[str], level: int, history: History | None
) -> Flow[Groups]:
    """Group a layer, in a way that a resumed build finds again before it pays for anything."""
    settings = known.settings
    grouping = settings.clustering()
    value = known.layer(layer)
    nodes = [known.nodes[id_] for id_ in layer]
    old = history.groups(nodes, level) if history is not None else None
    name = _name(grouping)
    key = name and stable_id(
        "clusters",
        name,
        settings.max_cluster_tokens,
        json.dumps(old),
        *value.ids,
        sha256(value.vectors.tobytes()).hexdigest(),
        value.tokens,
    )

    def work() -> str:
        return json.dumps(regroup(value, old, grouping, max_tokens=settings.max_cluster_tokens))

    text = yield from ask(Compute(key, work, known.sources(layer)))
    groups, origins = json.loads(text)
    return groups, origins


def _name(clusterer: Clusterer) -> str:
    """Name a clusterer with its settings; "" where it can be told from another by address alone."""
    kind, shown = type(clusterer), repr(clusterer)
    return "" if _ADDRESS.search(shown) else f"{kind.__module__}.{kind.__qualname__} {shown}"


class _Known:
    """The nodes and vectors there are so far, and which of them the tree is made of."""

    def __init__(
        self,
        settings: TreeBuilder,
        documents: Sequence[Document],
        before: Tree | None,
        paid: Tree | None,
    ) -> None:
        self.settings = settings
        self.nodes: dict[str, TreeNode] = {}
        self.vectors: dict[str, Vector] = {}
        for tree in (before, paid):
            if tree is not None:
                self.nodes |= tree.nodes
                self.vectors |= zip(tree.nodes, tree.vectors, strict=True)
        self._before = before
        self._documents = {document.id: document for document in documents}
        self._leaves: dict[str, list[str]] = {}
        self._kept: dict[str, None] = {}
        self._places: dict[str, tuple[Any, ...]] = {}
        self._anchors: dict[str, str] = {}
        self._versions: dict[str, str] = {}

    def add_leaves(self, unchanged: Collection[str]) -> list[str]:
        """Cut the documents into leaves and return the ids of all, in order."""
        for doc_id in sorted(self._documents):
            if doc_id in unchanged:
                self._leaves[doc_id] = self._leaves_before(doc_id)
                continue
            leaves = self.settings.leaves(self._documents[doc_id])
            self.nodes |= {leaf.id: leaf for leaf in leaves}
            self._leaves[doc_id] = [leaf.id for leaf in leaves]
        return [id_ for own in self._leaves.values() for id_ in own]

    def _leaves_before(self, doc_id: str) -> list[str]:
        own = self._before.of_document(doc_id) if self._before else ()
        return [id_ for id_ in own if not self.nodes[id_].level]

    def leaves_of(self, document: Document) -> list[str]:
        return self._leaves[document.id]

    def stands(self, leaves: Sequence[str]) -> bool:
        """Whether the tree of one document is as before; if so, it is kept as it is."""
        if self._before is None or not leaves:
            return False
        (doc_id,) = self.nodes[leaves[0]].doc_ids
        if self._leaves_before(doc_id) != list(leaves):
            return False
        self.keep(self._before.of_document(doc_id))
        return True

    def keep(self, ids: Iterable[str]) -> None:
        self._kept |= dict.fromkeys(ids)

    def tree(self) -> Tree:
        ids = sorted(self._kept, key=lambda id_: (self.nodes[id_].level, self._place(id_)))
        rows = [self.vectors[id_] for id_ in ids]
        matrix = np.stack(rows) if rows else np.empty((0, 1), np.float32)
        return Tree([self.nodes[id_] for id_ in ids], matrix)

    def in_order(self, ids: Iterable[str]) -> list[str]:
        return sorted(ids, key=self._place)

    def _place(self, id_: str) -> tuple[Any, ...]:
        """Return what a node is sorted by: where its first leaf stands, then its own id."""
        if id_ not in self._places:
            node = self.nodes[id_]
            first = min((self._place(child)[:2] for child in node.children), default=None)
            self._places[id_] = (*(first or (node.doc_ids[0], node.span)), node.level, id_)
        return self._places[id_]

    def layer(self, ids: Sequence[str]) -> Layer:
        doc_ids = [self.nodes[id_].doc_ids for id_ in ids]
        return replace(
            self._layer(ids),
            anchors=self._layer([self._anchor(id_) for id_ in ids]),
            documents=tuple(own[0] if len(own) == 1 else "" for own in doc_ids),
        )

    def _layer(self, ids: Sequence[str]) -> Layer:
        return Layer(
            tuple(ids),
            np.stack([self.vectors[id_] for id_ in ids]),
            tuple(self.nodes[id_].tokens for id_ in ids),
        )

    def _anchor(self, id_: str) -> str:
        """Return the leaf below a node that comes first in a pseudorandom order."""
        if id_ not in self._anchors:
            children = self.nodes[id_].children
            self._anchors[id_] = min(map(self._anchor, children)) if children else id_
        return self._anchors[id_]

    def embed(self, ids: Sequence[str]) -> Flow[None]:
        """Embed the nodes that have no vector yet."""
        missing = [id_ for id_ in ids if id_ not in self.vectors]
        size = self.settings.texts_per_call
        calls = [missing[first : first + size] for first in range(0, len(missing), size)]
        if not calls:
            return
        answers = yield tuple(
            Embed(
                tuple(self._shown(self.nodes[id_]) for id_ in call),
                "document",
                tuple(self.sources((id_,)) for id_ in call),
            )
            for call in calls
        )
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            vectors = check_vectors(
                answer,
                name="vectors",
                width=next((len(vector) for vector in self.vectors.values()), None),
            )
            if len(vectors) != len(call):
                raise EmbeddingError(
                    f"the embedder returned {len(vectors)} vectors for {len(call)} texts"
                )
            self.vectors |= zip(call, vectors, strict=True)

    def _shown(self, node: TreeNode) -> str:
        if node.level:
            return node.text
        return self.settings.embedding_text(node, self._documents[node.doc_ids[0]].metadata)

    def sources(self, ids: Iterable[str]) -> tuple[str, ...]:
        """Return the sources by which a journal purges what was made from some nodes."""
        doc_ids = self._doc_ids(ids)
        if len(doc_ids) > _NAMED_DOCUMENTS:
            return (ANY_DOCUMENT,)
        # By document or, when a document changes, by its text as it was.
        return tuple(source for id_ in doc_ids for source in (id_, self._version(id_)))

    def _version(self, doc_id: str) -> str:
        if doc_id not in self._versions:
            self._versions[doc_id] = version(self._documents[doc_id])
        return self._versions[doc_id]

    def summarize(self, clusters: Sequence[tuple[str, ...]], level: int) -> Flow[list[str]]:
        """Make the parents of clusters, asking for those that are not known, and embed them."""
        ids = [stable_id("summary", level, *cluster) for cluster in clusters]
        missing = {
            id_: cluster
            for id_, cluster in zip(ids, clusters, strict=True)
            if id_ not in self.nodes
        }
        texts = yield from together(self._summary(cluster, level) for cluster in missing.values())
        for (id_, cluster), text in zip(missing.items(), texts, strict=True):
            self.nodes[id_] = TreeNode(
                id=id_,
                text=text,
                level=level,
                tokens=self.settings.tokens(text),
                doc_ids=self._doc_ids(cluster),
                children=cluster,
            )
        yield from self.embed(ids)
        return ids

    def _doc_ids(self, cluster: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted({doc_id for id_ in cluster for doc_id in self.nodes[id_].doc_ids}))

    def _summary(self, cluster: tuple[str, ...], level: int) -> Flow[str]:
        passages = [Passage(self.nodes[id_].text, self.nodes[id_].title) for id_ in cluster]
        doc_ids = self._doc_ids(cluster)
        try:
            text = yield from summarize(
                self.settings.summarizer, passages, sources=self.sources(cluster)
            )
        except LongragError as error:
            if not isinstance(error, GenerationError):
                raise
            raise self._failure(cluster, level, doc_ids, error) from error
        except Exception as error:
            raise self._failure(cluster, level, doc_ids, error) from error
        return text

    def _failure(
        self, cluster: tuple[str, ...], level: int, doc_ids: Sequence[str], error: Exception
    ) -> SummaryError:
        some = ", ".join(map(repr, doc_ids[:3])) + (", ..." if len(doc_ids) > 3 else "")
        return SummaryError(
            f"the summary {stable_id('summary', level, *cluster)} of level {level}, of"
            f" {len(cluster)} nodes from {some}, could not be made:"
            f" {type(error).__name__}: {error}. A journal keeps the summaries that were made: with"
            " one, run the build again to go on",
            level=level,
            children=cluster,
        )


def version(document: Document) -> str:
    """Name a document's title and text as they are, as a source of answers made from them."""
    return stable_id("version", document.id, document.title, document.text)


class _Tally:
    """Answers requests with stand-ins and counts what they would have cost."""

    def __init__(self, builder: TreeBuilder) -> None:
        self._count = builder.tokens
        # A summarizer of another make may not tell the length of what it writes.
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
