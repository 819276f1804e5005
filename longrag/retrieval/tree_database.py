"""A tree over documents that lives in a database."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from longrag.errors import IndexFormatError, InvalidParameterError
from longrag.indexing.database import IndexDatabase, Items, ItemsChange
from longrag.indexing.tree.settings import TreeBuilder
from longrag.indexing.tree.tree import Tree
from longrag.locks import Lock
from longrag.retrieval.corpus_stored import decode_document, encode_document
from longrag.retrieval.tree_index import TreeIndex, TreeState, node_of, settings_of
from longrag.types import Document, TreeNode, stable_id

KIND: Final = "tree"

_DOCUMENTS, _NODES, _VECTORS, _ORDER = "document", "node", "vector", "order"
_PARTS = (_DOCUMENTS, _NODES, _VECTORS, _ORDER)
_THE_ORDER = "order"


class DatabaseTree(TreeIndex):
    """A ``TreeIndex`` whose documents, nodes and vectors are in a database all its users share.

    A change is one transaction of what differs, and is made again from what is there when another
    process was first; what was paid for it is not paid again. Each question and each change first
    catches up with what others have changed.

    Args:
        database: the index in the database.
        builder: the settings of the tree; all who use the index must have the same.
        encode: writes a document as bytes.
        decode: reads what ``encode`` wrote.
        settings: further settings of the index, which all who use it must have.

    Raises:
        InvalidParameterError: a setting is not the one the index was made with.
        IndexFormatError: what is saved cannot be read.
        DatabaseError: the database cannot be reached.
    """

    in_database = True

    def __init__(
        self,
        database: IndexDatabase,
        builder: TreeBuilder | None = None,
        *,
        encode: Callable[[Document], bytes] = encode_document,
        decode: Callable[[bytes], Document] = decode_document,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(builder)
        self.database = database
        self._encode, self._decode = encode, decode
        own = {**settings_of(self.builder), **settings}
        known = database.settings(own)
        for name, value in own.items():
            if known.get(name) != value:
                allowed = f"{known.get(name)!r}, as the index was made with"
                raise InvalidParameterError(name, value, allowed)
        self._catching_up = Lock()
        self._restore_all()

    def _restore_all(self) -> None:
        """Read the index, and refuse one whose documents are cut into other leaves."""
        state = self._current()
        if state.documents:
            self.restore(list(state.documents.values()), state.tree)
            self._state = replace(self._state, generation=state.generation)

    def _current(self) -> TreeState:
        state = self._state
        if self.database.generation() == state.generation:
            return state
        with self._catching_up:
            before = self._state
            items = self.database.read(_PARTS, since=before.generation, listed=[_DOCUMENTS])
            if items.generation != before.generation:
                after = self._caught_up(before, items)
                with self._lock:
                    if self._state.generation < after.generation:
                        self._state = after
            return self._state

    def _caught_up(self, before: TreeState, items: Items) -> TreeState:
        documents = {
            id_: document
            for id_, document in before.documents.items()
            if stable_id(id_) in items.keys[_DOCUMENTS] - items.new[_DOCUMENTS].keys()
        }
        try:
            new = [self._decode(content) for content in items.new[_DOCUMENTS].values()]
            documents |= {document.id: document for document in new}
            order = json.loads(items.new[_ORDER][_THE_ORDER])
            nodes = [self._node(id_, before.tree, items) for id_ in order]
            vectors = [_vector(id_, before.tree, items) for id_ in order]
            tree = Tree(nodes, np.stack(vectors) if vectors else np.empty((0, 1), np.float32))
        except (ValueError, TypeError, KeyError) as error:
            what = f"the index {self.database.name!r} is damaged"
            raise IndexFormatError(f"{what}: {error}") from error
        ordered = {id_: documents[id_] for id_ in sorted(documents)}
        return TreeState(MappingProxyType(ordered), tree, items.generation)

    @staticmethod
    def _node(id_: str, known: Tree, items: Items) -> TreeNode:
        content = items.new[_NODES].get(stable_id(id_))
        return known.nodes[id_] if content is None else node_of(json.loads(content))

    def _put(self, before: TreeState, after: TreeState) -> bool:
        change = self._difference(before, after)
        if not any((*change.put.values(), *change.drop.values())):
            return True
        generation = self.database.write(change, after=before.generation)
        if generation is None:
            return False
        with self._lock:
            if self._state.generation < generation:
                self._state = replace(after, generation=generation)
        return True

    def _difference(self, before: TreeState, after: TreeState) -> ItemsChange:
        old, new = before.tree, after.tree
        put: dict[str, dict[str, bytes]] = {_NODES: {}, _VECTORS: {}}
        for row, (id_, node) in enumerate(new.nodes.items()):
            if old.nodes.get(id_) != node:
                content = json.dumps(asdict(node), ensure_ascii=False)
                put[_NODES][stable_id(id_)] = content.encode("utf-8", "surrogatepass")
            vector = new.vectors[row]
            if id_ not in old.nodes or not np.array_equal(old.vectors[old.row[id_]], vector):
                put[_VECTORS][stable_id(id_)] = np.asarray(vector, "<f4").tobytes()
        put[_DOCUMENTS] = {
            stable_id(id_): self._encode(document)
            for id_, document in after.documents.items()
            if before.documents.get(id_) is not document
        }
        gone = [stable_id(id_) for id_ in old.nodes if id_ not in new.nodes]
        drop = {
            _DOCUMENTS: [stable_id(id_) for id_ in before.documents if id_ not in after.documents],
            _NODES: gone,
            _VECTORS: gone,
        }
        if any((*put.values(), *drop.values())) or list(old.nodes) != list(new.nodes):
            put[_ORDER] = {_THE_ORDER: json.dumps(list(new.nodes)).encode("ascii")}
        return ItemsChange(put=put, drop=drop)


def _vector(id_: str, known: Tree, items: Items) -> Any:
    content = items.new[_VECTORS].get(stable_id(id_))
    if content is None:
        return known.vectors[known.row[id_]]
    return np.frombuffer(content, "<f4").astype(np.float32)
