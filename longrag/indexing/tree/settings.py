"""The settings of a tree of summaries (RAPTOR §3), and the leaves they cut documents into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from operator import index
from typing import Final, TypeAlias

from longrag.errors import InvalidParameterError
from longrag.executors import check_executor, map_items
from longrag.indexing.tree.clusterer import Clusterer
from longrag.indexing.tree.clustering import clusterer
from longrag.indexing.tree.summaries import LlmSummarizer, Summarizer
from longrag.ingestion.chunking import check_size, chunk_spans
from longrag.ingestion.sentences import SentenceSplitter, split_sentences, strip_span
from longrag.models.tokens import count_tokens
from longrag.types import Document, Span, TokenCounter, TreeNode, stable_id

Scope: TypeAlias = str
"""What becomes one tree.

"corpus" is the whole corpus, and "document" each document, the protocol of the paper. Anything else
is a metadata key, such as "tenant": one tree for the documents of each value, which must be one
string, number or bool.
"""


_DOCUMENTS_A_TASK: Final = 32


def _plain_text(leaf: TreeNode, metadata: Mapping[str, object]) -> str:
    return leaf.text


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBuilder:
    """The settings of a tree.

    Attributes:
        clusterer: groups the nodes of a layer: a name that ``clusterer`` knows, or your own.
        summarizer: writes the summary of a group.
        scope: what becomes one tree: "corpus", "document", or a metadata key, of which each value
            has a tree. A document without a value, or with a list or a mapping, is refused.
        chunk_size: the largest size of a leaf, in tokens; None makes each document one leaf.
        max_cluster_tokens: the most tokens that one summary is made from.
        max_levels: the most levels above the leaves; None goes on until one node is left.
        random_state: seeds a clusterer that is given by name.
        texts_per_call: the most texts in one request to the embedder: what it embeds in one call,
            since a kill loses the calls in flight. It changes nothing about the tree.
        count_tokens: counts the tokens of a text.
        split_sentences: gives the spans of the sentences of a text.
        embedding_text: writes what is embedded of a leaf, from it and its document's metadata.
        executor: cuts documents into leaves and clusters layers, many trees or blocks at the same
            time, for instance a ``ProcessPoolExecutor``; None does it in the calling thread. The
            tree is the same. What goes to other processes is pickled, also ``count_tokens`` and a
            clusterer of your own.

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
    executor: Executor | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.scope, str) or not self.scope:
            raise InvalidParameterError(
                "scope", self.scope, '"corpus", "document" or a metadata key'
            )
        for name in ("chunk_size", "max_levels"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        check_size("max_cluster_tokens", self.max_cluster_tokens)
        check_size("texts_per_call", self.texts_per_call)
        check_executor(self.executor)
        self.clustering()

    def clustering(self) -> Clusterer:
        """Return the clusterer itself."""
        return clusterer(self.clusterer, random_state=self.random_state)

    def tokens(self, text: str) -> int:
        """Count the tokens of a text.

        Raises:
            InvalidParameterError: ``count_tokens`` gave no integer of at least 0.
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

    def leaves_of_each(self, documents: Sequence[Document]) -> Iterator[list[TreeNode]]:
        """Cut documents into leaves, in the executor; see ``leaves``."""
        # What a cut does not need is perhaps not to be pickled.
        cut = replace(self, executor=None, clusterer="stable", summarizer=LlmSummarizer()).leaves
        return map_items(cut, documents, self.executor, part_size=_DOCUMENTS_A_TASK)

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
