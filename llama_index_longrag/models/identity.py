"""Names of models, made of what changes their answers; a journal keeps the answers by them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms.llm import LLM
from llama_index.core.prompts import BasePromptTemplate

from llama_index_longrag.bridge.settings import identify
from llama_index_longrag.models.embeddings import LocalEmbedding

_ANSWER_SETTINGS = (
    "model",
    "model_name",
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "max_new_tokens",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "reasoning_effort",
    "system_prompt",
)
_VECTOR_SETTINGS = (
    "model_name",
    "dimensions",
    "text_instruction",
    "query_instruction",
    "normalize",
    "max_length",
    "pooling",
)


def llm_identity(llm: LLM, template: BasePromptTemplate | None = None) -> str:
    """Name a language model by what changes its answers, for a journal.

    A ``template`` is part of it as the model selects it.
    """
    wrapper = llm.query_wrapper_prompt
    return _identity(
        llm,
        _ANSWER_SETTINGS,
        name=llm.metadata.model_name,
        wrapper=None if wrapper is None else wrapper.get_template(),
        template=None if template is None else template.get_template(llm=llm),
    )


def embed_identity(model: BaseEmbedding) -> str:
    """Name an embedding model by what changes its vectors, for a journal."""
    own = identify(model.embedder) if isinstance(model, LocalEmbedding) else None
    return _identity(model, _VECTOR_SETTINGS, embedder=own)


def _identity(model: Any, names: Sequence[str], **known: str | None) -> str:
    # Only these: other settings may be secret, or differ from process to process.
    given = {name: getattr(model, name, None) for name in names}
    plain = {k: v for k, v in given.items() if isinstance(v, str | int | float | bool)}
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    return json.dumps([kind, {**plain, **known}], sort_keys=True)
