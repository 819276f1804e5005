"""A tree in LlamaIndex's storage: built, killed, resumed, grown, pruned, saved and loaded."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from inspect import getattr_static
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import (
    Document,
    PromptTemplate,
    Settings,
    StorageContext,
)
from llama_index.core.base.llms.types import CompletionResponse
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.indices.base import BaseIndex
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.llms.custom import CustomLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.prompts import ChatPromptTemplate, RichPromptTemplate, SelectorPromptTemplate
from llama_index.core.rate_limiter import BaseRateLimiter
from llama_index.core.schema import MetadataMode, TextNode

from llama_index_longrag import MaxPRetriever, RaptorIndex
from llama_index_longrag.bridge.summaries import embed_identity, llm_identity
from llama_index_longrag.indices.raptor_struct import RaptorStruct
from longrag.calls import Generate, ask
from longrag.errors import (
    CallLimitError,
    EmbeddingError,
    InvalidDocumentError,
    InvalidParameterError,
    SummaryError,
)
from longrag.indexing.tree.partitions import ContiguousClusterer
from longrag.indexing.tree.summaries import LlmSummarizer
from longrag.journal import Journal
from tests.llama_index_longrag.conftest import HashEmbedding, ScriptedLLM, tokenizer
from tests.llama_index_longrag.stories import (
    MANY,
    SETTINGS,
    STORIES,
    build,
    reload,
    same,
    stored,
    story,
    summaries,
    summary_of,
    writer,
)


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
        build(llm=llm, summary_tokens=40, num_workers=1)
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

    def test_without_a_language_model_nothing_is_paid_for(self, monkeypatch):
        def missing(self):
            raise ImportError("llama-index-llms-openai is not installed")

        monkeypatch.setattr(type(Settings), "llm", property(missing))
        embed_model = HashEmbedding()
        with pytest.raises(InvalidParameterError, match='summarizer="extractive"'):
            build(llm=None, embed_model=embed_model)
        assert embed_model.asked == []

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

    @pytest.mark.parametrize(
        "template",
        [
            RichPromptTemplate("Shorten to {{ max_words }}: {{ context_str }}"),
            PromptTemplate(
                "Shorten to {most}: {text}",
                template_var_mappings={"context_str": "text", "max_words": "most"},
            ),
        ],
        ids=["rich", "mapped"],
    )
    def test_templates_of_every_kind_are_taken(self, template):
        llm = writer()
        build(llm=llm, summary_template=template)
        assert all(prompt.startswith("Shorten to 75: <passage") for prompt in llm.prompts)

    def test_slots_in_a_document_stay_text(self):
        llm = writer()
        odd = Document(id_="odd", text="Mind {max_words} and {context_str} here. " * 8)
        build([odd], llm=llm, num_workers=1)
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
    def test_a_failed_build_names_the_cluster_and_touches_no_store(self):
        context = StorageContext.from_defaults()
        before = json.dumps(context.to_dict())
        with pytest.raises(SummaryError, match="too slow") as caught:
            build(llm=fails_at(2), storage_context=context, num_workers=1)
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

        index._models.llm = Endless("")
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

    def test_a_template_is_known_as_the_model_selects_it(self, tmp_path):
        other = PromptTemplate("By default {context_str}")
        for words in ("Shorten", "Condense"):
            llm = writer()
            chosen = PromptTemplate(f"{words} {{context_str}}")
            template = SelectorPromptTemplate(other, [(lambda llm: True, chosen)])
            index = build(llm=llm, summary_template=template, journal=tmp_path / "journal")
            assert len(llm.prompts) == summaries(index)
            assert all(prompt.startswith(words) for prompt in llm.prompts)

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
        index._models.llm._script = [TimeoutError("too slow")]
        with pytest.raises(SummaryError):
            index.insert(story(9))
        assert len(opened) == 4
        assert [journal._connection for journal in opened] == [None] * 4


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
