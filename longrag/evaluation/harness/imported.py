"""Retrievers and engines of the frameworks, and functions of a question, as pipelines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeAlias, cast

from longrag.errors import InvalidParameterError, StoreError
from longrag.evaluation.datasets import Question
from longrag.evaluation.harness.corpora import Corpus
from longrag.evaluation.harness.outcomes import (
    AnswerRecord,
    RetrievedText,
    documents_of,
    read_outcome,
)
from longrag.evaluation.harness.settings import Pipeline, PipelineSettings, given_settings


class ImportedSystem:
    """A retriever or engine of a framework, or a function of a question."""

    def __init__(self, pipeline: Pipeline, settings: PipelineSettings, corpus: Corpus) -> None:
        self._pipeline, self._settings, self._corpus = pipeline, settings, corpus
        self._ask = _asking(pipeline.name, _make(pipeline, settings, corpus))

    def answer(self, question: Question) -> AnswerRecord:
        """Ask, and cut what comes back to ``k`` and the budget."""
        answer, items = self._ask(question.text)
        found = [_as_found(item, self._pipeline.doc_id_key) for item in items]
        counter = self._corpus.models.counter
        budget = self._settings.token_budget
        kept, room = [], float("inf") if budget is None else budget
        for one in found[: self._settings.k]:
            tokens = counter(one.text)
            if tokens <= room:
                kept.append(one)
                room -= tokens
        outcome = AnswerRecord(tuple(kept), documents_of(kept), answer)
        if answer is not None:
            return outcome
        return read_outcome(outcome, question, self._settings.reader, self._corpus)


Asking: TypeAlias = Callable[[str], tuple[str | None, Sequence[Any]]]


def _make(pipeline: Pipeline, settings: PipelineSettings, corpus: Corpus) -> object:
    """Call ``make`` with the data set and those settings that it has parameters for."""
    make = cast("Any", pipeline.make)
    if not (inspect.isfunction(make) or inspect.ismethod(make) or inspect.isclass(make)):
        return make
    names = given_settings(make)
    given = {
        name: value
        for name, value in asdict(settings).items()
        if (names is None or name in names) and name not in pipeline.options
    }
    made: object = cast("Any", make)(corpus.dataset, **given, **pipeline.options)
    return made


def _asking(name: str, made: Any) -> Asking:
    """Return how something is asked: an engine, a retriever, a runnable, or a function."""
    for method, ask in (("retrieve", _retrieve), ("query", _query), ("invoke", _invoke)):
        if callable(getattr(made, method, None)):
            return partial(ask, made)
    if callable(made):
        return lambda question: _split(made(question))
    raise InvalidParameterError(
        f"pipelines[{name!r}]",
        made,
        "a retriever or engine of LlamaIndex or LangChain, or a function of a question",
    )


def _retrieve(made: Any, question: str) -> tuple[None, Sequence[Any]]:
    return None, list(made.retrieve(question))


def _query(made: Any, question: str) -> tuple[str, Sequence[Any]]:
    response = made.query(question)
    return str(response), list(getattr(response, "source_nodes", ()) or ())


def _invoke(made: Any, question: str) -> tuple[str | None, Sequence[Any]]:
    return _split(made.invoke(question))


def _split(result: Any) -> tuple[str | None, Sequence[Any]]:
    """Take apart what a runnable or function returned: an answer, its texts, or both."""
    if isinstance(result, str):
        return result, ()
    if isinstance(result, Mapping):
        answer = next((result[n] for n in ("answer", "result", "output") if n in result), None)
        names = ("documents", "context", "source_documents", "passages")
        texts = next((result[n] for n in names if n in result), ())
        return (None if answer is None else _text(answer)), list(texts)
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], str):
        return result[0], list(result[1])
    if isinstance(getattr(result, "content", None), str):
        return result.content, ()
    return None, list(result)


def _as_found(item: Any, doc_id_key: str | None) -> RetrievedText:
    """Return a node, a document, a text or a pair of text and document ids as what was found."""
    if isinstance(item, RetrievedText):
        return item
    if isinstance(item, str):
        return RetrievedText(item, ())
    if isinstance(item, tuple) and len(item) == 2:
        ids = (item[1],) if isinstance(item[1], str) else tuple(item[1])
        return RetrievedText(item[0], ids)
    node = getattr(item, "node", item)
    metadata = getattr(node, "metadata", None)
    if not isinstance(metadata, Mapping):
        raise StoreError(f"a pipeline must return texts, nodes or documents, got {item!r}")
    return RetrievedText(
        _text(node), _doc_ids(node, metadata, doc_id_key), str(metadata.get("title", ""))
    )


def _doc_ids(node: Any, metadata: Mapping[str, Any], key: str | None) -> tuple[str, ...]:
    if isinstance(metadata.get("level"), int) and metadata["level"] > 0:
        return ()  # a summary of documents, which holds none of them
    names = ("doc_ids", "doc_id", "source") if key is None else (key,)
    for name in names:
        value = metadata.get(name)
        if isinstance(value, str):
            return (value,)
        if isinstance(value, Iterable):
            return tuple(map(str, value))
    own = getattr(node, "ref_doc_id", None) or getattr(node, "id", None)
    return () if own is None else (str(own),)


def _text(item: Any) -> str:
    for name in ("page_content", "text", "content"):
        value = item if isinstance(item, str) else getattr(item, name, None)
        if isinstance(value, str):
            return value
    get = getattr(item, "get_content", None)
    if callable(get):
        return str(get())
    raise StoreError(f"a pipeline returned something without text: {item!r}")
