"""Whether a saved tree is one that could have been built from its documents."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from longrag.errors import IndexFormatError
from longrag.indexing.tree.assembly import summary_id
from longrag.indexing.tree.tree import Tree
from longrag.types import LARGEST_VALUE, TreeNode


def check_saved(tree: Tree, leaves: Iterable[TreeNode]) -> None:
    """Raise unless a tree could have been built from these leaves.

    A checksum proves that a file was not changed, not that its writer can be trusted. So texts must
    be those of their spans, ids must follow from what they name, and vectors must be finite.

    Raises:
        IndexFormatError: something does not fit; the message names it.
    """
    for node in tree.nodes.values():
        _check_types(node)
    expected = {leaf.id: leaf for leaf in leaves}
    found = {id_: node for id_, node in tree.nodes.items() if not node.level}
    if {(n.id, n.span) for n in found.values()} != {(n.id, n.span) for n in expected.values()}:
        raise IndexFormatError(
            "the documents are cut into other leaves than were saved: the index was built with"
            " another chunk size, tokenizer, splitter or metadata; use the same"
        )
    for id_, leaf in found.items():
        if leaf != expected[id_]:
            raise _unlike(leaf, "is not what its document holds there, or counts other tokens")
    for node in tree.nodes.values():
        if node.level:
            _check_summary(node, tree)
    _check_vectors(tree)


def _check_types(node: TreeNode) -> None:
    texts = (node.id, node.text, node.title, *node.doc_ids, *node.children)
    numbers = (node.level, node.tokens, *(node.span or ()))
    if not all(type(text) is str for text in texts):
        raise _unlike(node, "has an id, a text or a title that is not a string")
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise _unlike(node, "has a level, a size or a span that is not an integer of at least 0")


def _check_summary(node: TreeNode, tree: Tree) -> None:
    children = [tree.nodes[child] for child in node.children]
    doc_ids = tuple(sorted({doc_id for child in children for doc_id in child.doc_ids}))
    if node.span is not None or node.title or not node.text.strip():
        raise _unlike(node, "is a summary with a span, a title or no text")
    if not children or node.id != summary_id(node.level, node.children):
        raise _unlike(node, "does not have the id that follows from its children")
    if node.doc_ids != doc_ids or node.level <= max(child.level for child in children):
        raise _unlike(node, "has other documents or a lower level than its children")


def _check_vectors(tree: Tree) -> None:
    vectors = tree.vectors
    if vectors.ndim != 2 or vectors.dtype != np.float32 or 0 in vectors.shape[1:]:
        raise IndexFormatError(
            f"the vectors of the tree must be float32 of shape (nodes, width), got"
            f" {vectors.dtype} of shape {vectors.shape}"
        )
    # Written so that NaN fails too: every comparison with it is false.
    usable = (np.abs(vectors) <= LARGEST_VALUE).all(axis=1)
    if not usable.all():
        id_ = list(tree.nodes)[int(np.flatnonzero(~usable)[0])]
        raise IndexFormatError(f"the vector of node {id_!r} of the tree is not finite")


def _unlike(node: TreeNode, what: str) -> IndexFormatError:
    return IndexFormatError(f"node {node.id!r} of the saved tree {what}: build the index again")
