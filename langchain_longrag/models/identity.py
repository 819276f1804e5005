"""Names of models, made of what changes their answers; a journal keeps the answers by them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseLanguageModel, LanguageModelLike
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import (
    RunnableConfig,
    RunnableLambda,
    RunnableSequence,
    RunnableWithFallbacks,
    ensure_config,
)
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import merge_configs
from langchain_core.runnables.configurable import DynamicRunnable

from langchain_longrag.bridge.models import parts
from langchain_longrag.models.embeddings import LocalEmbeddings

# What changes the answers of a model; anything else, such as a timeout, may change between runs.
_SETTINGS: Final = (
    *("model", "model_name", "model_id", "model_path", "repo_id", "deployment", "deployment_name"),
    *("azure_deployment", "temperature", "top_p", "top_k", "min_p", "seed", "stop"),
    *("stop_sequences", "max_tokens", "max_completion_tokens", "max_new_tokens"),
    *("max_output_tokens", "num_ctx", "num_predict", "frequency_penalty", "presence_penalty"),
    *("repetition_penalty", "repeat_penalty", "reasoning", "reasoning_effort", "thinking"),
    *("model_kwargs", "encode_kwargs", "query_encode_kwargs", "dimensions", "dimension", "size"),
    *("width", "normalize", "embed_instruction", "query_instruction", "task_type", "input_type"),
)
_TRACED: Final = ("ls_provider", "ls_model_name", "ls_temperature", "ls_max_tokens", "ls_stop")
_SECRET: Final = re.compile(
    r"key|token$|secret|passw|credential|auth|header|cookie|url|endpoint|proxy|proxies|host|uri",
    re.IGNORECASE,
)
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+", re.IGNORECASE)


def llm_identity(llm: LanguageModelLike | None, config: RunnableConfig | None = None) -> str:
    """Name a language model and what changes its answers, the same in every process.

    Retries, callbacks, rate limits and time limits change nothing. Neither secrets nor addresses,
    of servers or in memory, are part of it: models that differ in nothing else are the same.

    Args:
        llm: a model, or runnables around some; None is no model.
        config: may configure the model, as ``configurable_fields`` and ``alternatives`` do.
    """
    return _to_json(_describe(llm, ensure_config(config)))


def embedder_identity(embedding: Embeddings) -> str:
    """Name an embedding model and what changes its vectors, the same in every process."""
    if isinstance(embedding, LocalEmbeddings):
        return _to_json({"class": _qualify_name(type(embedding)), "embedder": embedding.identity})
    return _to_json(_read_attributes(embedding))


def _to_json(described: object) -> str:
    return json.dumps(described, sort_keys=True, ensure_ascii=False)


def _describe(model: object, config: RunnableConfig) -> Any:
    if isinstance(model, DynamicRunnable):
        model, config = model.prepare(config)
    match model:
        case RunnableBindingBase():
            bound = _describe(model.bound, merge_configs(model.config, config))
            kwargs = _keep_plain(model.kwargs)
            return {"bound": bound, "kwargs": kwargs} if kwargs else bound
        case RunnableWithFallbacks() | RunnableSequence():
            return [_describe(one, config) for one in parts(model)]
        case BaseLanguageModel():
            traced = model._get_ls_params() if hasattr(model, "_get_ls_params") else {}
            return {
                **_read_attributes(model),
                "type": getattr(model, "_llm_type", ""),
                "parameters": _keep_plain(model._identifying_params),
                "traced": _keep_plain({k: v for k, v in traced.items() if k in _TRACED}),
            }
        case BasePromptTemplate() if hasattr(model, "pretty_repr"):
            return {"class": _qualify_name(type(model)), "prompt": model.pretty_repr()}
        case RunnableLambda():
            function = model.func if hasattr(model, "func") else model.afunc
            return {"class": _qualify_name(type(model)), "function": _qualify_name(function)}
        case _:
            return None if model is None else _read_attributes(model)


def _read_attributes(model: object) -> dict[str, Any]:
    known = {name: getattr(model, name, None) for name in _SETTINGS}
    set_ = {name: value for name, value in known.items() if value is not None}
    return {"class": _qualify_name(type(model)), **_keep_plain(set_)}


def _qualify_name(named: object) -> str:
    kind = named if hasattr(named, "__qualname__") else type(named)
    return f"{kind.__module__}.{kind.__qualname__}"


def _keep_plain(value: Any) -> Any:
    """Keep what is plain data and no secret."""
    match value:
        case Mapping():
            kept = {str(k): _keep_plain(v) for k, v in value.items() if not _SECRET.search(str(k))}
            return {key: one for key, one in kept.items() if one is not None}
        case list() | tuple():
            return [_keep_plain(one) for one in value]
        case str() if _ADDRESS.search(value):
            return None
        case bool() | int() | float() | str() | None:
            return value
        case _:
            return None
