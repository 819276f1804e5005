"""What of retrieved texts may be quoted: the stretches of which it is known where they stand."""

from __future__ import annotations

from collections.abc import Iterable

from longrag.quoting.passages import QuotablePassage
from longrag.recipes.passages import Passage


def quotable(passages: Iterable[Passage]) -> list[QuotablePassage]:
    """Return the stretches of retrieved texts that are a document's own words, in order.

    ``passage_id`` of each is that of its text. A text of which the document is not known is its own
    document, and one that stands in none, such as a summary, is not ``verbatim``.
    """
    found: list[QuotablePassage] = []
    for one in passages:
        if not one.members:
            found.append(
                QuotablePassage(
                    one.id, one.text, title=one.title, passage_id=one.id, verbatim=False
                )
            )
        for member in one.members:
            text = one.text[member.start : member.end]
            if not text.strip():
                continue
            title = member.title or one.title
            place = (member.doc_id, text, member.doc_start)
            own = place if member.placed else (one.id, text, member.start)
            found.append(QuotablePassage(*own, title=title, passage_id=one.id))
    return found
