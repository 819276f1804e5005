"""From a question to units: ranking, exclusion, budgets. No text is written here."""

from longrag.retrieval.maxp import MaxPIndex

__all__ = ["MaxPIndex"]
