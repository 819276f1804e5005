"""The order in which what was found is put before the reader (best practices, §3.6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, TypeVar, get_args

from longrag.errors import InvalidParameterError

T = TypeVar("T")

RepackOrder: TypeAlias = Literal["forward", "reverse", "sides"]
"""Best first, best last, or the best at both ends."""


def repack(items: Sequence[T], order: RepackOrder = "reverse") -> list[T]:
    """Put a best-first list in the order in which it is to be read (best practices, §3.6).

    "forward" leaves it as it is. "reverse" puts the best last, next to the question that follows
    the context; the paper's recipes use it. "sides" puts the best first, the second best last, the
    third second, and so on to the middle: five items are read as 1, 3, 5, 4, 2 and four as
    1, 3, 4, 2. Scores are not looked at, so that equal ones keep the order in which they came.

    Raises:
        InvalidParameterError: Another order.
    """
    if order not in get_args(RepackOrder):
        raise InvalidParameterError("order", order, '"forward", "reverse" or "sides"')
    best_first = list(items)
    if order == "forward":
        return best_first
    if order == "reverse":
        return best_first[::-1]
    return best_first[::2] + best_first[1::2][::-1]
