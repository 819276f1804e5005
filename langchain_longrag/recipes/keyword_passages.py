"""What keywords search beside a retriever, as the passages of a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from langchain_core.documents import Document

from langchain_longrag.bridge.passages import to_passage
from longrag.indices.keyword_sources import Keywords
from longrag.recipes.passages import Passage


class KeywordPassages(Mapping[str, Passage]):
    """What keywords find, by id, as the recipes take it; made when it is asked for."""

    def __init__(self, keywords: Keywords[Document]) -> None:
        self._keywords = keywords
        self._ids = frozenset(keywords.index.ids)

    def __getitem__(self, id_: str) -> Passage:
        if id_ not in self._ids:
            raise KeyError(id_)
        document = self._keywords.make_result(id_, None, None)
        # Which chunk of a unit is the best is not known.
        document.metadata.pop("best_chunk", None)
        return to_passage(document, id_)

    def __contains__(self, id_: object) -> bool:
        return id_ in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._keywords.index.ids)

    def __len__(self) -> int:
        return len(self._keywords.index.ids)
