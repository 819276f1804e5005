"""How LlamaIndex's models answer the core's requests."""

from __future__ import annotations

from functools import partial
from inspect import getattr_static
from typing import TYPE_CHECKING, Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.llms.llm import LLM
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.schema import QueryBundle
from llama_index.core.settings import Settings

from longrag.calls import Embed, Generate
from longrag.errors import InvalidParameterError
from longrag.integration.answering import Answerer, Calls, Handler, MethodCall

if TYPE_CHECKING:
    from longrag.journal import Journal

_VERBATIM = PromptTemplate("{text}")


def embed(model: BaseEmbedding | None, request: Embed) -> Calls[Any]:
    """Embed by the model's own batching, callbacks and rate limiter; None is the global model."""
    model = model or Settings.embed_model
    if request.role == "document":
        return (yield MethodCall(model, "get_text_embedding_batch", (list(request.texts),)))
    # A comprehension cannot yield.
    vectors = []
    for text in request.texts:
        vector = yield MethodCall(model, "get_query_embedding", (text,))
        vectors.append(vector)
    return vectors


def generate(llm: LLM | None, request: Generate) -> Calls[str]:
    """Ask a model for the text of a prompt; None is the global model."""
    return predict(llm or Settings.llm, _VERBATIM, text=request.prompt)


def predict(llm: LLM, template: BasePromptTemplate, **slots: str) -> Calls[str]:
    """Ask by the model's own prompt wrapping, callbacks, events, retries and rate limiter."""
    blocking = blocks_in_async(llm)
    reply: str = yield MethodCall(llm, "predict", (template,), slots, blocking=blocking)
    return reply


def model_answerer(
    *,
    llm: LLM | None = None,
    embed_model: BaseEmbedding | None = None,
    num_workers: int = 1,
    journal: Journal | None = None,
) -> Answerer:
    """Make an answerer of models; a model that is None is looked up in ``Settings`` when asked.

    Args:
        llm: answers ``Generate``.
        embed_model: answers ``Embed``.
        num_workers: the most calls in flight at a time.
        journal: keeps the answers.
    """
    handlers: dict[type, Handler] = {
        Embed: partial(embed, embed_model),
        Generate: partial(generate, llm),
    }
    return Answerer(handlers, max_in_flight=num_workers, journal=journal)


def blocks_in_async(llm: LLM) -> bool:
    """Whether a model's async call is the framework's default, which makes the sync call."""
    name = "achat" if llm.metadata.is_chat_model else "acomplete"
    # The framework wraps methods again at each access.
    return getattr_static(type(llm), name) is getattr_static(CustomLLM, name)


def query_text(query_bundle: QueryBundle | None) -> str:
    """Return the question of a bundle.

    Raises:
        InvalidParameterError: the bundle is None.
    """
    if query_bundle is None:
        raise InvalidParameterError(
            "query_bundle", None, "given", "What is done to the nodes depends on the question."
        )
    return query_bundle.query_str
