"""From a question to units: ranking, exclusion, budgets. No text is written here."""

from longrag.retrieval.assembly import fit_budget, unit_of_chunks
from longrag.retrieval.maxp import MaxPIndex
from longrag.retrieval.units import (
    Hit,
    UnitIndex,
    embed_units,
    retrieve,
    retrieve_from_store,
)

__all__ = [
    "Hit",
    "MaxPIndex",
    "UnitIndex",
    "embed_units",
    "fit_budget",
    "retrieve",
    "retrieve_from_store",
    "unit_of_chunks",
]
