"""A build is one trace: a root span, the layers in it, and the calls of models in the layers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler

from llama_index_longrag import RaptorIndex
from longrag.errors import SummaryError
from tests.fakes.llama_index import HashEmbedding, ScriptedLLM
from tests.llama_index_longrag.stories import SETTINGS, STORIES, build, story, writer
from tests.settings import grouped


@pytest.fixture
def spans():
    handler, dispatcher = SimpleSpanHandler(), get_dispatcher()
    dispatcher.add_span_handler(handler)
    yield handler
    dispatcher.span_handlers.remove(handler)


def name(span_id: str) -> str:
    return re.sub(r"-[0-9a-f]{8}-[0-9a-f-]{27}$", "", span_id)


def shape(handler: Any) -> tuple[list[str], dict[str, set[str]]]:
    """The names of the roots, and of the parents of each name of a span."""
    done = [*handler.completed_spans, *handler.dropped_spans]
    assert not handler.open_spans
    names = {span.id_: name(span.id_) for span in done}
    parents: dict[str, set[str]] = {}
    for span in done:
        if span.parent_id is not None:
            parents.setdefault(names[span.id_], set()).add(names[span.parent_id])
    return [names[span.id_] for span in done if span.parent_id is None], parents


@pytest.mark.parametrize("num_workers", [1, 4])
def test_a_build_is_one_trace_with_layers_and_calls(spans, num_workers):
    index = build(num_workers=num_workers)
    roots, parents = shape(spans)
    assert roots == ["RaptorIndex.from_documents"]
    assert parents["RaptorIndex.build"] == {"RaptorIndex.from_documents"}
    layers = {f"RaptorIndex.layer_{level}" for level in range(index.tree.depth + 1)}
    assert {layer for layer in parents if ".layer_" in layer} == layers
    assert all(parents[layer] == {"RaptorIndex.build"} for layer in layers)
    assert parents["ScriptedLLM.predict"] == layers - {"RaptorIndex.layer_0"}
    assert parents["HashEmbedding.get_text_embedding_batch"] == layers


async def test_an_async_build_is_one_trace(spans):
    await RaptorIndex.afrom_documents(
        STORIES, llm=writer(), embed_model=HashEmbedding(), **grouped(**SETTINGS)
    )
    roots, parents = shape(spans)
    assert roots == ["RaptorIndex.afrom_documents"]
    assert {re.sub(r"\d", "", one) for one in parents["ScriptedLLM.apredict"]} == {
        "RaptorIndex.layer_"
    }


async def test_each_change_is_one_trace(spans):
    index = build([])
    for change in (
        lambda: index.insert(story(1)),
        lambda: index.update_ref_doc(story(1, 1)),
        lambda: index.refresh_ref_docs(STORIES),
        lambda: index.delete_ref_doc("story-02"),
        index.rebuild,
    ):
        spans.completed_spans.clear()
        change()
        assert len(shape(spans)[0]) == 1
    spans.completed_spans.clear()
    await index.ainsert(story(30))
    assert shape(spans)[0] == ["RaptorIndex.ainsert"]


def test_a_build_that_fails_drops_its_spans(spans):
    with pytest.raises(SummaryError):
        build(llm=ScriptedLLM(ValueError("no")))
    roots, _ = shape(spans)
    assert roots == ["RaptorIndex.from_documents"]
    dropped = {name(span.id_) for span in spans.dropped_spans}
    assert {"RaptorIndex.from_documents", "RaptorIndex.build", "RaptorIndex.layer_1"} <= dropped
    assert "RaptorIndex.layer_0" not in dropped


def test_progress_tells_calls_and_tokens(capsys):
    index = build(show_progress=True)
    shown = capsys.readouterr().err
    report = index.last_report
    assert f"calls={report.calls}" in shown
    assert f"tokens={report.prompt_tokens + report.completion_tokens}" in shown
