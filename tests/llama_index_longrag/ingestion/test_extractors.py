"""Titles, keywords and questions of chunks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llama_index.core import Settings
from llama_index.core.extractors import BaseExtractor
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document, ImageNode, MetadataMode, TextNode

from llama_index_longrag import ChunkMetadataExtractor
from longrag.errors import InvalidParameterError
from tests.fakes.llama_index import ScriptedLLM, tokenizer

NODES = [
    TextNode(id_="mill", text="The mill grinds rye.", metadata={"title": "Mill"}),
    TextNode(id_="weir", text="The weir was built in 1312."),
]


def described(prompt: str) -> str:
    name = "mill" if "rye" in prompt else "weir"
    return json.dumps({"title": f"The {name}", "keywords": [name, "old"], "questions": ["Why?"]})


def extractor(*script: Any, **settings: Any) -> ChunkMetadataExtractor:
    return ChunkMetadataExtractor(llm=ScriptedLLM(*script or (described,)), **settings)


async def test_each_chunk_is_described_by_one_call():
    own = extractor()
    assert await own.aextract(NODES) == [
        {
            "excerpt_title": f"The {name}",
            "excerpt_keywords": f"{name}, old",
            "questions_this_excerpt_can_answer": "Why?",
        }
        for name in ("mill", "weir")
    ]
    assert len(own.llm.prompts) == 2
    assert "Mill" in own.llm.prompts[0]


async def test_in_a_running_loop_too_and_there_may_be_nothing_to_describe():
    own = extractor()
    nodes = [ImageNode(id_="i", image="aGk="), NODES[1], TextNode(id_="blank", text=" ")]
    found = await own.aextract(nodes)
    assert [bool(one) for one in found] == [False, True, False]
    assert own.extract(NODES[:1]) == await own.aextract(NODES[:1])
    assert await own.aextract([]) == []


async def test_an_answer_that_cannot_be_read_describes_nothing():
    assert await extractor("I cannot say.").aextract(NODES) == [{}, {}]


async def test_a_run_that_failed_pays_for_no_answer_twice(tmp_path):
    journal = str(tmp_path / "answers.sqlite")
    broken = extractor(described, ConnectionError("down"), journal=journal, num_workers=1)
    with pytest.raises(ConnectionError):
        await broken.aextract(NODES)
    again = extractor(journal=journal)
    assert [one["excerpt_title"] for one in await again.aextract(NODES)] == ["The mill", "The weir"]
    assert len(again.llm.prompts) == 1
    assert "1312" in again.llm.prompts[0]


async def test_it_works_in_a_pipeline_and_embedders_read_what_it_found():
    pipeline = IngestionPipeline(
        transformations=[
            SentenceSplitter(tokenizer=tokenizer, chunk_size=64, chunk_overlap=0),
            extractor(),
        ]
    )
    for _ in range(2):
        nodes = await pipeline.arun(documents=[Document(text=NODES[0].text, id_="d")])
        shown = nodes[0].get_content(metadata_mode=MetadataMode.EMBED)
        assert "excerpt_keywords: mill, old" in shown
    assert len(pipeline.transformations[1].llm.prompts) == 1
    copies = await extractor(in_place=False).aprocess_nodes(
        NODES, excluded_llm_metadata_keys=["excerpt_title"]
    )
    assert "excerpt_title" not in copies[0].get_content(metadata_mode=MetadataMode.LLM)
    assert "excerpt_title" not in NODES[0].metadata


async def test_limits_hold_and_settings_are_written_down_without_the_journal():
    many = json.dumps({"keywords": list("abcdefg"), "questions": ["A?", "B?", "C?", "D?"]})
    own = extractor(many, num_workers=2, journal="x.sqlite")
    written = own.to_dict()
    assert isinstance(own, BaseExtractor)
    assert (written["class_name"], written["num_workers"]) == ("ChunkMetadataExtractor", 2)
    assert "journal" not in written
    assert "scripted" in written["llm"]
    (found,) = await extractor(many).aextract(NODES[:1])
    assert found == {
        "excerpt_keywords": "a, b, c, d, e, f",
        "questions_this_excerpt_can_answer": "A?\nB?\nC?",
    }


async def test_the_settings_give_the_model_and_bad_settings_are_refused(monkeypatch):
    monkeypatch.setattr(Settings, "_llm", ScriptedLLM(described))
    (found,) = await ChunkMetadataExtractor().aextract(NODES[:1])
    assert found["excerpt_title"] == "The mill"
    for name, value in (("num_workers", True), ("llm", "gpt"), ("topics", 1)):
        with pytest.raises(InvalidParameterError, match=name):
            ChunkMetadataExtractor(**{name: value})
    with pytest.raises(InvalidParameterError, match="prompt"):
        await extractor(prompt="Describe it.").aextract(NODES)
