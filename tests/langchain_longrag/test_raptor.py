"""A tree of summaries as LangChain's index and retriever: built, resumed, changed, searched."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.indexing import InMemoryRecordManager, aindex, index
from langchain_core.language_models import FakeListChatModel, FakeListLLM, GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatResult
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests
from langchain_tests.integration_tests.indexer import (
    AsyncDocumentIndexTestSuite,
    DocumentIndexerTestSuite,
)

from langchain_longrag import (
    RaptorIndex,
    RaptorRetriever,
    create_longrag_chain,
    create_longrag_tool,
)
from longrag.errors import (
    CallLimitError,
    EmbeddingError,
    GenerationError,
    IndexFormatError,
    InvalidDocumentError,
    InvalidParameterError,
    JournalError,
    StoreError,
    SummaryError,
)
from longrag.indexing.summaries import ExtractiveSummarizer
from longrag.journal import Journal
from longrag.retrieval.tree_search import collapsed, node_scores
from tests.langchain_longrag.conftest import (
    HashEmbeddings,
    ListStore,
    ScriptedChatModel,
    cosine,
    replying,
)

# The framework's own notice about the class the index extends.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The class `DocumentIndex` is in beta"
    ":langchain_core._api.beta_decorator.LangChainBetaWarning"
)

SETTINGS: dict[str, Any] = {"chunk_size": 20, "clusterer": "contiguous"}


def page(number: int, version: int = 0) -> Document:
    """A page of three leaves, whose own words are all marked."""
    name = f"secret{number}v{version}"
    return Document(
        f"Page {name} tells of the town {number % 5} and of its gates and its market.\n\n"
        f"The mayor of {name} counts {number * 3} boats in the old harbour each day.\n\n"
        f"Nobody in {name} knows how many gulls there are above the roofs of it.",
        id=f"page-{number}",
        metadata={"source": f"page-{number}.md", "lang": "en", "number": number},
    )


PAGES = [page(n) for n in range(30)]


def summary(prompt: str) -> str:
    """Every marked word of the passages, so that no summary forgets what it was made from."""
    words = (word.strip(".,") for word in prompt.split())
    named = sorted({word for word in words if word.startswith("secret")})
    return "A summary of " + " and ".join(named) + "."


def model() -> ScriptedChatModel:
    return replying(summary)


def build(documents: Sequence[Document] = PAGES, **settings: Any) -> RaptorIndex:
    given = {"llm": model(), **SETTINGS, **settings}
    embedding = given.pop("embedding", None) or HashEmbeddings()
    return RaptorIndex.from_documents(documents, embedding, **given)


def state(built: RaptorIndex) -> tuple[Any, ...]:
    """Documents, nodes, vectors and what is found: all there is to an index."""
    found = built.invoke("boats in the harbour")
    nodes = list(built.tree.nodes.values())
    return dict(built._index.documents), nodes, built.tree.vectors.tobytes(), found


def summaries(built: RaptorIndex) -> list[str]:
    return [node.text for node in built.tree.nodes.values() if node.level]


def prompts_of(built: RaptorIndex) -> list[str]:
    assert isinstance(built.llm, ScriptedChatModel)
    return built.llm.prompts


# LangChain's own suites


class TestDocumentIndex(DocumentIndexerTestSuite):
    @pytest.fixture
    def index(self) -> RaptorIndex:
        return RaptorIndex(embedding=HashEmbeddings(), summarizer="extractive")


class TestAsyncDocumentIndex(AsyncDocumentIndexTestSuite):
    @pytest.fixture
    async def index(self) -> RaptorIndex:
        return RaptorIndex(embedding=HashEmbeddings(), llm=model())


class _Retrievers(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return RaptorRetriever

    @property
    def retriever_query_example(self) -> str:
        return "boats in the harbour"


class TestRetrieverOverAnIndex(_Retrievers):
    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"index": build()}


class TestRetrieverOverAStore(_Retrievers):
    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        store = InMemoryVectorStore(HashEmbeddings())
        build(vectorstore=store)
        return {"vectorstore": store}


class TestIndexAsRetriever(_Retrievers):
    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return RaptorIndex

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"embedding": HashEmbeddings(), "tree_index": build().tree_index, **SETTINGS}


# building


def test_every_summary_is_the_models_and_is_asked_for_once():
    built = build()
    assert built.statistics().nodes == (90, 13, 2, 1)
    assert len(prompts_of(built)) == len(set(prompts_of(built))) == 16
    assert sorted(summaries(built)) == sorted(map(summary, prompts_of(built)))
    (root,) = built.tree.roots
    assert all(f"secret{n}v0" in built.tree.nodes[root].text for n in range(30))
    assert "at most 75 words" in prompts_of(built)[0]


@pytest.mark.parametrize("clusterer", ["fast", "contiguous", "stable"])
def test_two_builds_are_one_tree_whatever_the_order_concurrency_or_driver(clusterer):
    first = build(clusterer=clusterer, max_concurrency=1)
    second = build(PAGES[::-1], clusterer=clusterer, max_concurrency=7)
    third = asyncio.run(
        RaptorIndex.afrom_documents(
            PAGES, HashEmbeddings(), llm=model(), **{**SETTINGS, "clusterer": clusterer}
        )
    )
    assert state(first) == state(second) == state(third)


def test_any_model_may_write_the_summaries():
    def block(text: str) -> dict[str, str]:
        return {"type": "text", "text": text}

    texts = {
        "chat": FakeListChatModel(responses=["By a chat model."]),
        "llm": FakeListLLM(responses=["By a chat model."]),
        "chain": RunnableLambda(lambda prompt: "By a chat model."),
        "blocks": RunnableLambda(lambda prompt: AIMessage([*map(block, ("By a chat ", "model."))])),
        "retry": FakeListChatModel(responses=["By a chat model."]).with_retry(),
        "fallback": replying(lambda _: OSError("down")).with_fallbacks(
            [FakeListLLM(responses=["By a chat model."])]
        ),
    }
    for name, llm in texts.items():
        built = build(PAGES[:5], llm=llm)
        assert summaries(built) == ["By a chat model."] * 3, name
        built = asyncio.run(
            RaptorIndex.afrom_documents(PAGES[:5], HashEmbeddings(), llm=llm, **SETTINGS)
        )
        assert summaries(built) == ["By a chat model."] * 3, name


def test_a_summarizer_without_a_model_quotes_its_sources():
    built = build(llm=None, summarizer="extractive", summary_tokens=40)
    for node in built.tree.nodes.values():
        if node.level:
            assert node.tokens <= 40
            text = " ".join(leaf.text for leaf in built.tree.leaves(node.id))
            sentences = [s for s in node.text.replace("\n", " ").split(".") if s.strip()]
            assert all(sentence.strip() in text for sentence in sentences)
    assert state(built) == state(
        build(llm=None, summarizer=ExtractiveSummarizer(summary_tokens=40), summary_tokens=40)
    )


async def test_without_a_model_or_summarizer_a_change_is_refused():
    empty = RaptorIndex(embedding=HashEmbeddings())
    for change in (
        lambda: empty.upsert(PAGES),
        lambda: empty.delete(["a"]),
        empty.rebuild,
    ):
        with pytest.raises(InvalidParameterError, match=r'summarizer="extractive"'):
            change()
    with pytest.raises(InvalidParameterError, match="llm must be a language model"):
        await empty.aupsert(PAGES)

    def asking(passages: Any, *, sources: Any) -> Any:
        from longrag.calls import Generate, ask

        return (yield from ask(Generate("?", sources)))

    with pytest.raises(InvalidParameterError, match="llm must be a language model"):
        build(llm=None, summarizer=asking)
    assert (
        summaries(build(PAGES[:5], llm=FakeListLLM(responses=["Own."]), summarizer=asking))
        == ["Own."] * 3
    )


def test_a_document_may_be_a_leaf_as_it_is():
    built = build(chunk_size=None)
    assert built.statistics().nodes[0] == 30
    leaves = [node for node in built.tree.nodes.values() if not node.level]
    assert [leaf.text for leaf in leaves] == [
        d.page_content for d in sorted(PAGES, key=lambda d: str(d.id))
    ]


def test_a_tree_a_document_shares_no_summary():
    built = build(scope="document")
    assert len(built.tree.roots) == 30
    assert {len(node.doc_ids) for node in built.tree.nodes.values()} == {1}


def test_an_estimate_is_what_a_build_then_asks_for():
    embedding, llm = HashEmbeddings(), model()
    index = RaptorIndex(embedding=embedding, llm=llm, **SETTINGS)
    estimate = index.estimate(PAGES)
    assert (llm.prompts, embedding.calls, len(index.tree)) == ([], Counter(), 0)
    index.upsert(PAGES)
    assert (estimate.leaves, estimate.llm_calls) == (90, len(llm.prompts))
    assert estimate.embedded_texts == len(embedding.embedded) == len(index.tree)


# prompts


def test_a_prompt_template_is_filled_and_braces_are_left_alone():
    prompt = PromptTemplate.from_template("In {max_words} words {{sic}} of {what}: {context}")
    odd = Document("The set {max_words} holds {context} and {x} or {} alone.", id="odd")
    built = build([odd, *PAGES[:2]], summary_prompt=prompt.partial(what="it"), summary_tokens=40)
    assert prompts_of(built)[0].startswith("In 30 words {sic} of it: <passage")
    assert "The set {max_words} holds {context} and {x} or {} alone." in prompts_of(built)[0]


async def test_a_chat_prompt_reaches_the_model_as_messages(tmp_path):
    seen: list[Any] = []

    class Watching(ScriptedChatModel):
        def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
            seen.append([type(message) for message in messages])
            return super()._generate(messages)

    prompt = ChatPromptTemplate([("system", "You summarise."), ("human", "Now: {context}")])
    llm = Watching(reply=summary)
    settings = {"llm": llm, "summary_prompt": prompt, "journal": tmp_path / "j.db"}
    built = build(PAGES[:5], **settings)
    assert seen == [[SystemMessage, HumanMessage]] * 3
    again = await RaptorIndex.afrom_documents(PAGES[:5], HashEmbeddings(), **SETTINGS, **settings)
    assert len(seen) == 3
    assert state(again) == state(built)


@pytest.mark.parametrize(
    "prompt",
    [
        PromptTemplate.from_template("No slot."),
        PromptTemplate.from_template("{context} {language}"),
        "{context}",
    ],
)
def test_a_prompt_without_its_variables_is_refused(prompt):
    with pytest.raises(InvalidParameterError, match="summary_prompt must be a prompt template"):
        RaptorIndex(embedding=HashEmbeddings(), llm=model(), summary_prompt=prompt)


# calls in flight


class Gate:
    """Lets calls through once so many are in flight; remembers the most there were."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.now = self.most = 0
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._aopen = asyncio.Event()

    def enter(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.now >= self.wanted:
                self._open.set()
                self._aopen.set()

    def leave(self) -> None:
        with self._lock:
            self.now -= 1

    def through(self) -> None:
        self.enter()
        opened = self._open.wait(20)
        self.leave()
        if not opened:
            raise TimeoutError(f"only {self.most} calls were in flight")

    async def athrough(self) -> None:
        self.enter()
        try:
            await asyncio.wait_for(self._aopen.wait(), 20)
        finally:
            self.leave()


class Gated(ScriptedChatModel):
    """Has async calls of its own."""

    gate: Any

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        self.gate.through()
        return super()._generate(messages)

    async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        await self.gate.athrough()
        return super()._generate(messages)


class Blocking(GenericFakeChatModel):
    """Has sync calls alone."""

    messages: Any = None
    gate: Any

    def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
        self.gate.through()
        return ScriptedChatModel(reply=summary)._generate(messages)


@pytest.mark.parametrize("wrap", ["plain", "retry", "fallbacks", "lambda"])
@pytest.mark.parametrize("kind", [Gated, Blocking])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_eight_calls_are_in_flight_where_eight_are_allowed(asynchronous, kind, wrap):
    gate = Gate(8)
    llm: Any = kind(gate=gate, **({"reply": summary} if kind is Gated else {}))
    wrapped = {
        "plain": lambda: llm,
        "retry": llm.with_retry,
        "fallbacks": lambda: llm.with_fallbacks([model()]),
        "lambda": lambda: llm | RunnableLambda(lambda message: message.text),
    }[wrap]()
    settings = {"llm": wrapped, "max_concurrency": 8, **SETTINGS}
    if asynchronous:
        built = asyncio.run(RaptorIndex.afrom_documents(PAGES, HashEmbeddings(), **settings))
    else:
        built = RaptorIndex.from_documents(PAGES, HashEmbeddings(), **settings)
    assert gate.most == 8
    assert state(built) == state(build())


# failures


class Faulty:
    """Answers as ``summary`` does but for some calls, counted over all; keeps what it answered."""

    def __init__(self, fault: Callable[[int], Any]) -> None:
        self.fault = fault
        self.calls = 0
        self.answered: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, prompt: str) -> Any:
        with self._lock:
            self.calls += 1
            fault = self.fault(self.calls)
            if fault is None:
                self.answered[prompt] += 1
        return summary(prompt) if fault is None else fault


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("failing", [1, 14, 16])
@pytest.mark.parametrize("fault", [TimeoutError("too slow"), " \n"], ids=repr)
def test_a_build_that_failed_is_resumed_and_each_answer_paid_for_once(
    asynchronous, failing, fault, tmp_path
):
    reply = Faulty(lambda call: fault if call == failing else None)
    settings = {"llm": replying(reply), "journal": tmp_path / "journal.db", **SETTINGS}

    def attempt() -> RaptorIndex:
        if asynchronous:
            return asyncio.run(RaptorIndex.afrom_documents(PAGES, HashEmbeddings(), **settings))
        return RaptorIndex.from_documents(PAGES, HashEmbeddings(), **settings)

    with pytest.raises(SummaryError, match="could not be made") as raised:
        attempt()
    assert raised.value.level >= 1
    assert len(raised.value.children) > 1
    cause = raised.value.__cause__
    assert isinstance(cause, TimeoutError if isinstance(fault, TimeoutError) else GenerationError)

    built = attempt()
    assert set(reply.answered.values()) == {1}
    assert reply.calls == len(reply.answered) + 1 == 17
    assert state(built) == state(build())


def test_a_failing_model_changes_nothing():
    llm = model()
    built = build(PAGES[:10], llm=llm)
    before = state(built)
    llm.reply = lambda _: ValueError("out of service")
    for change in (
        lambda: built.upsert([page(3, 1), page(11)]),
        lambda: built.delete(["page-2"]),
    ):
        with pytest.raises(SummaryError, match="ValueError: out of service"):
            change()
    assert state(built) == before
    llm.reply = summary
    built.upsert([page(11)])
    assert len(built.get(["page-11"])) == 1


class TooManyRequestsError(Exception):
    pass


async def test_a_rate_limit_that_passes_is_ridden_out_by_the_models_own_retries():
    refused: Counter[str] = Counter()
    lock = threading.Lock()

    def reply(prompt: str) -> Any:
        with lock:
            refused[prompt] += 1
            return TooManyRequestsError("429") if refused[prompt] < 3 else summary(prompt)

    retry = {"retry_if_exception_type": (TooManyRequestsError,), "wait_exponential_jitter": False}
    built = build(llm=replying(reply).with_retry(stop_after_attempt=3, **retry))
    assert set(refused.values()) == {3}
    assert state(built) == state(build())
    refused.clear()
    llm = replying(reply).with_retry(stop_after_attempt=3, **retry)
    again = await RaptorIndex.afrom_documents(PAGES, HashEmbeddings(), llm=llm, **SETTINGS)
    assert state(again) == state(built)
    refused.clear()
    with pytest.raises(SummaryError, match="TooManyRequestsError: 429"):
        build(llm=replying(reply).with_retry(stop_after_attempt=2, **retry))


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
def test_a_model_that_fails_at_random_is_asked_again_until_the_tree_is_there(rate, tmp_path):
    draw = random.Random(7)
    reply = Faulty(lambda _: OSError("reset") if draw.random() < rate else None)
    for _ in range(60):
        try:
            built = build(llm=replying(reply), journal=tmp_path / "j.db")
        except SummaryError:
            continue
        break
    assert state(built) == state(build())
    assert set(reply.answered.values()) == {1}


async def test_a_limit_on_calls_stops_the_build_which_can_be_resumed(tmp_path):
    llm = model()
    settings = {"llm": llm, "journal": tmp_path / "j.db", **SETTINGS}
    with pytest.raises(CallLimitError, match="max_llm_calls=6 is reached"):
        RaptorIndex.from_documents(PAGES, HashEmbeddings(), max_llm_calls=6, **settings)
    assert len(llm.prompts) == 6
    with pytest.raises(CallLimitError, match="max_llm_calls=6 is reached"):
        await RaptorIndex.afrom_documents(PAGES, HashEmbeddings(), max_llm_calls=6, **settings)
    assert len(llm.prompts) == 12
    built = RaptorIndex.from_documents(PAGES, HashEmbeddings(), max_llm_calls=6, **settings)
    assert len(llm.prompts) == len(set(llm.prompts)) == 16
    assert state(built) == state(build())


def test_a_reply_that_is_no_text_is_an_error_and_not_a_summary():
    with pytest.raises(SummaryError, match="a summary must be a string, got dict"):
        build(llm=RunnableLambda(lambda _: {"text": "A summary."}))


async def test_an_embedder_that_fails_changes_nothing():
    embedding = HashEmbeddings()
    built = build(PAGES[:5], embedding=embedding)
    before = state(built)
    vector = embedding.vector
    embedding.vector = lambda text: [float("nan")] * 64  # type: ignore[method-assign]
    with pytest.raises(EmbeddingError):
        built.upsert([page(9)])
    with pytest.raises(EmbeddingError):
        await built.aupsert([page(9)])
    embedding.vector = vector  # type: ignore[method-assign]
    assert state(built) == before


# the journal


def test_a_journal_answers_for_the_model_it_was_paid_to_alone(tmp_path):
    path = tmp_path / "j.db"

    class Tempered(ScriptedChatModel):
        temperature: float = 0.0
        api_key: str = "sk-1"

    first = Tempered(reply=summary)
    build(llm=first, journal=path)
    warm, same = Tempered(reply=summary, temperature=1.0), Tempered(reply=summary, api_key="sk-2")
    build(llm=warm, journal=path)
    build(llm=same, journal=path)
    build(llm=same.with_retry(), journal=path)
    assert [len(one.prompts) for one in (first, warm, same)] == [16, 16, 0]


def test_vectors_are_in_the_journal_under_the_name_of_the_embedder(tmp_path):
    path = tmp_path / "j.db"
    first, same, wide = HashEmbeddings(), HashEmbeddings(), HashEmbeddings(width=32)
    build(embedding=first, journal=path)
    build(embedding=same, journal=path)
    build(embedding=wide, journal=path)
    assert [len(one.embedded) for one in (first, same, wide)] == [106, 0, 106]


async def test_a_journal_of_ones_own_is_left_open(tmp_path):
    llm = model()
    with Journal(tmp_path / "j.db", model="mine", embed_model="mine") as journal:
        built = build(PAGES[:8], llm=llm, journal=journal)
        await built.aupsert([page(9)])
        paid = len(llm.prompts)
        build(PAGES[:8], llm=llm, journal=journal)
        assert len(llm.prompts) == paid
        assert len(journal) > 0


async def test_a_journal_that_is_another_file_is_refused_before_anything_is_paid(tmp_path):
    path, llm = tmp_path / "notes.txt", model()
    path.write_text("These are notes, and not a journal of anything.")
    with pytest.raises(JournalError):
        build(llm=llm, journal=path)
    with pytest.raises(JournalError):
        await RaptorIndex.afrom_documents(PAGES, HashEmbeddings(), llm=llm, journal=path)
    assert llm.prompts == []
    assert path.read_text() == "These are notes, and not a journal of anything."


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_deleted_document_leaves_nothing_in_index_store_or_journal(asynchronous, tmp_path):
    path, store = tmp_path / "j.db", InMemoryVectorStore(HashEmbeddings())
    built = build(journal=path, vectorstore=store, max_concurrency=3)
    built.invoke("boats in the harbour")
    assert b"secret7v0" in _bytes(path)
    if asynchronous:
        asyncio.run(built.adelete(["page-7"]))
        asyncio.run(built.aupsert([page(8, 1)]))
    else:
        built.delete(["page-7"])
        built.upsert([page(8, 1)])
    kept = f"{built._index.documents}{list(built.tree.nodes.values())}{built._scorer}{store.store}"
    for gone in ("secret7v0", "secret8v0"):
        assert gone not in kept
        assert gone.encode() not in _bytes(path)
        assert all(gone not in d.page_content for d in built.invoke(gone))
    assert "secret8v1" in kept
    assert b"secret8v1" in _bytes(path)


def _bytes(path: Any) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


async def test_what_a_change_asked_about_a_document_deleted_meanwhile_is_purged(tmp_path):
    asked, go_on = asyncio.Event(), asyncio.Event()

    class Waiting(ScriptedChatModel):
        async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
            if "secret15v0" in messages[0].text and not go_on.is_set():
                asked.set()
                await go_on.wait()
            return self._generate(messages)

    path = tmp_path / "j.db"
    built = build(PAGES[:15], llm=Waiting(reply=summary), journal=path)
    inserting = asyncio.create_task(built.aupsert([page(15)]))
    await asked.wait()
    await built.adelete(["page-14"])
    go_on.set()
    await inserting
    assert sorted(built._index.documents) == sorted(f"page-{n}" for n in range(16) if n != 14)
    assert b"secret14v0" not in _bytes(path)
    assert b"secret15v0" in _bytes(path)


# index() and its clean-up modes

FIRST = PAGES[:20]
FINAL = [*PAGES[:14], *(page(n, 1) for n in range(14, 18)), page(31)]
"""Pages 18 and 19 have vanished, four have changed, one is new."""


@pytest.mark.parametrize("asynchronous", [False, True], ids=["index", "aindex"])
@pytest.mark.parametrize("batch_size", [4, 100])
@pytest.mark.parametrize("cleanup", [None, "incremental", "full", "scoped_full"])
def test_indexing_ends_in_the_tree_of_one_build(cleanup, batch_size, asynchronous):
    settings = {**SETTINGS, "clusterer": "stable"}
    store = InMemoryVectorStore(HashEmbeddings())
    destination = RaptorIndex(
        embedding=HashEmbeddings(), llm=model(), vectorstore=store, **settings
    )
    records = InMemoryRecordManager("pages")
    records.create_schema()

    def feed(documents: list[Document]) -> tuple[int, ...]:
        unnamed = [document.model_copy(update={"id": None}) for document in documents]
        shared: dict[str, Any] = {
            "cleanup": cleanup,
            "batch_size": batch_size,
            "source_id_key": "source",
            "key_encoder": "blake2b",
        }
        if asynchronous:
            done = asyncio.run(aindex(unnamed, records, destination, **shared))
        else:
            done = index(unnamed, records, destination, **shared)
        return done["num_added"], done["num_skipped"], done["num_deleted"]

    assert feed(FIRST) == (20, 0, 0)
    paid = len(prompts_of(destination))
    assert feed(FIRST) == (0, 20, 0)
    assert len(prompts_of(destination)) == paid
    gone = {None: 0, "incremental": 4, "scoped_full": 4, "full": 6}[cleanup]
    assert feed(FINAL) == (5, 14, gone)
    kept = destination.get(sorted(destination._index.documents))
    assert len(kept) == 25 - gone
    assert state(destination) == state(build(kept, **settings))
    assert set(store.store) == set(destination.tree.nodes)


# changes


def test_any_history_with_the_stable_clusterer_ends_in_the_tree_of_one_build():
    settings = {**SETTINGS, "clusterer": "stable"}
    for seed in range(6):
        draw, there = random.Random(seed), {}
        changed = RaptorIndex(embedding=HashEmbeddings(), llm=model(), **settings)
        for _ in range(5):
            new = [page(n, draw.randrange(3)) for n in draw.sample(range(25), 6)]
            changed.upsert(new)
            there.update({document.id: document for document in new})
            gone = draw.sample(sorted(map(str, there)), len(there) // 4)
            assert changed.delete([*gone, "unknown"])["succeeded"] == sorted(gone)
            for id_ in gone:
                del there[id_]
        assert state(changed) == state(build(list(there.values()), **settings)), seed


def test_a_change_pays_for_its_path_and_a_rebuild_for_what_moved():
    built = build([page(n) for n in range(60)])
    paid, before = len(prompts_of(built)), set(built.tree.nodes)
    built.upsert([page(60)])
    assert 0 < len(prompts_of(built)) - paid <= 8
    assert len(before - set(built.tree.nodes)) <= 6
    paid = len(prompts_of(built))
    change = built.rebuild()
    assert len(prompts_of(built)) - paid == change.new_summaries
    assert (change.added, change.updated, change.deleted) == ((), (), ())
    assert state(built) == state(build([page(n) for n in range(61)]))
    assert asyncio.run(built.arebuild()).new_summaries == 0


def test_documents_are_returned_equal_and_nothing_done_to_them_reaches_the_index():
    given = page(1).model_copy(deep=True)
    given.metadata["tags"] = ["old"]
    original = given.model_copy(deep=True)
    built = build([given, page(2)])
    before = state(built)
    given.page_content = "Nothing."
    given.metadata["tags"].append("new")
    (got,) = built.get(["page-1"])
    assert got == original
    got.metadata["tags"].clear()
    for found in built.invoke("boats"):
        found.metadata.get("tags", []).append("found")
        found.metadata["leaves"].clear()
        found.metadata["doc_ids"].clear()
    assert built.get(["page-1"]) == [original]
    assert state(built) == before


async def test_ids_that_are_not_there_are_passed_over_and_none_at_all_is_refused():
    built = build(PAGES[:3])
    nothing = {"num_deleted": 0, "succeeded": [], "num_failed": 0, "failed": []}
    assert built.delete(["nowhere"]) == nothing
    assert await built.adelete([]) == nothing
    assert built.get(["nowhere"]) == []
    with pytest.raises(InvalidParameterError, match="ids must be a list of document ids"):
        built.delete()
    with pytest.raises(ValueError, match="ids must be a list"):
        await built.adelete()
    with pytest.raises(InvalidDocumentError, match="same id 'page-4'"):
        built.upsert([page(4), page(4, 1)])
    assert sorted(built._index.documents) == ["page-0", "page-1", "page-2"]


async def test_a_cancelled_build_changes_nothing_and_is_resumed(tmp_path):
    started = asyncio.Event()

    class Slow(ScriptedChatModel):
        async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
            if len(self.prompts) >= 6:
                started.set()
                await asyncio.sleep(60)
            return self._generate(messages)

    path, slow, store = (
        tmp_path / "j.db",
        Slow(reply=summary),
        InMemoryVectorStore(HashEmbeddings()),
    )
    built = RaptorIndex(
        embedding=HashEmbeddings(), llm=slow, journal=path, vectorstore=store, **SETTINGS
    )
    building = asyncio.create_task(built.aupsert(PAGES))
    await started.wait()
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert (len(built.tree), built.get(["page-1"]), store.store) == (0, [], {})
    paid = len(slow.prompts)
    assert paid >= 6
    # The sync driver goes on where the other was; calls in flight may be paid for again.
    built.upsert(PAGES)
    assert len(set(slow.prompts)) == 16
    assert len(slow.prompts) <= 16 + built.max_concurrency
    assert state(built) == state(build())


async def test_cancelling_does_not_wait_for_a_call_that_cannot_be_cancelled():
    entered, release = threading.Event(), threading.Event()

    def wait(_: Any) -> str:
        entered.set()
        release.wait(60)
        return "Late."

    built = RaptorIndex(embedding=HashEmbeddings(), llm=RunnableLambda(wait), **SETTINGS)
    building = asyncio.create_task(built.aupsert(PAGES))
    await asyncio.to_thread(entered.wait, 20)
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(building, 10)
    release.set()
    assert len(built.tree) == 0


async def test_sync_calls_work_inside_a_running_loop():
    built = build(journal=None, max_concurrency=3)
    built.upsert([page(31)])
    assert built.invoke("boats in the harbour", k=1)[0].metadata["level"] >= 0
    assert state(build(PAGES[:9])) == state(
        await RaptorIndex.afrom_documents(PAGES[:9], HashEmbeddings(), llm=model(), **SETTINGS)
    )


async def test_a_build_does_not_block_the_event_loop():
    gaps, done = [], asyncio.Event()

    async def tick() -> None:
        last = time.perf_counter()
        while not done.is_set():
            await asyncio.sleep(0.005)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    def write(prompt: Any) -> str:
        time.sleep(0.1)
        return summary(str(prompt))

    store = ListStore(HashEmbeddings())
    built = RaptorIndex(
        embedding=HashEmbeddings(), llm=RunnableLambda(write), vectorstore=store, **SETTINGS
    )
    ticking = asyncio.create_task(tick())
    await built.aupsert(PAGES)
    done.set()
    await ticking
    assert max(gaps) < 0.25
    assert len(gaps) > 20
    assert len(store.rows) == len(built.tree)


async def test_changes_from_many_tasks_are_all_kept():
    store = InMemoryVectorStore(HashEmbeddings())
    changed = RaptorIndex(
        embedding=HashEmbeddings(),
        llm=model(),
        vectorstore=store,
        **{**SETTINGS, "clusterer": "stable"},
    )
    await asyncio.gather(*(changed.aupsert([page(n)]) for n in range(8)))
    assert state(changed) == state(build(PAGES[:8], clusterer="stable"))
    assert set(store.store) == set(changed.tree.nodes)


# callbacks


class Watch(BaseCallbackHandler):
    def __init__(self) -> None:
        self.starts: list[list[str]] = []
        self.parents: list[Any] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.starts.append(kwargs["tags"])
        self.parents.append(kwargs["parent_run_id"])


async def test_callbacks_and_config_reach_every_call_of_the_model():
    bound, given, around = Watch(), Watch(), Watch()
    llm = model().with_config(callbacks=[bound], tags=["bound"])
    index = RaptorIndex(embedding=HashEmbeddings(), llm=llm, **SETTINGS)
    config = {"callbacks": [given], "tags": ["given"], "run_id": "0" * 32}
    index.upsert(PAGES[:5], config=config)
    await index.aupsert(PAGES[5:7], config=config)
    index.delete(["page-6"], config=config)
    index.rebuild(config=config)
    assert len(bound.starts) == len(given.starts) > 5
    assert all({"bound", "given"} <= set(tags) for tags in given.starts)

    step = RunnableLambda(index.upsert)
    step.invoke([page(9)], {"callbacks": [around], "tags": ["around"]})
    assert around.starts
    assert None not in around.parents


# a vector store in step


class StrictStore(ListStore):
    """Refuses rows that many stores cannot take, and ids it does not know."""

    def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        known = {row.id for row, _ in self.rows}
        for document, id_ in zip(documents, kwargs["ids"], strict=True):
            assert document.id == id_
            assert id_ not in known, "the store does not overwrite"
            for key, value in document.metadata.items():
                assert isinstance(key, str)
                assert type(value) in (str, int, float, bool), (key, value)
        return super().add_documents(documents)

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        assert ids
        known = {row.id for row, _ in self.rows}
        assert known.issuperset(ids)
        self.rows = [row for row in self.rows if row[0].id not in ids]
        return True


def rows_of(store: ListStore) -> dict[str, str]:
    return {str(row.id): row.page_content for row, _ in store.rows}


def nodes_of(built: RaptorIndex) -> dict[str, str]:
    return {node.id: node.text for node in built.tree.nodes.values()}


def test_a_strict_store_holds_the_nodes_after_every_change():
    store, draw = StrictStore(HashEmbeddings()), random.Random(3)
    odd = {"tags": ["a"], "none": None, "set": {1}, "level": "high", "ratio": 0.5, "ok": True}
    pages = [page(n) for n in range(12)]
    for document in pages:
        document.metadata.update(odd)
    changed = build(pages, vectorstore=store)
    for step in range(8):
        assert rows_of(store) == nodes_of(changed)
        changed.upsert([page(draw.randrange(15), step) for _ in range(1)])
        changed.delete([f"page-{draw.randrange(15)}"])
    changed.rebuild()
    assert rows_of(store) == nodes_of(changed)
    for row, _ in store.rows:
        node = changed.tree.nodes[str(row.id)]
        assert (row.metadata["level"], row.metadata["tokens"]) == (node.level, node.tokens)
        assert row.metadata.get("doc_id", node.doc_ids) in (node.doc_ids[0], node.doc_ids)


def test_rows_that_are_not_the_trees_are_left_alone_and_changed_metadata_is_written():
    store = InMemoryVectorStore(HashEmbeddings())
    store.add_documents([Document("Another.", id="other")])
    built = build(PAGES[:5], vectorstore=store)
    changed = page(2).model_copy(update={"metadata": {"source": "moved.md", "lang": "en"}})
    paid = len(prompts_of(built))
    built.upsert([changed])
    assert len(prompts_of(built)) == paid
    assert set(store.store) == {"other", *built.tree.nodes}
    moved = [
        d for d in store.get_by_ids(list(built.tree.nodes)) if d.metadata.get("doc_id") == "page-2"
    ]
    assert [row.metadata["source"] for row in moved] == ["moved.md"] * 3
    built.delete([f"page-{n}" for n in range(5)])
    assert set(store.store) == {"other"}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("method", ["add_documents", "delete"])
def test_a_store_that_failed_is_made_up_for_by_the_next_change(method, asynchronous):
    class Failing(StrictStore):
        broken = False

        def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
            if self.broken and method == "add_documents":
                raise ConnectionError("gone")
            return super().add_documents(documents, **kwargs)

        def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
            return False if self.broken and method == "delete" else super().delete(ids)

    store = Failing(HashEmbeddings())
    built = build(PAGES[:9], vectorstore=store)
    store.broken = True
    with pytest.raises((ConnectionError, StoreError), match=r"gone|did not delete"):
        built.upsert([page(3, 1)])
    assert built.get(["page-3"]) == [page(3, 1)]
    assert rows_of(store) != nodes_of(built)
    store.broken = False
    paid = len(prompts_of(built))
    if asynchronous:
        asyncio.run(built.aupsert([]))
    else:
        built.delete(["nowhere"])
    assert rows_of(store) == nodes_of(built)
    assert len(prompts_of(built)) == paid


async def test_overlapping_changes_leave_the_store_in_step():
    class Yielding(InMemoryVectorStore):
        async def aadd_documents(
            self, documents: list[Document], *args: Any, **kw: Any
        ) -> list[str]:
            for _ in range(random.randrange(5)):
                await asyncio.sleep(0.001)
            return self.add_documents(documents, *args, **kw)

        async def adelete(self, ids: Sequence[str] | None = None, **kwargs: Any) -> None:
            for _ in range(random.randrange(5)):
                await asyncio.sleep(0.001)
            self.delete(ids)

    store = Yielding(HashEmbeddings())
    changed = build(PAGES[:6], vectorstore=store)
    for _ in range(4):
        await asyncio.gather(
            changed.adelete(["page-1", "page-9"]),
            changed.aupsert([page(1), page(9)]),
            changed.aupsert([page(2, random.randrange(9))]),
            asyncio.to_thread(changed.upsert, [page(1)]),
        )
        assert set(store.store) == set(changed.tree.nodes)


# save and load


def test_a_saved_index_is_loaded_equal_without_a_model_and_goes_on(tmp_path):
    store = InMemoryVectorStore(HashEmbeddings())
    built = build(vectorstore=store)
    built.save(tmp_path / "tree")
    embedding, asked = HashEmbeddings(), Counter(store.embedding.calls)  # type: ignore[attr-defined]
    loaded = RaptorIndex.load(tmp_path / "tree", embedding, vectorstore=store, **SETTINGS)
    assert (embedding.calls, store.embedding.calls) == (Counter(), asked)  # type: ignore[attr-defined]
    assert state(loaded) == state(built)
    assert loaded.statistics() == built.statistics()
    with pytest.raises(InvalidParameterError, match="llm must be a language model"):
        loaded.upsert([page(31)])

    llm = model()
    loaded = RaptorIndex.load(tmp_path / "tree", embedding, llm=llm, vectorstore=store, **SETTINGS)
    for changed in (built, loaded):
        changed.upsert([page(31)])
    assert state(loaded) == state(built)
    assert 0 < len(llm.prompts) < 8
    assert set(store.store) == set(loaded.tree.nodes)


def test_a_loaded_index_fills_a_store_that_lacks_its_nodes(tmp_path):
    built = build()
    built.save(tmp_path / "tree")
    store = InMemoryVectorStore(HashEmbeddings())
    RaptorIndex.load(tmp_path / "tree", HashEmbeddings(), vectorstore=store, **SETTINGS)
    assert set(store.store) == set(built.tree.nodes)
    silent = StrictStore(HashEmbeddings())
    RaptorIndex.load(tmp_path / "tree", HashEmbeddings(), vectorstore=silent, **SETTINGS)
    assert silent.rows == []


@pytest.mark.parametrize(
    "other",
    [{"chunk_size": 21}, {"scope": "document"}, {"max_levels": 1}, {"max_cluster_tokens": 500}],
)
def test_loading_with_another_setting_is_refused(other, tmp_path):
    build(PAGES[:3]).save(tmp_path / "tree")
    (name,) = other
    with pytest.raises(InvalidParameterError, match=f"{name} must be"):
        RaptorIndex.load(tmp_path / "tree", HashEmbeddings(), **{**SETTINGS, **other})
    with pytest.raises(InvalidParameterError, match=f"{name} must be"):
        RaptorIndex(
            embedding=HashEmbeddings(),
            tree_index=build(PAGES[:3]).tree_index,
            **{**SETTINGS, **other},
        )


def test_a_folder_without_a_tree_or_of_another_tokenizer_is_refused(tmp_path):
    with pytest.raises(IndexFormatError):
        RaptorIndex.load(tmp_path, HashEmbeddings())
    build(PAGES[:3]).save(tmp_path / "tree")
    with pytest.raises(IndexFormatError, match="other leaves"):
        RaptorIndex.load(tmp_path / "tree", HashEmbeddings(), length_function=len, **SETTINGS)


# searching


def test_collapsed_takes_the_best_of_all_levels_that_fit():
    embedding = HashEmbeddings()
    built = build(embedding=embedding)
    query = embedding.vector("boats in the harbour")
    ranked = sorted(
        built.tree.nodes.values(), key=lambda n: -cosine(query, embedding.vector(n.text))
    )
    room, best = 150, []
    for node in ranked:
        if node.tokens <= room:
            best.append(node.id)
            room -= node.tokens
    found = RaptorRetriever(index=built, token_budget=150).invoke("boats in the harbour")
    scores = [document.metadata["score"] for document in found]
    assert sorted(scores, reverse=True) == scores
    assert sum(document.metadata["tokens"] for document in found) <= 150
    assert scores == pytest.approx(
        [cosine(query, embedding.vector(built.tree.nodes[id_].text)) for id_ in best]
    )
    assert scores[0] == pytest.approx(cosine(query, embedding.vector(found[0].page_content)))


def test_every_document_tells_where_its_text_comes_from():
    built = build()
    sources = {str(document.id): document for document in PAGES}
    levels = set()
    for found in RaptorRetriever(index=built, token_budget=None).invoke("boats"):
        metadata, node = found.metadata, built.tree.nodes[str(found.id)]
        levels.add(metadata["level"])
        assert metadata["children"] == list(node.children)
        assert metadata["doc_ids"] == sorted({leaf["doc_id"] for leaf in metadata["leaves"]})
        assert metadata["lang"] == "en"
        for leaf in metadata["leaves"]:
            text = sources[leaf["doc_id"]].page_content[leaf["start_index"] : leaf["end_index"]]
            assert text == built.tree.nodes[leaf["id"]].text
        if metadata["level"]:
            assert ("source" in metadata) == (len(metadata["doc_ids"]) == 1)
            assert "start_index" not in metadata
        else:
            assert metadata["children"] == []
            assert metadata["source"] == f"{metadata['doc_id']}.md"
            source = sources[metadata["doc_id"]].page_content
            assert source[metadata["start_index"] : metadata["end_index"]] == found.page_content
    assert levels == {0, 1, 2, 3}


async def test_traversal_goes_down_from_the_roots_by_the_best_of_each_layer():
    built = build()
    walk = RaptorRetriever(index=built, mode="traversal", token_budget=None)
    found = walk.invoke("boats in the harbour", k=2)
    assert [document.metadata["level"] for document in found] == [3, 2, 2, 1, 1, 0, 0]
    taken = {str(document.id) for document in found}
    for document in found[1:]:
        assert taken.intersection(built.tree.parents[str(document.id)])
    assert found == await walk.ainvoke("boats in the harbour", k=2)
    assert len(walk.invoke("boats")) == 1 + 2 + 5 + 5
    two = RaptorRetriever(index=built, mode="traversal", depth=2).invoke("boats")
    assert [document.metadata["level"] for document in two] == [3, 2, 2]
    low = RaptorRetriever(index=built, mode="traversal", start_level=1, k=1).invoke("boats")
    assert [document.metadata["level"] for document in low] == [1, 0]
    assert built.configurable_fields(mode=ConfigurableField(id="mode")).invoke(
        "boats", {"configurable": {"mode": "traversal"}}
    ) == RaptorRetriever(index=built, mode="traversal").invoke("boats")


def test_a_search_may_keep_to_levels_and_to_keywords():
    embedding = HashEmbeddings()
    built = build(embedding=embedding)
    found = RaptorRetriever(index=built, levels=[1, 2]).invoke("boats")
    assert {document.metadata["level"] for document in found} == {1, 2}
    asked = embedding.calls["embed_query"]
    by_words = RaptorRetriever(index=built, scoring="bm25", levels=[0], k=3).invoke(
        "secret7v0 boats"
    )
    assert all("secret7v0" in document.page_content for document in by_words)
    assert embedding.calls["embed_query"] == asked
    with pytest.raises(InvalidParameterError, match="levels must be at most 3"):
        RaptorRetriever(index=built, levels=[9]).invoke("boats")


def test_redundancy_puts_off_what_repeats_the_nodes_before_it():
    embedding = HashEmbeddings()
    built = build(embedding=embedding, llm=None, summarizer="extractive")
    question = "how many boats are in the harbour of secret7v0"
    scores = node_scores(built.tree, embedding.vector(question))
    taken = {}
    for redundancy in (None, 0.3):
        retriever = RaptorRetriever(index=built, redundancy=redundancy, token_budget=200)
        taken[redundancy] = [document.id for document in retriever.invoke(question)]
        own = collapsed(built.tree, scores, redundancy=redundancy, token_budget=200)
        assert taken[redundancy] == [found.node.id for found in own]
    assert taken[None] != taken[0.3]


async def test_the_index_answers_as_its_retriever_does_and_the_retriever_follows_it():
    built = build()
    retriever = RaptorRetriever(index=built)
    assert retriever.invoke("boats") == built.invoke("boats") == await built.ainvoke("boats")
    assert retriever.invoke("boats", k=2) == built.invoke("boats")[:2]
    assert await retriever.ainvoke("boats", k=2) == await built.ainvoke("boats", k=2)
    built.upsert([Document("A zeppelin flies over.", id="new")])
    (found,) = retriever.invoke("A zeppelin flies over.", k=1)
    assert found.metadata["doc_ids"] == ["new"]


async def test_an_empty_index_finds_nothing_and_asks_nobody():
    embedding = HashEmbeddings()
    empty = RaptorIndex(embedding=embedding)
    for mode in ("collapsed", "traversal"):
        for scoring in ("cosine", "bm25"):
            retriever = RaptorRetriever(index=empty, mode=mode, scoring=scoring)
            assert retriever.invoke("anything") == await retriever.ainvoke("anything") == []
    assert not embedding.calls
    built = RaptorIndex(embedding=embedding, llm=model())
    built.upsert([Document(" \n", id="blank"), Document("", id="empty")])
    assert built.invoke("anything") == []
    assert built.statistics().nodes == ()
    assert [document.id for document in built.get(["blank", "empty"])] == ["blank", "empty"]
    assert RaptorRetriever(vectorstore=InMemoryVectorStore(embedding)).invoke("anything") == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "sideways"}, 'mode must be "collapsed" or "traversal"'),
        ({"scoring": "tfidf"}, 'scoring must be "cosine" or "bm25"'),
        ({"token_budget": 0}, "token_budget must be"),
        ({"k": 0}, "top_k must be|k must be"),
        ({"k": True}, "top_k must be|k must be"),
        ({"mode": "traversal", "depth": 0}, "depth must be an integer"),
        ({"mode": "traversal", "start_level": -1}, "start_level must be an integer"),
        ({"depth": 1}, "depth must be None unless mode is 'traversal'"),
        ({"start_level": 1}, "start_level must be None unless mode is 'traversal'"),
        ({"mode": "traversal", "levels": [1]}, "levels must be None unless mode is 'collapsed'"),
        ({"mode": "traversal", "redundancy": 1.0}, "redundancy must be None unless"),
        ({"levels": []}, "levels must be"),
        ({"redundancy": 2}, "redundancy must be"),
    ],
)
def test_a_search_setting_out_of_range_is_refused(settings, message):
    empty = RaptorIndex(embedding=HashEmbeddings())
    with pytest.raises(InvalidParameterError, match=message):
        RaptorRetriever(index=empty, **settings)
    with pytest.raises(InvalidParameterError, match=message):
        RaptorIndex(embedding=HashEmbeddings(), **settings)
    if "k" in settings:
        with pytest.raises(InvalidParameterError, match=message):
            empty.invoke("x", **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"llm": "gpt"}, "llm must be a language model"),
        ({"clusterer": "nearest"}, "clusterer must be"),
        ({"summarizer": "abstractive"}, "summarizer must be"),
        ({"summary_tokens": 0}, "summary_tokens must be"),
        ({"scope": "page"}, "scope must be"),
        ({"chunk_size": 0}, "chunk_size must be"),
        ({"max_cluster_tokens": -1}, "max_cluster_tokens must be"),
        ({"max_levels": 0}, "max_levels must be"),
        ({"max_concurrency": 0}, "max_concurrency must be"),
        ({"max_llm_calls": -1}, "max_llm_calls must be"),
        ({"journal": 3}, "journal must be"),
        (
            {
                "summarizer": "extractive",
                "summary_prompt": PromptTemplate.from_template("{context}"),
            },
            "summary_prompt must be None with a summarizer",
        ),
    ],
)
def test_a_setting_of_the_tree_out_of_range_is_refused(settings, message):
    with pytest.raises(InvalidParameterError, match=message):
        RaptorIndex(embedding=HashEmbeddings(), **settings)


def test_unknown_settings_and_two_or_no_sources_are_refused():
    empty = RaptorIndex(embedding=HashEmbeddings())
    with pytest.raises(ValueError, match="top_k"):
        RaptorRetriever(index=empty, top_k=3)
    with pytest.raises(ValueError, match="batch"):
        RaptorIndex(embedding=HashEmbeddings(), batch=3)
    store = InMemoryVectorStore(HashEmbeddings())
    for sources in ({}, {"index": empty, "vectorstore": store}):
        with pytest.raises(InvalidParameterError, match="vectorstore must be given when index"):
            RaptorRetriever(**sources)
    for settings in ({"mode": "traversal"}, {"scoring": "bm25"}, {"redundancy": 0.5}):
        with pytest.raises(InvalidParameterError, match="with a vectorstore"):
            RaptorRetriever(vectorstore=store, **settings)


# searching a store


@pytest.mark.parametrize("kind", [InMemoryVectorStore, ListStore])
async def test_a_filled_store_answers_as_the_tree_does(kind):
    store = kind(HashEmbeddings())
    built = build(vectorstore=store)
    for settings in ({}, {"token_budget": 150}, {"k": 2}, {"levels": [1]}, {"token_budget": 5}):
        served = RaptorRetriever(vectorstore=store, **settings)
        found = served.invoke("how many boats")
        own = RaptorRetriever(index=built, **settings).invoke("how many boats")
        assert _scores(found) == pytest.approx(_scores(own), abs=1e-6)
        assert sum(d.metadata["tokens"] for d in found) == sum(d.metadata["tokens"] for d in own)
        assert _scores(await served.ainvoke("how many boats")) == _scores(found)
    for document in RaptorRetriever(vectorstore=store).invoke("boats"):
        if document.metadata["level"] == 0:
            assert document.metadata["source"] == f"{document.metadata['doc_id']}.md"


def _scores(documents: list[Document]) -> list[float]:
    return [document.metadata["score"] for document in documents]


def test_a_store_is_asked_for_more_until_the_budget_is_full():
    store = ListStore(HashEmbeddings())
    built = build(vectorstore=store)
    assert len(built.tree) == 106
    RaptorRetriever(vectorstore=store, token_budget=100).invoke("boats")
    assert store.asked == [32]
    store.asked.clear()
    everything = RaptorRetriever(vectorstore=store, token_budget=None).invoke("boats")
    assert (len(everything), store.asked) == (106, [32, 128])
    store.asked.clear()
    store.most = 40
    assert len(RaptorRetriever(vectorstore=store, token_budget=None).invoke("boats")) == 40
    assert store.asked == [32, 128]


def test_a_store_without_scores_or_with_its_own_numbers_is_searched():
    store = ListStore(HashEmbeddings(), scores=False)
    build(vectorstore=store)
    for row, _ in store.rows:
        row.metadata["level"] = float(row.metadata["level"])
        row.metadata["tokens"] = np.int64(row.metadata["tokens"])
    found = RaptorRetriever(vectorstore=store, k=4, levels=[0]).invoke("boats")
    assert [document.metadata["score"] for document in found] == [None] * 4
    assert {document.metadata["level"] for document in found} == {0}


def test_rows_that_are_no_nodes_are_an_error_unless_filtered():
    store = InMemoryVectorStore(HashEmbeddings())
    build(PAGES[:3], vectorstore=store)
    store.add_documents([Document("Boats of another kind.", id="other")])
    with pytest.raises(StoreError, match="row other of the vector store has no integer"):
        RaptorRetriever(vectorstore=store).invoke("Boats of another kind.")
    kept = {"filter": lambda document: "level" in document.metadata}
    found = RaptorRetriever(vectorstore=store, search_kwargs=kept).invoke("Boats of another kind.")
    assert "other" not in {document.id for document in found}
    with pytest.raises(InvalidParameterError, match="search_kwargs must be without k"):
        RaptorRetriever(vectorstore=store, search_kwargs={"k": 3})


# in chains and for agents


async def test_it_stands_in_chains_as_any_retriever_does():
    built = build()
    retriever = RaptorRetriever(index=built, k=3)
    chain = {"context": retriever, "question": RunnablePassthrough()} | RunnableLambda(
        lambda inputs: [d.metadata["level"] for d in inputs["context"]]
    )
    assert chain.invoke("boats") == [d.metadata["level"] for d in built.invoke("boats", k=3)]
    assert await chain.abatch(["boats"]) == [chain.invoke("boats")]
    seen: list[str] = []

    class Seen(BaseCallbackHandler):
        def on_retriever_start(self, serialized: Any, query: str, **kwargs: Any) -> None:
            seen.append(f"{query} {kwargs['metadata']['ls_embedding_provider']}")

    retriever.invoke("boats", {"callbacks": [Seen()]})
    built.invoke("gulls", {"callbacks": [Seen()]})
    assert seen == ["boats HashEmbeddings", "gulls HashEmbeddings"]


def test_the_two_turn_reader_reads_its_nodes():
    built = build()
    reader = replying(lambda prompt: "Forty-two boats." if "<document" in prompt else "42")
    answer = create_longrag_chain(RaptorRetriever(index=built), reader).invoke(
        {"input": "How many boats?"}
    )
    assert answer["answer"] in ("42", "Forty-two boats.")
    assert len(answer["context"]) > 3
    for document in answer["context"]:
        assert document.page_content.split("\n")[0] in reader.prompts[0]


async def test_an_agents_tool_gives_nodes_within_its_budget():
    tool = create_longrag_tool(RaptorRetriever(index=build()), token_budget=60)
    call = {"name": tool.name, "args": {"query": "boats"}, "id": "1", "type": "tool_call"}
    for message in (tool.invoke(call), await tool.ainvoke(call)):
        assert message.artifact
        assert all("leaves" in document.metadata for document in message.artifact)
