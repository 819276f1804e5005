"""Pipelines that answer: the package's own, made of its modules, and those of the frameworks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from longrag.calls import Flow, run
from longrag.errors import InvalidParameterError, StoreError
from longrag.evaluation.datasets import PassageSpan, Question
from longrag.evaluation.harness.corpora import Corpus, number_id
from longrag.evaluation.harness.settings import Pipeline, Settings
from longrag.recipes import Passage, Recipe, compressing, reranking, search_each
from longrag.refinement import compress_abstractive, compress_extractive, repack
from longrag.retrieval import (
    QueryClassifier,
    QueryTexts,
    TreeScorer,
    collapsed,
    decompose,
    fit_budget,
    fuse,
    fuse_reciprocal_rank,
    hyde,
    rewrite,
    traverse,
)
from longrag.synthesis.extractive import answer_prompt
from longrag.synthesis.two_turn import read
from longrag.types import Chunk, LongUnit, Member, RetrievedUnit

Vector: TypeAlias = npt.NDArray[np.float32]
Ranking: TypeAlias = list[tuple[int, float]]
"""Numbers of units with their scores, best first."""

# Of each list; what the recipes fuse.
_FUSED: Final = 100
_DEPTH: Final = 200
_HUBS: Final = 5
# Units beyond this share of the budget, and this many, cannot add more than scraps to it.
_SPARE: Final = 2
_LEAST_UNITS: Final = 8


@dataclass(frozen=True, slots=True)
class Found:
    """One text that a pipeline put before the reader, with the documents it is from.

    ``tokens`` is None until they are counted.
    """

    text: str
    doc_ids: tuple[str, ...]
    title: str = ""
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pipeline gave for a question.

    ``ranking`` are the documents in the order in which they were found, each once. ``answer`` is
    None where nothing was asked to read. ``retrieved`` is False where a gate skipped the search.
    """

    found: tuple[Found, ...]
    ranking: tuple[str, ...]
    answer: str | None = None
    retrieved: bool = True


class System(Protocol):
    """Answers questions."""

    def answer(self, question: Question) -> Outcome:
        """Return what is read for a question, and the answer where there is a reader."""


def build_system(pipeline: Pipeline, settings: Settings, corpus: Corpus) -> System:
    """Build a pipeline over a corpus.

    Raises:
        InvalidParameterError: settings that do not fit together or to the corpus, or ``make``
            returned something that cannot be asked.
        Exception: what ``make`` raises.
    """
    if pipeline.make is not None:
        return _ImportedSystem(pipeline, settings, corpus)
    if settings.unit in ("tree", "traversal"):
        return _TreeSystem(settings, corpus)
    if settings.unit == "evidence":
        return _EvidenceSystem(settings, corpus)
    return _UnitSystem(settings, corpus)


class _Modules:
    """The modules around a search, as a ``Recipe``, and the reader."""

    def __init__(self, settings: Settings, corpus: Corpus) -> None:
        self.settings, self.corpus = settings, corpus
        self.counter = corpus.models.counter
        self._embedder = corpus.embedder_name(settings)
        self._chunk_size = corpus.chunk_size(settings)
        self._recipe = self._make_recipe()

    def answer(self, question: Question) -> Outcome:
        """Return what is read for a question, and its answer."""
        if self._recipe is None:
            found = self.within(self.search(question.text, self._vector(question), self.budget))
            outcome = Outcome(tuple(found), _documents(found))
        else:
            outcome = self._by_recipe(question, self._recipe)
        return read_outcome(outcome, question, self.settings.reader, self.corpus)

    @property
    def budget(self) -> int | None:
        """The tokens that are retrieved: more than are read where they are compressed."""
        settings = self.settings
        if settings.token_budget is None or settings.compress == "off":
            return settings.token_budget
        return round(settings.token_budget / settings.ratio)

    def search(self, query: str, vector: Vector, budget: int | None) -> list[Found]:
        """Return what is found, best first, within the budget of tokens where there is one."""
        raise NotImplementedError

    def within(self, found: Iterable[Found]) -> list[Found]:
        """Keep the best k."""
        return list(found)[: self.settings.k]

    def _vector(self, question: Question) -> Vector:
        ranked = self.settings.unit in ("passage", "document", "long unit")
        if ranked and self.settings.search == "keywords":
            return np.empty(0, np.float32)
        return self.corpus.question_vector(question, self._embedder, self._chunk_size)

    def _make_recipe(self) -> Recipe | None:
        settings = self.settings
        off = (settings.gate, settings.transform, settings.rerank, settings.compress)
        if set(off) == {"off"} and settings.repack == "forward":
            return None
        transforms: dict[str, Any] = {
            "off": None,
            "hyde": partial(hyde, n=1, join_query=True),
            "rewrite": rewrite,
            "decompose": decompose,
        }
        compressors: dict[str, Any] = {
            "off": None,
            "extractive": compressing(partial(compress_extractive, ratio=settings.ratio)),
            "abstractive": compressing(partial(compress_abstractive, ratio=settings.ratio)),
        }
        scorer = None
        if settings.rerank != "off":
            scorer = self.corpus.models.scorers[settings.rerank]
        return Recipe(
            gate=QueryClassifier.load_default() if settings.gate == "default" else None,
            transform=transforms[settings.transform],
            reranker=None if scorer is None else reranking(scorer),
            repacker=self._fit_and_repack,
            compressor=compressors[settings.compress],
            candidates=_DEPTH,
            top_k=_DEPTH,
            count_tokens=lambda text: 0,
        )

    def _by_recipe(self, question: Question, recipe: Recipe) -> Outcome:
        ranked: list[Found] = []

        def retrieve(texts: QueryTexts, top_k: int) -> Flow[Sequence[Passage]]:
            yield from ()
            deep = self.settings.rerank != "off"
            vector = self._query_vector(question, texts)
            # Keywords are searched for with the question, whatever a transform made of it.
            query = texts.texts[0] if self.settings.transform == "decompose" else question.text
            found = self.search(query, vector, None if deep else self.budget)
            limit = self.settings.candidates if deep else _DEPTH
            ranked.extend(found[:limit])
            return [
                Passage(one.text, one.text, (), one.doc_ids, one.title, -float(at))
                for at, one in enumerate(found[:limit])
            ]

        each = self.settings.transform == "decompose"
        own = replace(recipe, retriever=search_each(retrieve) if each else retrieve)
        name = self._embedder
        prepared = run(
            own.prepare(question.text),
            lambda request: self.corpus.answer(request, name, self._chunk_size),
        )
        found = [Found(one.text, one.doc_ids, one.title) for one in prepared.passages]
        # Compression leaves the order of reading; the measures of rank are those of the best.
        kept = set(_documents(found))
        order = tuple(id_ for id_ in _documents(ranked) if id_ in kept)
        return Outcome(tuple(found), order, retrieved=prepared.needs_retrieval)

    def _query_vector(self, question: Question, texts: QueryTexts) -> Vector:
        if texts.texts == (question.text,):
            return self._vector(question)
        embed = partial(self.corpus.embed_further, self._embedder, self._chunk_size)
        mean: Vector = embed(texts.texts, "query").mean(axis=0)
        return mean

    def _fit_and_repack(self, passages: Sequence[Passage]) -> Sequence[Passage]:
        kept: list[Passage] = []
        room = float("inf") if self.budget is None else self.budget
        for passage in passages:
            tokens = self.counter(passage.text)
            if tokens <= room and (self.settings.k is None or len(kept) < self.settings.k):
                kept.append(passage)
                room -= tokens
        return repack(kept, self.settings.repack)


class _UnitSystem(_Modules):
    """Passages, documents and long units, ranked by vectors, keywords or both."""

    def __init__(self, settings: Settings, corpus: Corpus) -> None:
        super().__init__(settings, corpus)
        self._units, self._unit_of = corpus.units(settings)
        self._spans = corpus.spans(self._chunk_size)
        self._index = None if settings.search == "keywords" else corpus.index(settings)
        self._keywords = None
        if settings.search != "dense":
            keywords = corpus.keywords(settings)
            of = {number_id(at): number_id(u) for at, u in enumerate(self._unit_of.tolist())}
            self._keywords = keywords.by_unit(of)
        self._linked: dict[int, set[int]] = {}
        if settings.search == "neighbours":
            self._linked = self._link_units()
        # The passage by which each unit was found for the question that is being asked.
        self._best: dict[int, int] = {}
        self._smallest = min((unit.tokens for unit in self._units), default=0)

    def search(self, query: str, vector: Vector, budget: int | None) -> list[Found]:
        """Rank the units and take the best, those that do not fit passed over or cut."""
        self._best = {}
        depth = min(len(self._units), self._depth(budget))
        ranked = self._rank(query, vector, depth)
        if self.settings.unit == "passage":
            return self._take_passages(ranked, budget)
        if budget is None:
            return [self._found(self._units[unit]) for unit, _ in ranked]
        fitted = fit_budget(self._best_chunks(ranked, budget), budget, count_tokens=self.counter)
        return [self._found(one.unit) for one in fitted]

    def _depth(self, budget: int | None) -> int:
        if self.settings.k is not None and budget is None:
            return max(self.settings.k, self.settings.candidates)
        return _DEPTH if budget is None else max(_DEPTH, budget // 20)

    def _rank(self, query: str, vector: Vector, depth: int) -> Ranking:
        search = self.settings.search
        if search == "dense":
            return self._dense(vector, depth)
        if search == "keywords":
            return self._sparse(query, depth)
        if search == "neighbours":
            return self._neighbours(query, vector, depth)
        wanted = max(depth, _FUSED)
        sparse, dense = dict(self._sparse(query, wanted)), dict(self._dense(vector, wanted))
        if search == "hybrid":
            return list(fuse(sparse, dense, self.settings.alpha).items())[:depth]
        return list(fuse_reciprocal_rank([dense, sparse]).items())[:depth]

    def _dense(self, vector: Vector, depth: int) -> Ranking:
        if self._index is None:
            return []
        scores, units, passages = self._index.search(vector, depth)
        numbers = units[0].tolist()
        self._best |= zip(numbers, passages[0].tolist(), strict=True)
        return list(zip(numbers, scores[0].tolist(), strict=True))

    def _sparse(self, query: str, depth: int) -> Ranking:
        if self._keywords is None:
            return []
        found = self._keywords.search(query, depth)
        self._best = {int(id_): int(passage) for id_, _, passage in found} | self._best
        return [(int(id_), score) for id_, score, _ in found]

    def _neighbours(self, query: str, vector: Vector, depth: int) -> Ranking:
        """Put behind each of the best five up to five that are linked to it, by the same score."""
        scores = np.zeros(len(self._units))
        count = len(self._units)
        for ranked, weight in (
            (self._dense(vector, count), 1.0),
            (self._sparse(query, count), self.settings.alpha),
        ):
            values = np.zeros(count)
            for unit, score in ranked:
                values[unit] = score
            spread = float(np.ptp(values))
            scores += weight * (values - values.min()) / (spread or 1.0)
        order: list[int] = np.argsort(-scores, kind="stable").tolist()
        first: list[int] = []
        for hit in order[:_HUBS]:
            near = sorted(self._linked.get(hit, ()), key=lambda unit: (-scores[unit], unit))
            first += [hit, *near[:_HUBS]]
        both = list(dict.fromkeys([*first, *order[: depth + len(first)]]))
        return [(unit, -float(at)) for at, unit in enumerate(both[:depth])]

    def _link_units(self) -> dict[int, set[int]]:
        owners: dict[int, list[int]] = {}
        for span, unit in zip(self._spans, self._unit_of.tolist(), strict=True):
            owners.setdefault(span.document, []).append(unit)
        linked: dict[int, set[int]] = {}
        for source, target in self.corpus.titles():
            for one, other in ((source, target), (target, source)):
                for unit in owners.get(one, ()):
                    linked.setdefault(unit, set()).update(owners.get(other, ()))
        return linked

    def _take_passages(self, ranked: Ranking, budget: int | None) -> list[Found]:
        room = float("inf") if budget is None else budget
        taken: list[Found] = []
        covered: set[int] = set()
        for number, _ in ranked:
            if room < self._smallest:
                break
            if number in covered:
                continue
            unit, own = self._units[number], [number]
            if self.settings.window:
                unit, own = self._widened(number)
            if unit.tokens <= room:
                taken.append(self._found(unit))
                covered.update(own)
                room -= unit.tokens
        return taken

    def _widened(self, number: int) -> tuple[LongUnit, list[int]]:
        """Return a passage with its neighbours on both sides, and the numbers of all of them."""
        spans, width = self._spans, self.settings.window
        document = spans[number].document
        own = [
            at
            for at in range(max(number - width, 0), min(number + width + 1, len(spans)))
            if spans[at].document == document
        ]
        text = self.corpus.documents[document].text
        whole = PassageSpan(document, spans[own[0]].start, spans[own[-1]].end)
        title = self.corpus.documents[document].title
        head = f"{title}\n\n" if title.strip() else ""
        shown = head + text[whole.start : whole.end]
        member = Member(self.corpus.documents[document].id, title, len(head), *whole[1:])
        return LongUnit(f"{number}+{width}", shown, (member,), self.counter(shown)), own

    def _best_chunks(self, ranked: Ranking, budget: int) -> list[RetrievedUnit]:
        """Return units of enough tokens, each with the passage that found it, which a cut keeps."""
        found: list[RetrievedUnit] = []
        tokens = 0
        for number, score in ranked:
            if tokens > _SPARE * budget and len(found) >= _LEAST_UNITS:
                break
            unit = self._units[number]
            found.append(RetrievedUnit(unit, score, self._chunk(unit, self._best[number])))
            tokens += unit.tokens
        return found

    def _chunk(self, unit: LongUnit, passage: int) -> Chunk:
        span = self._spans[passage]
        doc_id = self.corpus.documents[span.document].id
        member = next(one for one in unit.members if one.doc_id == doc_id)
        start = member.start + span.start - member.doc_start
        end = start + span.end - span.start
        return Chunk(
            "", unit.id, member.doc_id, member.title, unit.text[start:end], start, end, *span[1:]
        )

    def _found(self, unit: LongUnit) -> Found:
        return Found(unit.text, unit.doc_ids, tokens=unit.tokens)


class _EvidenceSystem(_Modules):
    """Evidence within a budget."""

    def __init__(self, settings: Settings, corpus: Corpus) -> None:
        super().__init__(settings, corpus)
        self._index = corpus.evidence(settings)

    def search(self, query: str, vector: Vector, budget: int | None) -> list[Found]:
        """Return the evidence for a question."""
        found = self._index.search(query, vector, token_budget=budget)
        if budget is None:
            found = found[:_DEPTH]
        return [Found(one.unit.text, one.unit.doc_ids) for one in self._index.units(found)]


class _TreeSystem(_Modules):
    """A tree of summaries, all levels at once or walked down from the roots."""

    def __init__(self, settings: Settings, corpus: Corpus) -> None:
        super().__init__(settings, corpus)
        self._tree = corpus.tree(settings)
        self._scorer = TreeScorer(self._tree)

    def search(self, query: str, vector: Vector, budget: int | None) -> list[Found]:
        """Return the nodes that are read."""
        scores = self._scorer.node_scores(vector)
        if self.settings.unit == "traversal":
            nodes = traverse(self._tree, scores, token_budget=budget)
        else:
            nodes = collapsed(self._tree, scores, token_budget=budget, top_k=_DEPTH)
        # A summary is made from documents and holds none of them: the root is made from all.
        return [
            Found(
                one.node.text,
                () if one.node.level else one.node.doc_ids,
                one.node.title,
                one.node.tokens,
            )
            for one in nodes
        ]


class _ImportedSystem:
    """A retriever or engine of a framework, or a function of a question."""

    def __init__(self, pipeline: Pipeline, settings: Settings, corpus: Corpus) -> None:
        self._pipeline, self._settings, self._corpus = pipeline, settings, corpus
        self._ask = _asking(pipeline.name, _make(pipeline, settings, corpus))

    def answer(self, question: Question) -> Outcome:
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
        outcome = Outcome(tuple(kept), _documents(kept), answer)
        if answer is not None:
            return outcome
        return read_outcome(outcome, question, self._settings.reader, self._corpus)


def read_outcome(outcome: Outcome, question: Question, reader: str, corpus: Corpus) -> Outcome:
    """Have a reader answer from what was found, in one turn or two (LongRAG §3.2)."""
    if reader == "off":
        return outcome
    counter = corpus.models.counter
    if not outcome.retrieved and reader == "llm":
        return replace(outcome, answer=corpus.models.ask(question.text))
    asked = question.text
    if question.options and reader == "llm":
        asked = "\n".join([asked, "Answer with one of these:", *question.options])
    units = [_as_retrieved(one, at, counter(one.text)) for at, one in enumerate(outcome.found)]
    answerers: dict[str, Callable[[str], str]] = {
        "extractive": answer_prompt,
        "llm": corpus.models.ask,
    }
    answer = run(
        read(asked, units, count_tokens=counter),
        lambda request: answerers[reader](request.prompt),  # type: ignore[union-attr]
    )
    return replace(outcome, answer=answer.answer)


def _as_retrieved(found: Found, number: int, tokens: int) -> RetrievedUnit:
    id_ = found.doc_ids[0] if found.doc_ids else str(number)
    member = Member.unplaced(f"{id_}:{number}", found.title, 0, len(found.text))
    unit = LongUnit(str(number), found.text, (member,), tokens)
    chunk = Chunk(
        "", unit.id, member.doc_id, found.title, found.text, 0, len(found.text),
        member.doc_start, member.doc_end,
    )  # fmt: skip
    return RetrievedUnit(unit, None, chunk)


def _documents(found: Iterable[Found]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(id_ for one in found for id_ in one.doc_ids))


Asking: TypeAlias = Callable[[str], tuple[str | None, Sequence[Any]]]


def _make(pipeline: Pipeline, settings: Settings, corpus: Corpus) -> object:
    """Call ``make`` with the data set and those settings that it has parameters for."""
    make = cast("Any", pipeline.make)
    if not (inspect.isfunction(make) or inspect.ismethod(make) or inspect.isclass(make)):
        return make
    parameters = inspect.signature(make).parameters
    any_name = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    given = {
        name: value
        for name, value in asdict(settings).items()
        if (name in parameters or any_name) and name not in pipeline.options
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


def _as_found(item: Any, doc_id_key: str | None) -> Found:
    """Return a node, a document, a text or a pair of text and document ids as what was found."""
    if isinstance(item, Found):
        return item
    if isinstance(item, str):
        return Found(item, ())
    if isinstance(item, tuple) and len(item) == 2:
        ids = (item[1],) if isinstance(item[1], str) else tuple(item[1])
        return Found(item[0], ids)
    node = getattr(item, "node", item)
    metadata = getattr(node, "metadata", None)
    if not isinstance(metadata, Mapping):
        raise StoreError(f"a pipeline must return texts, nodes or documents, got {item!r}")
    return Found(_text(node), _doc_ids(node, metadata, doc_id_key), str(metadata.get("title", "")))


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
