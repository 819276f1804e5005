"""The settings of a tree: given, saved, and as the core's builder has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llama_index_longrag.bridge.documents import shown_text
from llama_index_longrag.bridge.settings import UNSET, identify
from llama_index_longrag.bridge.stores import token_counter
from llama_index_longrag.indices.raptor_struct import RaptorStruct
from llama_index_longrag.indices.struct import filled_settings
from llama_index_longrag.indices.summarizing import SUMMARY_TEMPLATE, TemplateSummarizer
from longrag.errors import InvalidParameterError
from longrag.indexing.tree.settings import TreeBuilder
from longrag.indexing.tree.summaries import LlmSummarizer, Summarizer
from longrag.indexing.tree.summarizers import choose_summarizer
from longrag.types import TreeNode

_DEFAULTS: Final[Mapping[str, Any]] = {
    "clusterer": "stable",
    "random_state": 0,
    "summarizer": "llm",
    "summary_tokens": 100,
    "on_long": "cut",
    "scope": "corpus",
    "chunk_size": 100,
    "max_cluster_tokens": 3500,
    "max_levels": None,
    "title_key": "title",
}
_OBJECTS: Final = ("clusterer", "summarizer")
_MAY_BE_NONE: Final = ("chunk_size", "max_levels")

GIVEN: Final = (*_DEFAULTS, "summary_template", "tokenizer")
"""What decides about a tree."""


def _write_leaf(leaf: TreeNode, metadata: Mapping[str, object]) -> str:
    return shown_text(leaf.text, metadata)


class TreeSettings:
    """What decides about a tree: ``values`` as they are saved, and a ``builder`` that heeds them.

    ``asks_llm`` tells whether summaries are known to be a language model's, asked by ``template``
    and within ``bounds``; a summarizer of another make may ask one too.
    """

    def __init__(self, given: Mapping[str, Any], struct: RaptorStruct | None) -> None:
        named = {k: v for k, v in given.items() if k in _DEFAULTS and v is not UNSET}
        named = {k: v for k, v in named.items() if v is not None or k in _MAY_BE_NONE}
        written = {
            name: identify(value) if name in _OBJECTS else value for name, value in named.items()
        }
        self.values = filled_settings(written, _DEFAULTS, struct)
        objects = {name: named.get(name, self.values[name]) for name in _OBJECTS}
        for name, value in objects.items():
            if isinstance(value, str) and "." in value:
                raise InvalidParameterError(
                    name, None, f"given: the index was built with {value}", "It is not saved."
                )
        counter = token_counter(given.get("tokenizer"))
        summarizer = self._summarizer(objects["summarizer"], counter, given.get("summary_template"))
        self.bounds = (
            summarizer.bounds()
            if isinstance(summarizer, TemplateSummarizer | LlmSummarizer)
            else None
        )
        self.asks_llm = self.bounds is not None
        self.template = (
            summarizer.template if isinstance(summarizer, TemplateSummarizer) else SUMMARY_TEMPLATE
        )
        names = ("random_state", "scope", "chunk_size", "max_cluster_tokens", "max_levels")
        self.builder = TreeBuilder(
            clusterer=objects["clusterer"],
            summarizer=summarizer,
            count_tokens=counter,
            embedding_text=_write_leaf,
            **{name: self.values[name] for name in names},
        )

    def _summarizer(self, summarizer: Any, counter: Any, template: Any) -> Summarizer:
        tokens = self.values["summary_tokens"]
        if summarizer == "llm":
            return TemplateSummarizer(
                template,
                summary_tokens=tokens,
                on_long=self.values["on_long"],
                count_tokens=counter,
            )
        if template is not None:
            raise InvalidParameterError(
                "summary_template", template, "left out unless a language model summarises"
            )
        return choose_summarizer(
            summarizer, summary_tokens=tokens, count_tokens=counter, otherwise='"llm"'
        )
