"""From a question to units: ranking, exclusion, budgets. No text is written here."""

from typing import TYPE_CHECKING

from longrag import lazily

# At once, because the function has the name of its module and would be hidden by it.
from longrag.retrieval.hybrid import DenseRetriever, HybridHit, hybrid

if TYPE_CHECKING:
    from longrag.retrieval.assembly import fit_budget, unit_of_chunks
    from longrag.retrieval.corpus import Change, CorpusIndex
    from longrag.retrieval.corpus_evidence import CorpusEvidence
    from longrag.retrieval.evidence import (
        Evidence,
        EvidenceIndex,
        embed_evidence,
        retrieve_evidence,
    )
    from longrag.retrieval.fusion import fuse
    from longrag.retrieval.maxp import MaxPIndex
    from longrag.retrieval.media_store import MediaItem, MediaStore
    from longrag.retrieval.multimodal import (
        EmbedMedia,
        FoundMedia,
        GenerateMedia,
        ImageTextEmbedder,
        MediaIndex,
        add_media,
        nearest_media,
        retrieve_or_generate,
    )
    from longrag.retrieval.queries import QueryTexts, decompose, hyde, merge, rewrite
    from longrag.retrieval.query_classifier import Gate, QueryClassifier
    from longrag.retrieval.query_gates import (
        EmbeddingQueryClassifier,
        PromptedQueryClassifier,
        classify_query,
    )
    from longrag.retrieval.tree_index import TreeChange, TreeIndex
    from longrag.retrieval.tree_search import TreeScorer, collapsed, traverse
    from longrag.retrieval.units import (
        Hit,
        UnitIndex,
        embed_units,
        retrieve,
        retrieve_from_store,
    )
else:
    __getattr__, __dir__ = lazily(
        globals(),
        {
            "assembly": "fit_budget unit_of_chunks",
            "corpus": "Change CorpusIndex",
            "corpus_evidence": "CorpusEvidence",
            "evidence": "Evidence EvidenceIndex embed_evidence retrieve_evidence",
            "fusion": "fuse",
            "maxp": "MaxPIndex",
            "media_store": "MediaItem MediaStore",
            "multimodal": (
                "EmbedMedia FoundMedia GenerateMedia ImageTextEmbedder MediaIndex add_media "
                "nearest_media retrieve_or_generate"
            ),
            "queries": "QueryTexts decompose hyde merge rewrite",
            "query_classifier": "Gate QueryClassifier",
            "query_gates": "EmbeddingQueryClassifier PromptedQueryClassifier classify_query",
            "tree_index": "TreeChange TreeIndex",
            "tree_search": "TreeScorer collapsed traverse",
            "units": "Hit UnitIndex embed_units retrieve retrieve_from_store",
        },
    )

__all__ = [
    "Change",
    "CorpusEvidence",
    "CorpusIndex",
    "DenseRetriever",
    "EmbedMedia",
    "EmbeddingQueryClassifier",
    "Evidence",
    "EvidenceIndex",
    "FoundMedia",
    "Gate",
    "GenerateMedia",
    "Hit",
    "HybridHit",
    "ImageTextEmbedder",
    "MaxPIndex",
    "MediaIndex",
    "MediaItem",
    "MediaStore",
    "PromptedQueryClassifier",
    "QueryClassifier",
    "QueryTexts",
    "TreeChange",
    "TreeIndex",
    "TreeScorer",
    "UnitIndex",
    "add_media",
    "classify_query",
    "collapsed",
    "decompose",
    "embed_evidence",
    "embed_units",
    "fit_budget",
    "fuse",
    "hybrid",
    "hyde",
    "merge",
    "nearest_media",
    "retrieve",
    "retrieve_evidence",
    "retrieve_from_store",
    "retrieve_or_generate",
    "rewrite",
    "traverse",
    "unit_of_chunks",
]
