"""Builds a decoder over documents: extracts their keys and indexes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

from longrag.calls import Flow
from longrag.decoding.decoder import RichesDecoder
from longrag.executors import check_executor
from longrag.indexing import KeyIndex
from longrag.indexing.key_index.parts import Mode
from longrag.ingestion import make_keys
from longrag.ingestion.key_kinds import KeyKind
from longrag.models.hosted import check_language_model
from longrag.models.language_model import LanguageModel
from longrag.models.tokenizer import MARKERS
from longrag.types import Document, Key


def build_decoder(
    documents: Sequence[Document],
    *,
    language_model: LanguageModel,
    keys: KeyKind,
    with_title: bool,
    mode: Mode,
    settings: Mapping[str, Any],
    one_passage: Collection[str] = (),
    executor: Executor | None = None,
) -> Flow[RichesDecoder]:
    """Return the flow that extracts the keys of documents and makes a decoder over them.

    Only the flow for propositions calls a model. The settings are checked at once, before any call
    is paid for.

    Args:
        documents: the corpus.
        language_model: decodes.
        keys: what one key is; see ``make_keys``.
        with_title: put the title and headings before a paragraph or a sentence.
        mode: of the index; see ``KeyIndex.from_keys``.
        settings: keyword arguments of ``RichesDecoder``.
        one_passage: the ids of documents that are not divided into paragraphs: the whole document
            is the passage of its keys.
        executor: where keys are made and tokenised; see ``make_keys`` and ``KeyIndex.from_keys``.

    Raises:
        InvalidParameterError: a setting, or a model that cannot be constrained.
        TokenizerError: a marker cannot be written; raised by the flow, a key has other tokens
            between the markers than alone.
        TypeError: a setting is unknown.
    """
    check_language_model(language_model)
    check_executor(executor)

    def over(made: Sequence[Key]) -> KeyIndex:
        markers = settings.get("markers", MARKERS)
        return KeyIndex.from_keys(
            made,
            tokenizer=language_model.tokenizer,
            mode=mode,
            markers=markers,
            executor=executor,
        )

    def flow() -> Flow[RichesDecoder]:
        made = yield from make_keys(documents, keys, with_title=with_title, executor=executor)
        whole = [
            replace(key, passage_id=key.doc_id) if key.doc_id in one_passage else key
            for key in made
        ]
        return RichesDecoder(language_model, over(whole), documents=documents, **settings)

    # An index without keys refuses min_spans.
    RichesDecoder(language_model, over(()), **{**settings, "min_spans": 0})
    return flow()
