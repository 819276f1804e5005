"""What is known of FAISS indexes: which rank exhaustively, and how others can be made to."""

from __future__ import annotations

from typing import Any


def is_flat(index: Any) -> bool:
    """Whether an index compares a query with every vector."""
    if hasattr(index, "id_map"):
        import faiss

        index = faiss.downcast_index(index.index)
    return type(index).__name__ in {"IndexFlatIP", "IndexFlatL2", "IndexFlat"}


def exhaustive_index(index: Any) -> Any:
    """Return an index that ranks all vectors of another exactly, under the same numbers.

    Raises:
        NotImplementedError: the index does not keep its vectors as they were given.
    """
    import faiss

    if isinstance(index, faiss.IndexHNSWFlat):
        return faiss.downcast_index(index.storage)
    if isinstance(index, faiss.IndexIVFFlat):
        return _AllLists(index)
    raise NotImplementedError


class _AllLists:
    """An inverted file of which every list is searched."""

    def __init__(self, index: Any) -> None:
        self._index = index
        self.ntotal = index.ntotal

    def search(self, vectors: Any, k: int) -> Any:
        import faiss

        parameters: Any = faiss.SearchParametersIVF  # its stubs know no arguments
        every = parameters(nprobe=self._index.nlist)
        return self._index.search(vectors, k, params=every)
