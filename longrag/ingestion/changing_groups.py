"""The groups of a corpus that changes: links follow the changes, and grouping is redone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from longrag.ingestion.builder import UnitBuilder
from longrag.ingestion.changing_links import ChangingLinks
from longrag.ingestion.cuts import ChunkedDocument
from longrag.ingestion.grouping import group_documents


class ChangingGroups:
    """The groups of documents that come, change and go (LongRAG, Algorithm 1).

    They are at every moment those of one build from the present documents. Links are resolved
    again only where a change can alter them. Grouping itself depends on the degrees of all
    documents and is redone, which takes milliseconds once its kernels are compiled.

    Args:
        builder: the settings.
    """

    def __init__(self, builder: UnitBuilder) -> None:
        self._links = ChangingLinks(builder.link_rules)
        self._builder = builder
        self._sizes: dict[str, int] = {}

    def change(self, remove: Iterable[str], add: Mapping[str, ChunkedDocument]) -> None:
        """Take documents out, and put others in; an id in both is replaced."""
        remove = list(remove)
        self._links.change(remove, {id_: cut.links for id_, cut in add.items()})
        for id_ in remove:
            del self._sizes[id_]
        self._sizes |= {id_: cut.tokens for id_, cut in add.items()}

    def groups(self) -> list[list[str]]:
        """Return the ids of each group's documents, sorted, and the groups by their first."""
        ids = sorted(self._sizes)
        if not ids:
            return []
        builder = self._builder
        groups = group_documents(
            np.fromiter((self._sizes[id_] for id_ in ids), np.int64, len(ids)),
            self._links.pairs_of(ids),
            max_size=builder.max_tokens,
            **({} if builder.directed is None else {"directed": builder.directed}),
        )
        return [[ids[number] for number in group] for group in sorted(map(sorted, groups))]
