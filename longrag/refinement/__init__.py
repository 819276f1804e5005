"""What is done to a ranked list before it is read: order, length. No retrieval here."""

from longrag.refinement.repacking import RepackOrder, repack

__all__ = ["RepackOrder", "repack"]
