"""A record manager that agrees with its index."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from langchain_core.indexing import RecordManager

from langchain_longrag.indices.changing import ChangingIndex


class IndexRecordManager(RecordManager):
    """A record manager by which ``index()`` skips no document that the index does not have.

    ``langchain_core.indexing.index`` changes the index and the record manager one after the other,
    and skips what the record manager knows. When it is killed in between, or an index was not
    saved, the record manager knows documents that are not in the index. By this one a document is
    known only when it is in the index as well, so that the next run puts in what is missing.

    Example:
        ```python
        from langchain_core.indexing import InMemoryRecordManager, index
        from langchain_longrag import LongRAGIndex

        units = LongRAGIndex(embedding=embedding)
        records = IndexRecordManager(InMemoryRecordManager("town"), units)  # or SQLRecordManager
        records.create_schema()
        first = index(documents, records, units, cleanup="full", key_encoder="sha256")
        assert first["num_added"] == 3
        second = index(documents[:2], records, units, cleanup="full", key_encoder="sha256")
        assert (second["num_skipped"], second["num_deleted"]) == (2, 1)
        ```

    Args:
        manager: keeps the records, for instance a ``SQLRecordManager``.
        index: the index that is the destination.
    """

    def __init__(self, manager: RecordManager, index: ChangingIndex) -> None:
        super().__init__(manager.namespace)
        self._manager = manager
        self._index = index

    def create_schema(self) -> None:
        """Make what the record manager needs."""
        self._manager.create_schema()

    async def acreate_schema(self) -> None:
        """Make what the record manager needs."""
        await self._manager.acreate_schema()

    def get_time(self) -> float:
        """Return the time of the record manager."""
        return self._manager.get_time()

    async def aget_time(self) -> float:
        """Return the time of the record manager."""
        return await self._manager.aget_time()

    def update(
        self,
        keys: Sequence[str],
        *,
        group_ids: Sequence[str | None] | None = None,
        time_at_least: float | None = None,
    ) -> None:
        """Note that documents were put in."""
        self._manager.update(keys, group_ids=group_ids, time_at_least=time_at_least)

    async def aupdate(
        self,
        keys: Sequence[str],
        *,
        group_ids: Sequence[str | None] | None = None,
        time_at_least: float | None = None,
    ) -> None:
        """Note that documents were put in."""
        await self._manager.aupdate(keys, group_ids=group_ids, time_at_least=time_at_least)

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Tell which documents are both noted and in the index."""
        there = self._index.documents_by_id()
        noted = self._manager.exists(keys)
        return [known and key in there for key, known in zip(keys, noted, strict=True)]

    async def aexists(self, keys: Sequence[str]) -> list[bool]:
        """Tell which documents are both noted and in the index."""
        there = await asyncio.to_thread(self._index.documents_by_id)
        noted = await self._manager.aexists(keys)
        return [known and key in there for key, known in zip(keys, noted, strict=True)]

    def list_keys(
        self,
        *,
        before: float | None = None,
        after: float | None = None,
        group_ids: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> list[str]:
        """Return the noted documents, within some bounds."""
        return self._manager.list_keys(before=before, after=after, group_ids=group_ids, limit=limit)

    async def alist_keys(
        self,
        *,
        before: float | None = None,
        after: float | None = None,
        group_ids: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> list[str]:
        """Return the noted documents, within some bounds."""
        return await self._manager.alist_keys(
            before=before, after=after, group_ids=group_ids, limit=limit
        )

    def delete_keys(self, keys: Sequence[str]) -> None:
        """Forget documents."""
        self._manager.delete_keys(keys)

    async def adelete_keys(self, keys: Sequence[str]) -> None:
        """Forget documents."""
        await self._manager.adelete_keys(keys)
