"""The keys of a corpus by the name of their kind (RICHES, Table 3)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Literal, TypeAlias, get_args

from longrag.calls import Flow
from longrag.errors import InvalidParameterError
from longrag.ingestion.key_extraction import paragraph_keys, sentence_keys, title_keys
from longrag.ingestion.propositions import proposition_keys
from longrag.types import Document, Key

KeyKind: TypeAlias = Literal["title", "paragraph", "sentence", "proposition"]


def make_keys(
    documents: Sequence[Document],
    kind: KeyKind,
    *,
    with_title: bool = False,
    executor: Executor | None = None,
) -> Flow[list[Key]]:
    """Make the keys of documents; of these flows only that for propositions asks a model.

    Args:
        documents: the corpus.
        kind: what one key is; see ``title_keys`` and its neighbours.
        with_title: put the title and headings before a paragraph or a sentence.
        executor: makes keys, some documents at a time; None does it in the calling thread.
            Propositions are written by a model, and their calls are concurrent in any case.

    Raises:
        InvalidParameterError: an unknown kind, or one that has no title put before it.
        InvalidDocumentError: a document cannot be ingested.
    """
    if kind not in get_args(KeyKind):
        allowed = ", ".join(f'"{name}"' for name in get_args(KeyKind))
        raise InvalidParameterError("kind", kind, f"one of {allowed}")
    if with_title and kind not in ("paragraph", "sentence"):
        raise InvalidParameterError.because(
            f'with_title goes with kind "paragraph" or "sentence", not {kind!r}.'
        )
    if kind == "proposition":
        made = yield from proposition_keys(documents)
        return list(made.keys)
    if kind == "title":
        return title_keys(documents, executor=executor)
    if kind == "paragraph":
        return paragraph_keys(documents, with_title=with_title, executor=executor)
    return sentence_keys(documents, with_title=with_title, executor=executor)
