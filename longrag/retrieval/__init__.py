"""From a question to units: ranking, exclusion, budgets. No text is written here."""

from longrag.retrieval.assembly import fit_budget, unit_of_chunks
from longrag.retrieval.corpus import Change, CorpusIndex
from longrag.retrieval.corpus_evidence import CorpusEvidence
from longrag.retrieval.evidence import Evidence, EvidenceIndex, embed_evidence, retrieve_evidence
from longrag.retrieval.fusion import fuse
from longrag.retrieval.hybrid import DenseRetriever, HybridHit, hybrid
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
