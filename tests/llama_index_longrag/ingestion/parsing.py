"""A parser of small units, and its nodes in a comparable form."""

from __future__ import annotations

from llama_index_longrag import LongUnitNodeParser
from tests.fakes.llama_index import tokenizer
from tests.llama_index_longrag.conftest import units_of


def parser(**given_settings) -> LongUnitNodeParser:
    return LongUnitNodeParser(
        **{"max_tokens": 300, "chunk_size": 40, "tokenizer": tokenizer, **given_settings}
    )


def groups(nodes) -> set[tuple[str, ...]]:
    return {tuple(unit.metadata["doc_ids"]) for unit in units_of(nodes)}


def number(i, document):
    return f"node-{i}"


def word_count(text):
    return text.split()


def as_dicts(nodes):
    return [node.to_dict() for node in nodes]


def two_words(document):
    return ["c"] if "jump" in document.text else []
