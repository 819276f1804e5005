"""What is built once and searched often: vectors, trees, keys to decode. No questions here."""

from typing import TYPE_CHECKING

from longrag import lazily

if TYPE_CHECKING:
    from longrag.indexing.clustering import cluster_layer, clusterer
    from longrag.indexing.keys import KeyIndex, KeyState, Occurrence
    from longrag.indexing.keywords import KeywordIndex, UnitKeywords
    from longrag.indexing.layers import Clusterer, Layer
    from longrag.indexing.mixtures import FastClusterer, PaperClusterer
    from longrag.indexing.partitions import ContiguousClusterer, GraphClusterer, StableClusterer
    from longrag.indexing.summaries import (
        ExtractiveSummarizer,
        LlmSummarizer,
        Passage,
        Summarizer,
        check_summary,
    )
    from longrag.indexing.tilde_index import TildeIndex, TildeScorer
    from longrag.indexing.token_ids import TokenIds
    from longrag.indexing.tree import Tree, TreeStatistics
    from longrag.indexing.tree_builder import TreeBuilder, TreeEstimate, build_tree
else:
    __getattr__, __dir__ = lazily(
        globals(),
        {
            "clustering": "cluster_layer clusterer",
            "keys": "KeyIndex KeyState Occurrence",
            "keywords": "KeywordIndex UnitKeywords",
            "layers": "Clusterer Layer",
            "mixtures": "FastClusterer PaperClusterer",
            "partitions": "ContiguousClusterer GraphClusterer StableClusterer",
            "summaries": "ExtractiveSummarizer LlmSummarizer Passage Summarizer check_summary",
            "tilde_index": "TildeIndex TildeScorer",
            "token_ids": "TokenIds",
            "tree": "Tree TreeStatistics",
            "tree_builder": "TreeBuilder TreeEstimate build_tree",
        },
    )

__all__ = [
    "Clusterer",
    "ContiguousClusterer",
    "ExtractiveSummarizer",
    "FastClusterer",
    "GraphClusterer",
    "KeyIndex",
    "KeyState",
    "KeywordIndex",
    "Layer",
    "LlmSummarizer",
    "Occurrence",
    "PaperClusterer",
    "Passage",
    "StableClusterer",
    "Summarizer",
    "TildeIndex",
    "TildeScorer",
    "TokenIds",
    "Tree",
    "TreeBuilder",
    "TreeEstimate",
    "TreeStatistics",
    "UnitKeywords",
    "build_tree",
    "check_summary",
    "cluster_layer",
    "clusterer",
]
