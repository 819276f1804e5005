"""What is done to a ranked list before it is read: order, length. No retrieval here."""

from typing import TYPE_CHECKING

from longrag import lazily

if TYPE_CHECKING:
    from longrag.refinement.compression import Summary, compress_abstractive, compress_extractive
    from longrag.refinement.pieces import Compressed, Piece
    from longrag.refinement.repacking import RepackOrder, repack
    from longrag.refinement.reranking import OnError, Reranked, rerank, scored_by
    from longrag.refinement.self_information import selective_context
else:
    __getattr__, __dir__ = lazily(
        globals(),
        {
            "compression": "Summary compress_abstractive compress_extractive",
            "pieces": "Compressed Piece",
            "repacking": "RepackOrder repack",
            "reranking": "OnError Reranked rerank scored_by",
            "self_information": "selective_context",
        },
    )

__all__ = [
    "Compressed",
    "OnError",
    "Piece",
    "RepackOrder",
    "Reranked",
    "Summary",
    "compress_abstractive",
    "compress_extractive",
    "repack",
    "rerank",
    "scored_by",
    "selective_context",
]
