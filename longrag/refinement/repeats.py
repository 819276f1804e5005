"""What repeats the texts before it is put off, so that a budget is spent on what is new."""

from __future__ import annotations

from collections.abc import Sequence

from longrag.errors import InvalidParameterError
from longrag.models.words import content_terms


def put_off_repeats(texts: Sequence[str], redundancy: float = 0.4) -> list[int]:
    """Order a best-first list so that texts which repeat others come last.

    A text is put off when more than ``redundancy`` of its distinct content words, by stem, are in
    the texts taken before it. Those taken come first and those put off after them, each in the
    order given; a text without content words is put off only where its very text was taken.
    Takes time linear in the words.

    Args:
        texts: The texts, best first.
        redundancy: The largest share of words, from 0 to 1, that may have been read. 1 puts
            nothing off but texts without a content word that are there twice.

    Returns:
        The places of all texts in their new order.

    Raises:
        InvalidParameterError: ``redundancy`` is not a number from 0 to 1.

    Source: the control of a collapsed tree (``longrag.retrieval.collapsed`` with ``compare="all"``)
    for texts that are found without a tree.
    """
    check_redundancy(redundancy)
    read: set[str] = set()
    seen: set[str] = set()
    taken: list[int] = []
    repeating: list[int] = []
    for place, text in enumerate(texts):
        words = set(content_terms(text))
        repeats = len(words & read) > redundancy * len(words) if words else text in seen
        if repeats:
            repeating.append(place)
            continue
        taken.append(place)
        read |= words
        seen.add(text)
    return taken + repeating


def check_redundancy(value: object) -> None:
    """Refuse a share of repeated words that is not a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InvalidParameterError("redundancy", value, "a number from 0 to 1")
