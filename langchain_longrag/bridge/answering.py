"""How LangChain's models answer the core's requests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import Callbacks
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import LanguageModelLike
from langchain_core.runnables import RunnableConfig, ensure_config

from langchain_longrag.bridge.replies import reply_text
from langchain_longrag.bridge.traces import traced
from longrag.calls import CallLimit, Embed, Generate
from longrag.errors import InvalidParameterError
from longrag.integration.answering import Answerer, Calls, Handler, MethodCall
from longrag.models.rerankers.scorers import Scorer

if TYPE_CHECKING:
    from longrag.journal import Journal


def embed(model: Embeddings, request: Embed, config: RunnableConfig | None = None) -> Calls[Any]:
    """Embed by the model's methods for documents and queries, in a run below that of a config."""
    documents = request.role == "document"
    calls = _embed_documents if documents else _embed_queries
    return traced(
        config,
        f"{type(model).__name__}.{'embed_documents' if documents else 'embed_query'}",
        {"texts": list(request.texts)},
        calls(model, request.texts),
        run_type="embedding",
    )


def _embed_documents(model: Embeddings, texts: Sequence[str]) -> Calls[Any]:
    return (yield MethodCall(model, "embed_documents", (list(texts),)))


def _embed_queries(model: Embeddings, texts: Sequence[str]) -> Calls[Any]:
    # A comprehension cannot yield.
    vectors = []
    for text in texts:
        vector = yield MethodCall(model, "embed_query", (text,))
        vectors.append(vector)
    return vectors


def generate(llm: LanguageModelLike, config: RunnableConfig, request: Generate) -> Calls[Any]:
    """Ask a model by ``invoke``, so that callbacks, retries and rate limiters see the call."""
    return reply_text((yield MethodCall(llm, "invoke", (request.prompt, config))))


def model_handlers(
    *,
    llm: LanguageModelLike | None = None,
    embedding: Embeddings | None = None,
    config: RunnableConfig | None = None,
) -> dict[type, Handler]:
    """Return the handlers of the models that are given.

    Args:
        llm: answers ``Generate``.
        embedding: answers ``Embed``.
        config: passed to every call of ``llm``; embeddings are runs below its run.
    """
    handlers: dict[type, Handler] = {}
    if llm is not None:
        handlers[Generate] = partial(generate, llm, call_config(config))
    if embedding is not None:
        handlers[Embed] = partial(embed, embedding, config=config)
    return handlers


def model_answerer(
    *,
    llm: LanguageModelLike | None = None,
    embedding: Embeddings | None = None,
    config: RunnableConfig | None = None,
    max_concurrency: int = 1,
    limit: CallLimit | None = None,
    journal: Journal | None = None,
) -> Answerer:
    """Make an answerer of models; see ``model_handlers`` and ``Answerer``."""
    return Answerer(
        model_handlers(llm=llm, embedding=embedding, config=config),
        max_in_flight=max_concurrency,
        limit=limit,
        journal=journal,
    )


def call_config(config: RunnableConfig | None) -> RunnableConfig:
    """Return the config to pass to several calls, with what a chain around them was given."""
    own = ensure_config(config)
    # One run id or name cannot stand for several calls.
    own.pop("run_id", None)
    own.pop("run_name", None)
    return own


def with_callbacks(callbacks: Callbacks) -> RunnableConfig | None:
    """Return a config with ``callbacks``, or None if these are None."""
    return None if callbacks is None else RunnableConfig(callbacks=callbacks)


def as_scorer(scorer: Scorer | BaseCrossEncoder) -> Scorer:
    """Return a scorer as the core calls it.

    Raises:
        InvalidParameterError: it is neither a callable nor a cross encoder of LangChain's.
    """
    if isinstance(scorer, BaseCrossEncoder):
        return _PairScorer(scorer)
    if not callable(scorer):
        raise InvalidParameterError(
            "scorer", scorer, "a callable from query and texts to scores, or a BaseCrossEncoder"
        )
    return scorer


class _PairScorer:
    """A cross encoder of LangChain's, which takes pairs."""

    def __init__(self, encoder: BaseCrossEncoder) -> None:
        self._encoder = encoder

    def __call__(self, query: str, texts: Sequence[str], /) -> Any:
        return self._encoder.score([(query, text) for text in texts])
