"""What LangChain's models and a scorer answer to the core's requests, for all small components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.callbacks import Callbacks
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import LanguageModelLike
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnableConfig, ensure_config
from pydantic import BaseModel

from langchain_longrag.bridge.documents import embed
from langchain_longrag.bridge.models import reply_text
from longrag.calls import (
    CallLimit,
    Embed,
    Flow,
    Generate,
    Method,
    Request,
    Score,
    Steps,
    aperform,
    arun,
    perform,
    run,
)
from longrag.errors import InvalidParameterError
from longrag.journal import Journal
from longrag.models.rerankers.scorers import Scorer

T = TypeVar("T")


class Models:
    """Answers requests by what it is given.

    Models are called by their public methods, so that callbacks, retries and rate limiters see each
    call. What has no async call of its own is called in a thread.

    Args:
        llm: answers ``Generate``.
        embedding: answers ``Embed``.
        scorer: answers ``Score``.
        config: goes along with every call of ``llm``.
        max_concurrency: the most calls in flight at a time.
        limit: what may be asked of ``llm``.
        journal: keeps the answers of ``llm``.
    """

    def __init__(
        self,
        *,
        llm: LanguageModelLike | None = None,
        embedding: Embeddings | None = None,
        scorer: Scorer | None = None,
        config: RunnableConfig | None = None,
        max_concurrency: int = 1,
        limit: CallLimit | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.config = call_config(config)
        self._llm = llm
        self._embedding = embedding
        self._scorer = scorer
        self._max_concurrency = max_concurrency
        self._limit = limit
        self._journal = journal

    def run(self, flow: Flow[T]) -> T:
        """Drive a flow to its result."""
        return run(
            flow,
            lambda request: perform(self.steps(request)),
            max_in_flight=self._max_concurrency,
            journal=self._journal,
        )

    async def arun(self, flow: Flow[T]) -> T:
        """Drive a flow to its result with the models' async calls."""
        return await arun(
            flow,
            lambda request: aperform(self.steps(request)),
            max_in_flight=self._max_concurrency,
            journal=self._journal,
        )

    def steps(self, request: Request) -> Steps[Any]:
        """Answer one request by the framework's own calls.

        Raises:
            NotImplementedError: a request that none of the models answers.
        """
        match request:
            case Embed() if self._embedding is not None:
                return (yield from embed(self._embedding, request))
            case Generate() if self._llm is not None:
                if self._limit is not None:
                    self._limit.spend()
                return reply_text(
                    (yield Method(self._llm, "invoke", (request.prompt, self.config)))
                )
            case Score() if self._scorer is not None:
                return (yield Method(self._scorer, "__call__", (request.query, request.texts)))
            case _:
                raise NotImplementedError(type(request).__name__)


def call_config(config: RunnableConfig | None) -> RunnableConfig:
    """Return what goes along with several calls: also what a chain around them was given."""
    own = ensure_config(config)
    # One run id or name cannot stand for several calls.
    own.pop("run_id", None)
    own.pop("run_name", None)
    return own


def with_callbacks(callbacks: Callbacks) -> RunnableConfig | None:
    """Return a config of callbacks, None where there are none."""
    return None if callbacks is None else RunnableConfig(callbacks=callbacks)


class Checked(BaseModel):
    """A component that refuses bad settings by the errors of the whole package."""

    if not TYPE_CHECKING:
        # Pydantic would wrap what model_post_init raises into an error of its own; type checkers
        # read the fields, which a constructor would hide from them.
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self._prepare()

    def _prepare(self) -> None:
        """Refuse settings out of range."""


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


def to_prompt(
    template: BasePromptTemplate[Any] | str | None, default: str, slots: Mapping[str, str]
) -> str:
    """Return a template as the core's prompts are written, where a slot is ``{question}``.

    ``slots`` are the names of the core's slots by LangChain's, the one that is needed first.

    Raises:
        InvalidParameterError: the template lacks that one, or has others.
    """
    if template is None:
        return default
    if isinstance(template, str):
        return template
    needed, variables = next(iter(slots)), set(template.input_variables)
    if needed not in variables or not variables <= set(slots):
        raise InvalidParameterError(
            "prompt",
            sorted(variables),
            f"a template with the variable {needed}, and no others than {', '.join(slots)}",
            "Fill other variables with its partial().",
        )
    # The core fills its slots by their names in braces and leaves other braces alone.
    return template.format_prompt(**{v: f"{{{slots[v]}}}" for v in variables}).to_string()
