"""A tree in LlamaIndex's storage: built, killed, resumed, grown, pruned, saved and loaded."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Sequence
from hashlib import sha256
from inspect import getattr_static
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core import (
    Document,
    PromptTemplate,
    Settings,
    StorageContext,
    SummaryIndex,
    load_index_from_storage,
)
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.data_structs.registry import INDEX_STRUCT_TYPE_TO_INDEX_STRUCT_CLASS
from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.registry import INDEX_STRUCT_TYPE_TO_INDEX_CLASS
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.prompts import ChatPromptTemplate
from llama_index.core.rate_limiter import BaseRateLimiter
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from llama_index.core.vector_stores.utils import node_to_metadata_dict

from llama_index_longrag import LongRAGIndex, MaxPRetriever, RaptorIndex
from llama_index_longrag._documents import WholeDocuments
from llama_index_longrag._raptor_struct import RaptorStruct
from llama_index_longrag._summaries import embed_identity, llm_identity
from llama_index_longrag.raptor import register
from longrag.calls import Generate, ask
from longrag.errors import (
    CallLimitError,
    EmbeddingError,
    IndexFormatError,
    InvalidDocumentError,
    InvalidParameterError,
    StoreError,
    SummaryError,
)
from longrag.indexing.partitions import ContiguousClusterer
from longrag.indexing.summaries import LlmSummarizer
from longrag.journal import Journal
from tests.llama_index_longrag.conftest import HashEmbedding, ScriptedLLM, tokenizer

TOPICS = ["harbour", "orchard", "railway", "glacier", "library"]
SETTINGS: dict[str, Any] = {"clusterer": "contiguous", "chunk_size": 24}


def story(number: int, version: int = 0, **metadata: Any) -> Document:
    topic = TOPICS[number % len(TOPICS)]
    facts = " ".join(
        f"The {topic} of town {number} kept record {n} of its keepers." for n in range(8)
    )
    return Document(
        id_=f"story-{number:02d}",
        text=f"{facts} Version {version} of story {number} ends here.",
        metadata={"title": f"The {topic} {number}", "version": version, **metadata},
        excluded_embed_metadata_keys=["version"],
        excluded_llm_metadata_keys=["version"],
    )


STORIES = [story(number) for number in range(8)]


def summary_of(prompt: str) -> str:
    """Name the topics of a prompt, and the prompt."""
    topics = sorted(topic for topic in TOPICS if topic in prompt)
    return f"About {' '.join(topics)}: {sha256(prompt.encode()).hexdigest()[:12]}."


def writer(**settings: Any) -> ScriptedLLM:
    return ScriptedLLM(summary_of, **settings)


def build(documents: Sequence[Document] = STORIES, **settings: Any) -> RaptorIndex:
    settings.setdefault("llm", writer())
    settings.setdefault("embed_model", HashEmbedding())
    return RaptorIndex.from_documents(list(documents), **{**SETTINGS, **settings})


def same(one: RaptorIndex, other: RaptorIndex) -> bool:
    return list(one.tree.nodes.items()) == list(other.tree.nodes.items()) and np.array_equal(
        one.tree.vectors, other.tree.vectors
    )


def found(index: RaptorIndex, **settings: Any) -> list[tuple[str, float, str, Any]]:
    results = index.as_retriever(**settings).retrieve("the keepers of town 3")
    return [(r.node_id, r.score, r.text, r.metadata) for r in results]


def stored(index: RaptorIndex) -> tuple[Any, ...]:
    """What the stores hold, without hashes of documents, which nodes of one's own do not have."""
    docstore = index.docstore.to_dict()
    return (
        docstore.get("docstore/data", {}),
        docstore.get("docstore/ref_doc_info", {}),
        index.storage_context.vector_store.to_dict(),
        index.index_struct.documents,
        index.index_struct.nodes,
        index.index_struct.vectors,
    )


def reload(index: RaptorIndex, folder: Path, **settings: Any) -> RaptorIndex:
    index.storage_context.persist(folder)
    context = StorageContext.from_defaults(persist_dir=str(folder))
    return load_index_from_storage(
        context, **{"embed_model": HashEmbedding(), "llm": writer(), **settings}
    )


def summaries(index: RaptorIndex) -> int:
    return sum(node.level > 0 for node in index.tree.nodes.values())


class TestBuilding:
    def test_leaves_are_verbatim_pieces_of_the_documents_and_summaries_the_models_words(self):
        llm = writer()
        index = build(llm=llm)
        texts = {document.id_: document.text for document in STORIES}
        leaves = [node for node in index.tree.nodes.values() if not node.level]
        assert len(leaves) > 2 * len(STORIES)
        for leaf in leaves:
            assert leaf.text == texts[leaf.doc_ids[0]][slice(*leaf.span)]
            assert leaf.tokens <= 24
        made = [node.text for node in index.tree.nodes.values() if node.level]
        assert sorted(made) == sorted(map(summary_of, llm.prompts))
        assert [len(index.tree.roots), summaries(index)] == [1, len(llm.prompts)]

    def test_statistics_are_those_of_the_tree(self):
        index = build()
        measured = index.statistics()
        assert sum(measured.nodes) == len(index.tree)
        assert measured.all_levels.summaries == summaries(index)

    def test_the_order_of_documents_makes_no_difference(self):
        shuffled = random.Random(3).sample(STORIES, len(STORIES))
        assert same(build(shuffled), build())

    @pytest.mark.parametrize("clusterer", ["fast", "graph", "stable"])
    def test_every_clusterer_has_a_name(self, clusterer):
        assert same(build(clusterer=clusterer), build(clusterer=clusterer))

    def test_a_clusterer_of_ones_own_is_taken(self, tmp_path):
        index = build(clusterer=ContiguousClusterer(size=3))
        assert summaries(index) > summaries(build())
        with pytest.raises(InvalidParameterError, match="clusterer must be given: the index was"):
            reload(index, tmp_path)
        loaded = reload(index, tmp_path, clusterer=ContiguousClusterer(size=3))
        assert same(loaded, index)
        with pytest.raises(InvalidParameterError, match=r"clusterer must be .*size=3"):
            reload(index, tmp_path, clusterer=ContiguousClusterer(size=4))

    def test_each_document_may_be_a_tree(self):
        index = build(scope="document")
        assert len(index.tree.roots) == len(STORIES)
        assert all(len(node.doc_ids) == 1 for node in index.tree.nodes.values())

    def test_a_users_own_chunks_are_leaves_as_they_are(self):
        splitter = SentenceSplitter(chunk_size=30, chunk_overlap=0, tokenizer=tokenizer)
        index = build(transformations=[splitter], chunk_size=None)
        chunks = splitter(STORIES)
        leaves = [node for node in index.tree.nodes.values() if not node.level]
        assert sorted(leaf.text for leaf in leaves) == sorted(chunk.text for chunk in chunks)
        assert len(leaves) > len(STORIES)

    def test_no_document_and_one_short_document_ask_no_model(self):
        llm = writer()
        assert len(build([], llm=llm).tree) == 0
        assert len(build([Document(text="Short.")], llm=llm).tree) == 1
        assert len(build([Document(text=" \n"), Document(text="")], llm=llm).tree) == 0
        assert llm.prompts == []

    def test_metadata_shown_to_embedders_counts_for_leaves(self):
        model = HashEmbedding()
        index = build(embed_model=model)
        asked = {text for _, text in model.asked}
        leaves = [node for node in index.tree.nodes.values() if not node.level]
        assert {f"title: {leaf.title}\n\n{leaf.text}" for leaf in leaves} <= asked
        assert {node.text for node in index.tree.nodes.values() if node.level} <= asked

    def test_the_prompt_shows_titles_and_asks_for_a_length(self):
        llm = writer()
        build(llm=llm, summary_tokens=40)
        assert "at most 30 words" in llm.prompts[0]
        assert '<passage title="The harbour 0">' in llm.prompts[0]

    def test_two_documents_of_one_id_are_refused(self):
        with pytest.raises(InvalidDocumentError, match="same id 'story-01'"):
            build([story(1), story(1, 1)])

    def test_it_is_an_index_as_others_are(self):
        index = build()
        assert isinstance(index, BaseIndex)
        assert index.index_struct.get_type() == "longrag_raptor"
        assert set(index.ref_doc_info) == {document.id_ for document in STORIES}
        assert index.index_struct_cls is RaptorStruct
        with pytest.raises(InvalidParameterError, match="a VectorStoreIndex or a LongRAGIndex"):
            MaxPRetriever(index=index)


class TestSummarizers:
    def test_extractive_summaries_quote_the_text_and_need_no_language_model(self):
        index = build(llm=None, summarizer="extractive", summary_tokens=30)
        text = " ".join(document.text for document in STORIES)
        for node in index.tree.nodes.values():
            assert node.tokens <= 30
            assert [line for line in node.text.split("\n") if line not in text] == []
        assert summaries(index) > 0

    @pytest.mark.parametrize("summarizer", [None, "llm", LlmSummarizer(summary_tokens=50)])
    def test_the_global_language_model_is_the_default(self, summarizer):
        Settings.llm = writer()
        index = build(llm=None, summarizer=summarizer)
        assert len(Settings.llm.prompts) == summaries(index)

    def test_a_summarizer_of_ones_own_asks_the_model_it_is_given(self):
        def short(passages, *, sources):
            return (yield from ask(Generate(f"{{text}} {len(passages)} passages", sources)))

        llm = writer()
        build(llm=llm, summarizer=short)
        assert "{text} 7 passages" in llm.prompts

    def test_with_a_journal_such_a_summarizer_must_name_its_model(self, tmp_path):
        def short(passages, *, sources):
            return (yield from ask(Generate("shorten", sources)))

        Settings.llm = writer()
        with pytest.raises(InvalidParameterError, match="llm must be given"):
            build(llm=None, summarizer=short, journal=tmp_path / "journal")

    def test_a_template_of_the_framework_is_the_prompt(self):
        llm = writer()
        template = PromptTemplate("Shorten to {max_words}: {context_str}")
        build(llm=llm, summary_template=template)
        assert llm.prompts[0].startswith("Shorten to 75: <passage")
        build(llm=llm, summary_template=PromptTemplate("Of {context_str}"))
        assert llm.prompts[-1].startswith("Of <passage")

    def test_a_chat_template_reaches_a_chat_model_as_messages(self):
        llm = writer(is_chat=True)
        template = ChatPromptTemplate.from_messages(
            [("system", "You shorten."), ("user", "{context_str}")]
        )
        index = build(llm=llm, summary_template=template)
        assert llm.prompts[0].startswith("system: You shorten.\nuser: <passage")
        assert summaries(index) == len(llm.prompts)

    def test_slots_in_a_document_stay_text(self):
        llm = writer()
        odd = Document(id_="odd", text="Mind {max_words} and {context_str} here. " * 8)
        build([odd], llm=llm)
        assert "Mind {max_words} and {context_str} here." in llm.prompts[0]

    @pytest.mark.parametrize(
        "settings",
        [
            {"summary_template": PromptTemplate("No slot.")},
            {"summary_template": "{context_str}"},
            {"summarizer": "extractive", "summary_template": PromptTemplate("{context_str}")},
            {"summarizer": "abstractive"},
            {"summarizer": 3},
            {"summary_tokens": 0},
            {"clusterer": "slow"},
            {"scope": "page"},
            {"chunk_size": 0},
            {"max_cluster_tokens": -1},
            {"max_levels": 0},
            {"num_workers": 0},
            {"max_llm_calls": -1},
            {"journal": 7},
        ],
        ids=str,
    )
    def test_a_setting_out_of_range_is_refused_before_anything_is_paid(self, settings):
        model, llm = HashEmbedding(), writer()
        name = list(settings)[-1]
        with pytest.raises(InvalidParameterError, match=name):
            build(embed_model=model, llm=llm, **settings)
        assert [model.asked, llm.prompts] == [[], []]

    def test_an_unknown_setting_is_refused(self):
        with pytest.raises(TypeError, match="top_k"):
            build(top_k=3)
        with pytest.raises(TypeError, match="top_k"):
            RaptorIndex.estimate(STORIES, top_k=3)


class TestEstimate:
    def test_what_windows_cost_is_told_exactly(self):
        llm, model = writer(), HashEmbedding()
        expected = RaptorIndex.estimate(
            STORIES, **SETTINGS, llm=llm, embed_model=model, journal="nowhere", num_workers=2
        )
        assert [llm.prompts, model.asked, Path("nowhere").exists()] == [[], [], False]
        index = build(llm=llm, embed_model=model)
        assert expected.llm_calls == len(llm.prompts)
        assert expected.embedded_texts == len(index.tree)
        assert expected.leaves == index.statistics().nodes[0]
        first_layer = sum(len(tokenizer(p)) for p in llm.prompts if "harbour" in p)
        assert first_layer < expected.prompt_tokens

    def test_an_extractive_tree_costs_no_calls(self):
        assert RaptorIndex.estimate(STORIES, summarizer="extractive").llm_calls == 0

    def test_no_documents_cost_nothing(self):
        assert RaptorIndex.estimate([]).embedded_texts == 0


class Slow(ScriptedLLM):
    """Waits until so many calls are in flight at once; counts the most there ever were."""

    together: int = 8
    _in_flight: int = PrivateAttr(default=0)
    _most: int = PrivateAttr(default=0)
    _full: Any = PrivateAttr(default_factory=threading.Event)

    def _enter(self) -> None:
        with self._lock:
            self._in_flight += 1
            self._most = max(self._most, self._in_flight)
            if self._in_flight == self.together:
                self._full.set()

    def _leave(self) -> None:
        with self._lock:
            self._in_flight -= 1

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self._enter()
        self._full.wait(20)
        reply = self._reply(prompt)
        self._leave()
        return CompletionResponse(text=reply)

    @llm_completion_callback()
    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        self._enter()
        for _ in range(2000):
            if self._full.is_set():
                break
            await asyncio.sleep(0.01)
        reply = self._reply(prompt)
        self._leave()
        return CompletionResponse(text=reply)


class SyncOnly(Slow):
    """Has no async call of its own: CustomLLM's makes the sync one on the event loop."""


SyncOnly.acomplete = getattr_static(CustomLLM, "acomplete")

MANY = [story(number) for number in range(24)]


class TestCalls:
    def test_eight_workers_have_eight_calls_in_flight(self):
        llm = Slow(summary_of)
        index = build(MANY, llm=llm, num_workers=8)
        assert [llm._full.is_set(), llm._most] == [True, 8]
        assert same(index, build(MANY))

    @pytest.mark.parametrize("kind", [Slow, SyncOnly])
    async def test_eight_workers_have_eight_async_calls_in_flight(self, kind):
        llm = kind(summary_of)
        index = build([], llm=llm, num_workers=8)
        await index.arefresh_ref_docs(MANY)
        assert [llm._full.is_set(), llm._most] == [True, 8]
        assert same(index, build(MANY))

    def test_one_worker_has_one_call_in_flight(self):
        llm = Slow(summary_of, together=1)
        build(llm=llm, num_workers=1)
        assert llm._most == 1

    async def test_a_sync_build_runs_inside_a_running_loop(self):
        assert same(build(num_workers=4), build(num_workers=1))

    async def test_an_async_build_is_the_sync_one(self):
        llm, model = writer(), HashEmbedding()
        index = await RaptorIndex.afrom_documents(STORIES, llm=llm, embed_model=model, **SETTINGS)
        assert same(index, build())
        assert stored(index) == stored(build())
        assert {how for how, _ in model.asked} == {"atext"}
        assert index.refresh_ref_docs(STORIES) == [False] * len(STORIES)

    def test_the_rate_limiter_is_asked_for_every_call(self):
        class Counting(BaseRateLimiter):
            taken: int = 0

            def acquire(self, num_tokens: int = 0) -> None:
                self.taken += 1

            async def async_acquire(self, num_tokens: int = 0) -> None:
                self.taken += 1

        limiter = Counting()
        llm = writer(rate_limiter=limiter)
        build(llm=llm, num_workers=1)
        assert limiter.taken == len(llm.prompts) > 0

    @pytest.mark.parametrize("num_workers", [1, 4])
    def test_callbacks_and_events_are_seen_whatever_the_threads(self, num_workers):
        debug, names = LlamaDebugHandler(print_trace_on_end=False), []

        class Watch(BaseEventHandler):
            def handle(self, event: Any, **kwargs: Any) -> None:
                names.append(event.class_name())

        dispatcher, watch = get_dispatcher(), Watch()
        dispatcher.add_event_handler(watch)
        llm = writer()
        try:
            build(llm=llm, callback_manager=CallbackManager([debug]), num_workers=num_workers)
        finally:
            dispatcher.event_handlers.remove(watch)
        assert len(debug.get_event_pairs(CBEventType.LLM)) == len(llm.prompts)
        assert names.count("LLMPredictEndEvent") == len(llm.prompts)
        assert "EmbeddingEndEvent" in names

    def test_progress_is_shown_on_the_frameworks_bar(self, capsys):
        build(show_progress=True)
        shown = capsys.readouterr().err
        count = summaries(build())
        assert "Summarizing clusters" in shown
        assert f"{count}/{count}" in shown
        build()
        assert capsys.readouterr().err == ""


def fails_at(*numbers: int, error: Exception | None = None) -> ScriptedLLM:
    """A model whose calls of these numbers, from one, fail."""
    llm = ScriptedLLM("")

    def reply(prompt: str) -> str:
        if len(llm.prompts) in numbers:
            raise error or TimeoutError("too slow")
        return summary_of(prompt)

    llm._script = [reply]
    return llm


class TestFailures:
    def test_a_failed_build_names_the_cluster_and_touches_no_store(self, tmp_path):
        context = StorageContext.from_defaults()
        before = json.dumps(context.to_dict())
        with pytest.raises(SummaryError, match="too slow") as caught:
            build(llm=fails_at(2), storage_context=context, journal=tmp_path / "journal")
        assert caught.value.level == 1
        assert len(caught.value.children) == 7
        assert isinstance(caught.value.__cause__, TimeoutError)
        assert json.dumps(context.to_dict()) == before

    @pytest.mark.parametrize("number", [1, 2, 4])
    @pytest.mark.parametrize("num_workers", [1, 4])
    def test_a_resumed_build_pays_the_rest_once(self, number, num_workers, tmp_path):
        llm, model = fails_at(number), HashEmbedding()
        settings = {
            "llm": llm,
            "embed_model": model,
            "journal": tmp_path / "journal",
            "num_workers": num_workers,
        }
        with pytest.raises(SummaryError):
            build(**settings)
        index = build(**settings)
        assert len(llm.prompts) == summaries(index) + 1
        assert len(set(llm.prompts)) == summaries(index)
        texts = [text for _, text in model.asked]
        assert len(texts) == len(set(texts)) == len(index.tree)
        assert same(index, build())

    @pytest.mark.parametrize("reply", ["", " \n", "...", "\u3002"])
    def test_a_blank_reply_is_no_summary_and_is_asked_again(self, reply, tmp_path):
        llm = ScriptedLLM(reply)
        with pytest.raises(SummaryError, match="empty summary"):
            build(llm=llm, journal=tmp_path / "journal")
        llm._script = [summary_of]
        assert same(build(llm=llm, journal=tmp_path / "journal"), build())

    def test_a_model_that_is_busy_for_a_while_is_waited_out_by_running_again(self, tmp_path):
        class RateLimited(Exception):
            status_code = 429

        llm = fails_at(*range(2, 9), error=RateLimited("429 Too Many Requests"))
        failures: list[object] = []
        index = None
        while index is None:
            try:
                index = build(llm=llm, journal=tmp_path / "journal", num_workers=2)
            except SummaryError as error:
                failures.append(type(error.__cause__))
        assert set(failures) == {RateLimited}
        assert len(failures) < 8
        assert len(llm.prompts) == summaries(index) + 7
        assert same(index, build())

    def test_the_calls_allowed_are_made_and_the_rest_later(self, tmp_path):
        llm, context = writer(), StorageContext.from_defaults()
        settings = {"llm": llm, "journal": tmp_path / "journal", "storage_context": context}
        with pytest.raises(CallLimitError, match="max_llm_calls=2 is reached"):
            build(max_llm_calls=2, **settings)
        assert len(llm.prompts) == 2
        assert context.docstore.docs == {}
        index = build(max_llm_calls=summaries(build()) - 2, **settings)
        assert len(llm.prompts) == summaries(index)
        index.insert(story(9))

    @pytest.mark.parametrize("failure", [lambda v: [float("nan")] * len(v), lambda v: v[:3]])
    def test_unusable_vectors_are_refused(self, failure):
        class Broken(HashEmbedding):
            def _vector(self, how: str, text: str) -> list[float]:
                vector = super()._vector(how, text)
                return failure(vector) if len(self.asked) % 2 == 0 else vector

        context = StorageContext.from_defaults()
        with pytest.raises(EmbeddingError):
            build(embed_model=Broken(), storage_context=context)
        assert context.index_store.index_structs() == []

    @pytest.mark.parametrize(
        "change",
        [
            lambda index: index.insert(story(20)),
            lambda index: index.update_ref_doc(story(3, 1)),
            lambda index: index.delete_ref_doc("story-02"),
            lambda index: index.refresh_ref_docs([story(4, 1), story(21), story(5)]),
        ],
        ids=["insert", "update", "delete", "refresh"],
    )
    def test_a_failed_change_leaves_everything_as_it_was_and_is_resumed(self, change, tmp_path):
        llm = writer()
        index = build(llm=llm, journal=tmp_path / "journal")
        before, hashes = stored(index), index.docstore.get_all_document_hashes()
        tree = index.tree
        llm._script = [TimeoutError("too slow")]
        with pytest.raises(SummaryError):
            change(index)
        assert index.tree is tree
        assert stored(index) == before
        assert index.docstore.get_all_document_hashes() == hashes
        llm._script = [summary_of]
        change(index)
        assert index.tree is not tree

    async def test_a_cancelled_build_leaves_everything_unchanged(self, tmp_path):
        started = asyncio.Event()

        class Endless(ScriptedLLM):
            @llm_completion_callback()
            async def acomplete(
                self, prompt: str, formatted: bool = False, **kwargs: Any
            ) -> CompletionResponse:
                if len(self.prompts) >= 2:
                    started.set()
                    await asyncio.Event().wait()
                return CompletionResponse(text=self._reply(prompt))

        llm, context = Endless(summary_of), StorageContext.from_defaults()
        settings = {"llm": llm, "embed_model": HashEmbedding(), "journal": tmp_path / "journal"}
        building = asyncio.create_task(
            RaptorIndex.afrom_documents(
                STORIES, storage_context=context, num_workers=1, **SETTINGS, **settings
            )
        )
        await started.wait()
        building.cancel()
        with pytest.raises(asyncio.CancelledError):
            await building
        assert [context.docstore.docs, context.index_store.index_structs()] == [{}, []]
        assert context.docstore.get_all_document_hashes() == {}
        assert context.vector_store.data.embedding_dict == {}
        again = writer()
        index = build(llm=again, journal=tmp_path / "journal")
        assert same(index, build())

    async def test_a_cancelled_change_leaves_everything_unchanged(self):
        index = build()
        before, tree = stored(index), index.tree
        started = asyncio.Event()

        class Endless(ScriptedLLM):
            @llm_completion_callback()
            async def acomplete(self, prompt: str, **kwargs: Any) -> CompletionResponse:
                started.set()
                await asyncio.Event().wait()
                raise AssertionError

        index._llm = Endless("")
        for change in (index.ainsert(story(9)), index.adelete_ref_doc("story-01")):
            started.clear()
            changing = asyncio.create_task(change)
            await started.wait()
            changing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await changing
        assert index.tree is tree
        assert stored(index) == before


class TestJournals:
    def test_a_second_build_from_the_same_journal_is_free(self, tmp_path):
        build(journal=tmp_path / "journal")
        llm, model = writer(), HashEmbedding()
        index = build(llm=llm, embed_model=model, journal=str(tmp_path / "journal"))
        assert [llm.prompts, model.asked] == [[], []]
        assert same(index, build())

    def test_answers_of_another_model_or_template_are_not_taken(self, tmp_path):
        class Other(ScriptedLLM):
            temperature: float = 0.5

        build(journal=tmp_path / "journal")
        words = lambda prompt: f"Other words, {len(prompt)}."  # noqa: E731
        template = PromptTemplate("Other {context_str}")
        for settings in ({"llm": Other(words)}, {"llm": Other(words, temperature=1)}):
            index = build(**settings, journal=tmp_path / "journal")
            assert len(settings["llm"].prompts) == summaries(index)
            assert same(index, build(llm=Other(words)))
        llm = writer()
        index = build(llm=llm, summary_template=template, journal=tmp_path / "journal")
        assert len(llm.prompts) == summaries(index)

    def test_vectors_of_another_embedding_model_are_not_taken(self, tmp_path):
        build(journal=tmp_path / "journal")
        model = HashEmbedding(model_name="another")
        index = build(embed_model=model, journal=tmp_path / "journal")
        assert len(model.asked) == len(index.tree)

    def test_identities_tell_what_changes_answers_and_nothing_secret(self):
        class Remote(ScriptedLLM):
            model: str = "m-1"
            temperature: float = 0.1
            max_tokens: int = 512
            api_key: str = "sk-secret"
            api_base: str = "https://host.internal"

        name = llm_identity(Remote(""))
        assert name == llm_identity(Remote("", api_key="sk-other", api_base="http://else"))
        for changed in ({"model": "m-2"}, {"temperature": 0.2}, {"max_tokens": 9}):
            assert llm_identity(Remote("", **changed)) != name
        assert llm_identity(Remote("", system_prompt="Be brief.")) != name
        assert [part in name for part in ("Remote", "m-1", "sk-", "internal", "0x")] == [
            True,
            True,
            False,
            False,
            False,
        ]
        assert embed_identity(HashEmbedding()) != embed_identity(HashEmbedding(model_name="b"))

    def test_a_journal_of_ones_own_stays_open(self, tmp_path):
        with Journal(tmp_path / "journal", model="m", embed_model="e") as journal:
            index = build(journal=journal)
            index.insert(story(9))
            assert len(journal) > summaries(index)

    def test_a_path_is_never_left_open(self, tmp_path, monkeypatch):
        opened: list[Journal] = []
        original = Journal.__init__

        def counted(self: Journal, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            opened.append(self)

        monkeypatch.setattr(Journal, "__init__", counted)
        index = build(journal=tmp_path / "journal")
        index.delete_ref_doc("story-01")
        index._llm._script = [TimeoutError("too slow")]
        with pytest.raises(SummaryError):
            index.insert(story(9))
        assert len(opened) == 4
        assert [journal._connection for journal in opened] == [None] * 4


SECRET = "xyzzy-93"


class TestChange:
    @pytest.mark.parametrize("seed", range(4))
    async def test_any_history_of_a_stable_tree_ends_in_one_build(self, seed):
        draw = random.Random(seed)
        there: dict[str, Document] = {}
        index = build([], clusterer="stable")
        for _ in range(8):
            batch = [story(n, draw.randrange(2)) for n in draw.sample(range(9), 3)]
            match draw.choice(["insert", "ainsert", "update", "refresh", "arefresh", "delete"]):
                case "insert":
                    index.insert(batch[0])
                    there[batch[0].id_] = batch[0]
                case "ainsert":
                    await index.ainsert(batch[0])
                    there[batch[0].id_] = batch[0]
                case "update":
                    await index.aupdate_ref_doc(batch[0])
                    there[batch[0].id_] = batch[0]
                case "refresh":
                    expected = [there.get(d.id_) != d for d in batch]
                    assert index.refresh_ref_docs(batch) == expected
                    there |= {d.id_: d for d in batch}
                case "arefresh":
                    await index.arefresh_ref_docs(batch)
                    there |= {d.id_: d for d in batch}
                case "delete":
                    gone = draw.choice([*there, "nowhere"])
                    await index.adelete_ref_doc(gone)
                    there.pop(gone, None)
        expected = build(list(there.values()), clusterer="stable")
        assert same(index, expected)
        assert stored(index)[:4] == stored(expected)[:4]
        assert index.ref_doc_info == expected.ref_doc_info

    def test_an_insert_pays_for_the_path_to_the_root(self):
        llm, model = writer(), HashEmbedding()
        index = build(MANY, llm=llm, embed_model=model)
        before, calls, asked = index.tree, len(llm.prompts), len(model.asked)
        index.insert(Document(id_="new", text="A zeppelin flies over town 3."))
        paid = len(llm.prompts) - calls
        assert 1 <= paid <= 2 * index.tree.depth
        assert len(model.asked) - asked == paid + 1
        kept = before.nodes.keys() & index.tree.nodes.keys()
        assert len(kept) >= len(before) - 2 * index.tree.depth

    def test_what_is_inserted_again_or_refreshed_unchanged_costs_nothing(self):
        llm, model = writer(), HashEmbedding()
        index = build(llm=llm, embed_model=model)
        calls, asked = len(llm.prompts), len(model.asked)
        index.insert(story(3))
        index.update_ref_doc(story(4))
        assert index.refresh_ref_docs([story(n) for n in range(8)]) == [False] * 8
        assert [len(llm.prompts), len(model.asked)] == [calls, asked]
        assert same(index, build())

    async def test_a_rebuild_makes_the_tree_of_one_build_and_pays_for_what_changed(self):
        for rebuild in (False, True):
            llm = writer()
            index = build(STORIES[:5], llm=llm)
            index.refresh_ref_docs(STORIES)
            calls = len(llm.prompts)
            change = await index.arebuild() if rebuild else index.rebuild()
            assert same(index, build())
            assert len(llm.prompts) - calls == change.new_summaries < summaries(index)
            assert stored(index)[4:] == stored(build())[4:]

    @pytest.mark.parametrize("how", ["delete", "adelete", "nodes", "anodes", "update", "refresh"])
    async def test_what_is_deleted_is_nowhere(self, how, tmp_path):
        secret = story(1, note=f"metadata {SECRET}")
        secret.set_content(f"The password is {SECRET}. " * 9)
        quoting = ScriptedLLM(lambda p: f"{summary_of(p)} {SECRET if SECRET in p else ''}")
        index = build([story(0), secret, story(2)], llm=quoting, journal=tmp_path / "journal")
        held = [node for node in index.tree.nodes.values() if SECRET in node.text]
        assert any(node.level for node in held)
        assert SECRET.encode() in b"".join(f.read_bytes() for f in tmp_path.iterdir())
        node_ids = index.ref_doc_info["story-01"].node_ids
        match how:
            case "delete":
                index.delete_ref_doc("story-01")
            case "adelete":
                await index.adelete_ref_doc("story-01", delete_from_docstore=False)
            case "nodes":
                index.delete_nodes(node_ids, delete_from_docstore=False)
            case "anodes":
                await index.adelete_nodes(node_ids)
            case "update":
                index.update_ref_doc(story(1))
            case "refresh":
                await index.arefresh_ref_docs([story(1)])
        index.storage_context.persist(tmp_path / "stores")
        files = [file for file in tmp_path.rglob("*") if file.is_file()]
        assert len(files) >= 5
        assert [file.name for file in files if SECRET.encode() in file.read_bytes()] == []
        del index._llm
        kept = [vars(index), vars(index._trees), vars(index._rows), index.tree.nodes]
        assert SECRET not in repr(kept)
        assert index._stale_sources == []

    def test_everything_can_be_deleted_and_the_index_filled_again(self):
        index = build()
        for document in STORIES:
            index.delete_ref_doc(document.id_)
        assert [len(index.tree), found(index), index.ref_doc_info] == [0, [], {}]
        assert index.storage_context.vector_store.data.embedding_dict == {}
        index.refresh_ref_docs(STORIES)
        assert same(index, build())

    def test_deleting_what_is_not_there_changes_nothing(self):
        index = build()
        before = stored(index)
        index.delete_ref_doc("nowhere")
        index.delete_nodes(["nowhere"])
        assert stored(index) == before

    def test_nodes_are_inserted_as_documents_are(self):
        index = build([])
        index.insert_nodes(WholeDocuments()(STORIES[:4]))
        index.insert_nodes(WholeDocuments()(STORIES[4:]))
        index.rebuild()
        assert same(index, build())

    def test_nothing_the_caller_does_later_reaches_the_index(self):
        documents = [story(n, tags=["old"]) for n in range(4)]
        index = build(documents)
        before = stored(index), found(index)
        for document in documents:
            document.metadata["tags"].append("new")
            document.set_content("Nothing.")
        for result in index.as_retriever().retrieve("the keepers of town 3"):
            result.metadata["tags"].append("found")
            result.metadata["leaves"].clear()
        assert (stored(index), found(index)) == before

    async def test_changes_from_many_tasks_are_all_kept(self):
        index = build(clusterer="stable")
        await asyncio.gather(
            *(index.ainsert(story(n)) for n in range(20, 25)),
            *(index.adelete_ref_doc(f"story-{n:02d}") for n in range(3)),
        )
        kept = [story(n) for n in (*range(3, 8), *range(20, 25))]
        expected = build(kept, clusterer="stable")
        assert same(index, expected)
        assert stored(index)[:4] == stored(expected)[:4]


class TestSaving:
    def test_a_saved_index_is_loaded_equal_without_any_model(self, tmp_path):
        index = build(scope="document", max_levels=2, title_key="version", random_state=7)
        llm, model = writer(), HashEmbedding()
        loaded = reload(index, tmp_path, llm=llm, embed_model=model)
        assert type(loaded) is RaptorIndex
        assert [llm.prompts, model.asked] == [[], []]
        assert loaded.index_id == index.index_id
        assert loaded.tree.vectors.dtype == np.float32
        assert same(loaded, index)
        for mode in ("collapsed", "traversal"):
            assert found(loaded, mode=mode) == found(index, mode=mode)
        assert loaded.statistics() == index.statistics()

    def test_a_loaded_index_goes_on(self, tmp_path):
        llm = writer()
        index = build()
        loaded = reload(index, tmp_path, llm=llm)
        for one in (index, loaded):
            one.insert(story(9))
            one.delete_ref_doc("story-02")
        assert same(loaded, index)
        assert 0 < len(llm.prompts) < summaries(index)
        assert stored(loaded) == stored(index)
        assert same(reload(loaded, tmp_path / "again"), index)

    def test_a_folder_is_loaded_in_one_call_without_a_language_model(self, tmp_path):
        index = build(summarizer="extractive")
        index.storage_context.persist(tmp_path)
        loaded = RaptorIndex.from_persist_dir(str(tmp_path), embed_model=HashEmbedding())
        assert same(loaded, index)
        loaded.insert(story(9))
        index.insert(story(9))
        assert same(loaded, index)

    def test_an_empty_index_is_saved_and_filled_later(self, tmp_path):
        loaded = reload(build([]), tmp_path)
        assert found(loaded) == []
        loaded.refresh_ref_docs(STORIES)
        assert same(loaded, build())

    @pytest.mark.parametrize(
        "other",
        [
            {"clusterer": "fast"},
            {"random_state": 1},
            {"summarizer": "extractive"},
            {"summary_tokens": 50},
            {"scope": "document"},
            {"chunk_size": 25},
            {"chunk_size": None},
            {"max_cluster_tokens": 1000},
            {"max_levels": 1},
            {"title_key": "name"},
        ],
        ids=str,
    )
    def test_loading_with_another_setting_is_refused(self, other, tmp_path):
        (name,) = other
        with pytest.raises(InvalidParameterError, match=f"{name} must be .*as the index was saved"):
            reload(build(), tmp_path, **other)

    def test_loading_with_the_same_settings_is_allowed(self, tmp_path):
        given = {**SETTINGS, "max_levels": None, "summarizer": "llm", "random_state": 0}
        assert same(reload(build(), tmp_path, **given), build())

    def test_another_tokenizer_is_refused(self, tmp_path):
        with pytest.raises(IndexFormatError, match="another chunk size, tokenizer"):
            reload(build(), tmp_path, tokenizer=lambda text: tokenizer(text) * 3)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("nodes", "[]"),
            ("nodes", "{"),
            ("vectors", ""),
            ("vectors", "not base 64!"),
            ("checksum", ""),
            ("documents", {}),
            ("settings", {}),
        ],
    )
    def test_a_damaged_struct_is_refused(self, name, value, tmp_path):
        index = build()
        setattr(index.index_struct, name, value)
        index.storage_context.index_store.add_index_struct(index.index_struct)
        with pytest.raises(IndexFormatError):
            reload(index, tmp_path)

    @pytest.mark.parametrize("nodes", ['[{"id": "a"}]', '[{"id": "a", "span": [0]}]', '"a"', "[1]"])
    def test_a_struct_with_a_right_checksum_and_wrong_nodes_is_refused(self, nodes, tmp_path):
        index = build()
        struct = index.index_struct
        struct.nodes = nodes
        struct.checksum = struct._checksum()
        index.storage_context.index_store.add_index_struct(struct)
        with pytest.raises(IndexFormatError):
            reload(index, tmp_path)

    def test_a_document_that_is_missing_or_another_is_noticed(self, tmp_path):
        index = build()
        index.storage_context.persist(tmp_path)
        file = tmp_path / "docstore.json"
        content = json.loads(file.read_text("utf-8"))
        node = next(iter(content["docstore/data"].values()))
        node["__data__"]["text"] = "Forged."
        file.write_text(json.dumps(content), "utf-8")
        with pytest.raises(IndexFormatError, match="cut into other leaves"):
            RaptorIndex.from_persist_dir(str(tmp_path), embed_model=HashEmbedding())
        content["docstore/data"].popitem()
        file.write_text(json.dumps(content), "utf-8")
        with pytest.raises(IndexFormatError, match="docstore lacks a document"):
            RaptorIndex.from_persist_dir(str(tmp_path), embed_model=HashEmbedding())

    def test_a_folder_of_another_index_is_refused(self, tmp_path):
        SummaryIndex.from_documents([story(1)]).storage_context.persist(tmp_path)
        with pytest.raises(InvalidParameterError, match="a saved RaptorIndex, not SummaryIndex"):
            RaptorIndex.from_persist_dir(str(tmp_path))

    def test_several_indexes_over_the_same_documents_live_in_one_context(self, tmp_path):
        context = StorageContext.from_defaults()
        one = build(storage_context=context)
        two = build(storage_context=context, clusterer=ContiguousClusterer(size=3))
        three = LongRAGIndex.from_documents(
            STORIES, embed_model=HashEmbedding(), storage_context=context
        )
        one.delete_ref_doc("story-03")
        held = set(context.vector_store.data.embedding_dict)
        assert held >= one.tree.nodes.keys() | two.tree.nodes.keys()
        context.persist(tmp_path)
        again = StorageContext.from_defaults(persist_dir=str(tmp_path))
        settings = {"embed_model": HashEmbedding(), "llm": writer()}
        first = load_index_from_storage(again, index_id=one.index_id, **settings)
        second = load_index_from_storage(
            again, index_id=two.index_id, clusterer=ContiguousClusterer(size=3), **settings
        )
        third = load_index_from_storage(again, index_id=three.index_id, embed_model=HashEmbedding())
        assert same(first, one)
        assert same(second, two)
        assert len(third.ref_doc_info) == len(two.ref_doc_info) == 8
        assert len(one.ref_doc_info) == 7
        assert one.refresh_ref_docs([story(3), story(4)]) == [True, False]
        assert len(one.ref_doc_info) == 8
        for index in (one, two, three):
            index.delete_ref_doc("story-05")
        assert "record" not in str(context.docstore.get_ref_doc_info("story-05"))
        assert context.docstore.get_document_hash("story-05") is None

    def test_registering_again_changes_nothing(self):
        before = (
            dict(INDEX_STRUCT_TYPE_TO_INDEX_CLASS),
            dict(INDEX_STRUCT_TYPE_TO_INDEX_STRUCT_CLASS),
        )
        register()
        assert before[0]["longrag_raptor"] is RaptorIndex
        assert before[1]["longrag_raptor"] is RaptorStruct
        assert before == (
            dict(INDEX_STRUCT_TYPE_TO_INDEX_CLASS),
            dict(INDEX_STRUCT_TYPE_TO_INDEX_STRUCT_CLASS),
        )


class StrictStore(BasePydanticVectorStore):
    """Takes flat metadata and new ids alone, and deletes only what is there."""

    stores_text: bool = True
    flat_metadata: bool = True
    rows: dict[str, Any] = Field(default_factory=dict)

    @property
    def client(self) -> None:
        return None

    def add(self, nodes: Any, **kwargs: Any) -> list[str]:
        for node in nodes:
            assert node.node_id not in self.rows
            assert len(node.get_embedding()) == 16
            metadata = node_to_metadata_dict(node, flat_metadata=self.flat_metadata)
            self.rows[node.node_id] = (node.get_content(), metadata)
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **kwargs: Any) -> None:
        raise AssertionError("nodes are deleted by their own ids")

    def delete_nodes(self, node_ids: Any = None, filters: Any = None, **kwargs: Any) -> None:
        for node_id in node_ids:
            del self.rows[node_id]

    def query(self, query: Any, **kwargs: Any) -> Any:
        raise AssertionError("search is in memory")


class BySource(StrictStore):
    """Deletes by the source alone."""

    delete_nodes = BasePydanticVectorStore.delete_nodes

    def delete(self, ref_doc_id: str, **kwargs: Any) -> None:
        self.rows = {k: v for k, v in self.rows.items() if v[1]["ref_doc_id"] != ref_doc_id}


class TestVectorStores:
    @pytest.mark.parametrize("kind", [StrictStore, BySource])
    def test_a_strict_store_holds_the_nodes_of_the_tree_and_no_others(self, kind):
        store = kind()
        context = StorageContext.from_defaults(vector_store=store)
        index = build(
            [story(n, tags=["a"], hidden=None) for n in range(8)], storage_context=context
        )
        changes: list[Callable[[], object]] = [
            lambda: None,
            lambda: index.insert(story(9)),
            lambda: index.update_ref_doc(story(3, 5, tags=[])),
            lambda: index.delete_ref_doc("story-06"),
            index.rebuild,
        ]
        for change in changes:
            change()
            assert {id_: text for id_, (text, _) in store.rows.items()} == {
                id_: node.text for id_, node in index.tree.nodes.items()
            }
        for id_, (_, metadata) in store.rows.items():
            assert metadata["level"] == index.tree.nodes[id_].level
        versions = [
            metadata["version"]
            for id_, (_, metadata) in store.rows.items()
            if index.tree.nodes[id_].doc_ids == ("story-03",)
        ]
        assert set(versions) == {5}

    def test_two_trees_in_one_strict_store_share_their_leaves(self):
        store = StrictStore()
        context = StorageContext.from_defaults(vector_store=store)
        one = build(storage_context=context)
        two = build(storage_context=context, clusterer=ContiguousClusterer(size=3))
        for index in (one, two, one, two):
            for doc_id in list(index.ref_doc_info)[:2]:
                index.delete_ref_doc(doc_id)
            assert store.rows.keys() == one.tree.nodes.keys() | two.tree.nodes.keys()

    def test_leaves_name_their_document_in_a_store_that_deletes_nodes(self):
        store = StrictStore()
        index = build(storage_context=StorageContext.from_defaults(vector_store=store))
        for id_, (_, metadata) in store.rows.items():
            (doc_id, *others) = index.tree.nodes[id_].doc_ids
            assert metadata["ref_doc_id"] == ("None" if others else doc_id)

    def test_faiss_rows_are_those_of_the_tree_after_changes_and_reload(self, tmp_path):
        faiss = pytest.importorskip("faiss")
        from llama_index.core.vector_stores.types import VectorStoreQuery
        from llama_index.vector_stores.faiss import FaissMapVectorStore

        store = FaissMapVectorStore(faiss.IndexIDMap2(faiss.IndexFlatIP(16)))
        index = build(storage_context=StorageContext.from_defaults(vector_store=store))
        index.insert(story(9))
        index.delete_ref_doc("story-02")
        index.insert(story(10))

        def check(index: RaptorIndex, store: Any) -> None:
            size = len(index.tree)
            for id_, vector in zip(index.tree.nodes, index.tree.vectors, strict=True):
                query = VectorStoreQuery(query_embedding=vector.tolist(), similarity_top_k=size)
                ranked = store.query(query)
                assert sorted(ranked.ids) == sorted(index.tree.nodes)
                scores = dict(zip(ranked.ids, ranked.similarities, strict=True))
                assert scores[id_] == pytest.approx(float(vector @ vector), rel=1e-4)

        check(index, store)
        index.storage_context.persist(str(tmp_path))
        loaded = RaptorIndex.from_persist_dir(
            str(tmp_path),
            vector_store=FaissMapVectorStore.from_persist_dir(str(tmp_path)),
            embed_model=HashEmbedding(),
            llm=writer(),
        )
        assert found(loaded) == found(index)
        loaded.insert(story(11))
        check(loaded, loaded.storage_context.vector_store)

    def test_a_store_that_cannot_delete_is_refused_before_a_change_is_paid(self):
        faiss = pytest.importorskip("faiss")
        from llama_index.vector_stores.faiss import FaissVectorStore

        llm, store = writer(), FaissVectorStore(faiss.IndexFlatIP(16))
        index = build(llm=llm, storage_context=StorageContext.from_defaults(vector_store=store))
        calls, tree = len(llm.prompts), index.tree
        with pytest.raises(StoreError, match="FaissVectorStore cannot take nodes out"):
            index.insert(story(9))
        assert len(llm.prompts) == calls
        assert index.tree is tree

    def test_what_a_failing_store_cut_short_the_next_change_completes(self):
        class Failing(StrictStore):
            fails: bool = False

            def add(self, nodes: Any, **kwargs: Any) -> list[str]:
                if self.fails:
                    raise ConnectionError("the store is down")
                return super().add(nodes, **kwargs)

        store = Failing()
        index = build(storage_context=StorageContext.from_defaults(vector_store=store))
        store.fails = True
        with pytest.raises(ConnectionError):
            index.insert(story(9))
        store.fails = False
        index.delete_ref_doc("story-01")
        assert store.rows.keys() == index.tree.nodes.keys()
        assert set(index.ref_doc_info) == {f"story-{n:02d}" for n in (0, 2, 3, 4, 5, 6, 7, 9)}
        assert set(index.index_struct.documents.values()) == set(index.ref_doc_info)


def test_a_leaf_is_shown_as_its_document_is():
    document = story(1)
    document.text_template = "<{metadata_str}>\n{content}"
    document.metadata_template = "{key} = {value}"
    model = HashEmbedding()
    index = build([document], embed_model=model)
    (leaf, *_) = index.as_retriever(levels=[0]).retrieve("record")
    assert leaf.node.get_content(MetadataMode.LLM).startswith("<title = The orchard 1>\n")
    shown = leaf.node.get_content(MetadataMode.EMBED)
    assert ("text", shown) in model.asked
    assert isinstance(leaf.node, TextNode)
