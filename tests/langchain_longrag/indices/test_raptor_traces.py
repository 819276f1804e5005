"""A build is one trace: a root run, the layers in it, and the calls of the model in the layers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from langchain_core.tracers import BaseTracer
from langchain_core.tracers.schemas import Run

from langchain_longrag import RaptorIndex
from longrag.errors import SummaryError
from tests.fakes.langchain import HashEmbeddings, scripted
from tests.langchain_longrag.trees import PAGES, SETTINGS, build, model, page
from tests.settings import grouped


class Tracer(BaseTracer):
    """Keeps the trees of runs that have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.roots: list[Run] = []

    def _persist_run(self, run: Run) -> None:
        self.roots.append(run)


def index(**settings: Any) -> RaptorIndex:
    return RaptorIndex(
        embedding=HashEmbeddings(), **grouped(**{"llm": model(), **SETTINGS, **settings})
    )


def upsert(built: RaptorIndex, kind: str, pages: Any, config: Any) -> None:
    if kind == "sync":
        built.upsert(pages, config=config)
    else:
        asyncio.run(built.aupsert(pages, config=config))


KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


@KINDS
@pytest.mark.parametrize("max_concurrency", [1, 4])
def test_a_build_is_one_run_with_layers_and_calls(kind, max_concurrency):
    built, tracer = index(max_concurrency=max_concurrency), Tracer()
    id_ = UUID(int=7)
    config = {"callbacks": [tracer], "run_id": id_, "tags": ["nightly"], "metadata": {"n": 1}}
    upsert(built, kind, PAGES, config)
    (root,) = tracer.roots
    assert (root.name, root.id, root.error) == ("RaptorIndex.upsert", id_, None)
    assert [layer.name for layer in root.child_runs] == [
        f"layer {level}" for level in range(built.tree.depth + 1)
    ]
    counts = [sum(node.level == n for node in built.tree.nodes.values()) for n in range(9)]
    for level, layer in enumerate(root.child_runs):
        assert layer.inputs == {"nodes": counts[level], "missing": counts[level]}
        kinds = Counter(call.run_type for call in layer.child_runs)
        assert kinds["llm"] + kinds["chat_model"] == (counts[level] if level else 0)
        # Every node of a layer is embedded below the layer.
        embedded = [call for call in layer.child_runs if call.run_type == "embedding"]
        assert sum(len(call.inputs["texts"]) for call in embedded) == counts[level]
        assert len(layer.child_runs) == len(embedded) + kinds["llm"] + kinds["chat_model"]
        assert all("nightly" in call.tags for call in layer.child_runs)
        assert layer.end_time is not None


@KINDS
def test_each_change_is_one_run(kind):
    built, tracer = index(), Tracer()
    upsert(built, kind, PAGES[:8], None)
    upsert(built, kind, [page(20)], {"callbacks": [tracer], "run_name": "nightly"})
    built.delete(["page-3"], config={"callbacks": [tracer]})
    built.rebuild(config={"callbacks": [tracer]})
    names = ["nightly", "RaptorIndex.delete", "RaptorIndex.rebuild"]
    assert [root.name for root in tracer.roots] == names


@KINDS
def test_a_build_that_fails_ends_its_runs_with_the_error(kind):
    built, tracer = index(llm=scripted(*[ValueError("no")] * 99)), Tracer()
    with pytest.raises(SummaryError):
        upsert(built, kind, PAGES, {"callbacks": [tracer]})
    (root,) = tracer.roots
    assert "SummaryError" in (root.error or "")
    assert [bool(layer.error) for layer in root.child_runs] == [False, True]


def test_progress_tells_calls_and_tokens(capsys):
    built = build(show_progress=True)
    shown = capsys.readouterr().err
    report = built.last_report
    assert report is not None
    count = sum(node.level > 0 for node in built.tree.nodes.values())
    assert f"{count}/{count}" in shown
    assert f"calls={report.calls}" in shown
    assert f"tokens={report.prompt_tokens + report.completion_tokens}" in shown
    build()
    assert capsys.readouterr().err == ""
