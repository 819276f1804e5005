"""Builds a decoder over documents with the help of LangChain's models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

from langchain_core.language_models import LanguageModelLike
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_longrag.bridge.answering import ModelAnswers, call_config
from langchain_longrag.decoding.candidates import to_key_scorer
from langchain_longrag.models.identity import llm_identity
from longrag import types as core
from longrag.calls import arun, run
from longrag.decoding.building import build_decoder
from longrag.decoding.decoder import RichesDecoder
from longrag.errors import InvalidParameterError
from longrag.indexing.key_index.parts import Mode
from longrag.indices.journals import aopen_journal, check_journal, open_journal
from longrag.ingestion.key_kinds import KeyKind
from longrag.journal import Journal
from longrag.models.language_model import LanguageModel


class DecoderBuilder:
    """Builds the decoder over a corpus, with a model that writes propositions if they are the keys.

    Args:
        documents: the corpus.
        language_model: decodes.
        keys: the kind of keys.
        with_title: put titles and headings before sentences or paragraphs.
        mode: of the index.
        llm: writes propositions.
        journal: stores the propositions: a path or a ``Journal``.
        config: passed to the calls of ``llm``.
        max_concurrency: the most calls of ``llm`` at the same time.
        executor: where keys are made and tokenised.
        settings: keyword arguments of ``RichesDecoder``; ``key_scorer`` may be an embedding model
            or a cross encoder of LangChain.

    Raises:
        InvalidParameterError: a setting is not allowed, or the model cannot be constrained.
        TypeError: a setting is unknown.
    """

    def __init__(
        self,
        documents: Sequence[core.Document],
        *,
        language_model: LanguageModel,
        keys: KeyKind = "sentence",
        with_title: bool = False,
        mode: Mode = "keys",
        llm: LanguageModelLike | None = None,
        journal: str | os.PathLike[str] | Journal | None = None,
        config: RunnableConfig | None = None,
        max_concurrency: int = 4,
        executor: Executor | None = None,
        **settings: Any,
    ) -> None:
        if llm is not None and not isinstance(llm, Runnable):
            raise InvalidParameterError("llm", llm, "a language model or a runnable")
        if keys == "proposition" and llm is None:
            raise InvalidParameterError("llm", None, "a language model, which writes propositions")
        check_journal(journal)
        settings["key_scorer"] = to_key_scorer(settings.get("key_scorer"))
        self._flow = build_decoder(
            documents,
            language_model=language_model,
            keys=keys,
            with_title=with_title,
            mode=mode,
            settings=settings,
            executor=executor,
        )
        self._llm, self._journal, self._max_concurrency = llm, journal, max_concurrency
        self._config = call_config(config)
        self._models = ModelAnswers(llm=llm, config=self._config)

    def run(self) -> RichesDecoder:
        """Make the keys and the decoder."""
        with open_journal(self._journal, self._model_names) as journal:
            return run(
                self._flow,
                self._models.answer,
                max_in_flight=self._max_concurrency,
                journal=journal,
            )

    async def arun(self) -> RichesDecoder:
        """Make the keys and the decoder, off the event loop."""
        async with aopen_journal(self._journal, self._model_names) as journal:
            return await arun(
                self._flow,
                self._models.aanswer,
                max_in_flight=self._max_concurrency,
                journal=journal,
            )

    def _model_names(self) -> dict[str, str]:
        return {"model": llm_identity(self._llm, self._config)}
