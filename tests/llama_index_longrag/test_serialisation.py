"""Every component that LlamaIndex serialises is written down whole, and works when read back."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from llama_index.core import Document
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.ingestion.pipeline import get_transformation_hash
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from llama_index.core.schema import BaseComponent, MetadataMode, NodeWithScore, TextNode

import llama_index_longrag as package
from llama_index_longrag import (
    ChunkMetadataExtractor,
    CompressPostprocessor,
    DeduplicatePostprocessor,
    ExtractiveLLM,
    LocalEmbedding,
    LongUnitNodeParser,
    MonoT5Rerank,
    RepackPostprocessor,
    RichesLLM,
    ScorerRerank,
    TildeRerank,
)
from longrag.errors import InvalidParameterError
from longrag.models.embedder import LsaEmbedder
from tests.fakes.llama_index import tokenizer
from tests.llama_index_longrag.riches_stories import BURNED, TOLD, Scripted, documents

TEXTS = {
    "mill": "The mill grinds rye. The mill burned down in 1684. Nobody was hurt.",
    "weir": "The weir was built in 1312. See the [mill](mill).",
    "clock": "The clock strikes at noon. The clock strikes at noon.",
}
QUESTION = "When did the mill burn down?"
LSA = LocalEmbedding(embedder=LsaEmbedder(list(TEXTS.values())))
RICHES = RichesLLM.from_defaults(
    language_model=Scripted({BURNED: TOLD}),
    key_index=package.RichesQueryEngine.from_documents(
        documents(), language_model=Scripted({BURNED: TOLD})
    ).decoder.key_index,
    documents=documents(),
)
PROMPT = f"question: {BURNED}\npassage:"


def overlap(query, texts):
    return [float(len(set(query.lower().split()) & set(text.lower().split()))) for text in texts]


def reranked(component):
    nodes = [NodeWithScore(node=TextNode(text=t, id_=n), score=0.5) for n, t in TEXTS.items()]
    found = component.postprocess_nodes(nodes, query_str=QUESTION)
    return [(one.node.node_id, one.node.get_content(MetadataMode.NONE), one.score) for one in found]


def parsed(component):
    texts = [Document(id_=name, text=text) for name, text in TEXTS.items()]
    return [node.to_dict() for node in component(texts)]


def described(component):
    nodes = [TextNode(text=text, id_=name) for name, text in TEXTS.items()]
    return [node.metadata for node in component(nodes)]


class Case(NamedTuple):
    """A component, the objects in it that are not written down, and what it does."""

    component: Any
    live: dict[str, Any]
    does: Callable[[Any], Any]


TEMPLATE = PromptTemplate("{context_str} Now: {query_str}")
CASES = {
    "ChunkMetadataExtractor": Case(
        ChunkMetadataExtractor(llm=ExtractiveLLM(), num_workers=2, show_progress=False),
        {"llm": ExtractiveLLM()},
        described,
    ),
    "CompressPostprocessor": Case(
        CompressPostprocessor(embed_model=LSA, ratio=0.5, tokenizer=tokenizer),
        {"embed_model": LSA, "tokenizer": tokenizer},
        reranked,
    ),
    "CompressPostprocessor, abstractive": Case(
        CompressPostprocessor(
            method="abstractive", llm=ExtractiveLLM(), compress_template=TEMPLATE
        ),
        {"llm": ExtractiveLLM()},
        reranked,
    ),
    "DeduplicatePostprocessor": Case(
        DeduplicatePostprocessor(redundancy=0.3, top_n=2), {}, reranked
    ),
    "ExtractiveLLM": Case(
        ExtractiveLLM(context_window=4096), {}, lambda llm: llm.complete(PROMPT).text
    ),
    "LocalEmbedding": Case(
        LocalEmbedding(embedder=LSA.embedder, embed_batch_size=3),
        {"embedder": LSA.embedder},
        lambda model: model.get_text_embedding(QUESTION),
    ),
    "LongUnitNodeParser": Case(
        LongUnitNodeParser(
            max_tokens=99,
            chunk_size=9,
            granularity="document",
            directed=True,
            split_oversized=True,
            title_key="name",
            tokenizer=tokenizer,
        ),
        {"tokenizer": tokenizer},
        parsed,
    ),
    "MonoT5Rerank": Case(MonoT5Rerank(scorer=overlap, top_n=2), {"scorer": overlap}, reranked),
    "RepackPostprocessor": Case(RepackPostprocessor(order="sides"), {}, reranked),
    "RichesLLM": Case(
        RICHES,
        {"decoder": RICHES.decoder, "documents": documents()},
        lambda llm: llm.complete(PROMPT, query=BURNED),
    ),
    "ScorerRerank": Case(
        ScorerRerank(scorer=overlap, top_n=2, candidates=3, on_error="fall_back", chunk_size=8),
        {"scorer": overlap},
        reranked,
    ),
    "TildeRerank": Case(TildeRerank(scorer=overlap, top_n=2), {"scorer": overlap}, reranked),
}


def test_no_component_that_is_serialised_is_left_out():
    found = {
        name
        for name in package.__all__
        if inspect.isclass(kind := getattr(package, name)) and issubclass(kind, BaseComponent)
    }
    assert {name.partition(",")[0] for name in CASES} == found


@pytest.mark.parametrize("name", CASES)
def test_a_component_reads_back_and_does_the_same(name):
    component, live, does = CASES[name]
    written = json.loads(json.dumps(component.to_dict()))
    assert written["class_name"] == name.partition(",")[0]
    assert written == json.loads(component.to_json())
    read = type(component).from_dict(dict(written), **live)
    assert read.to_dict() == written
    assert does(read) == does(component)
    again = type(component).from_json(component.to_json(), **live)
    assert again.to_dict() == written


# The default of the framework's own ``id_func`` is a function.
@pytest.mark.filterwarnings("ignore:Default value .* is not JSON serializable")
@pytest.mark.parametrize("name", CASES)
def test_the_settings_of_a_component_have_a_json_schema(name):
    component = type(CASES[name].component)
    schema = component.model_json_schema()
    written = schema["properties"].keys()
    assert written >= {field for field in component.model_fields if field != "callback_manager"}
    json.dumps(schema)


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        (name, live)
        for name, case in CASES.items()
        for live in case.live
        if live != "documents" and name != "LocalEmbedding"
    ],
)
def test_an_object_that_is_not_given_is_asked_for(name, left_out):
    component, live, _ = CASES[name]
    given = {key: value for key, value in live.items() if key != left_out}
    with pytest.raises(InvalidParameterError, match=f"{left_out} must be"):
        type(component).from_dict(component.to_dict(), **given)


def test_an_embedder_that_is_not_given_is_asked_for():
    with pytest.raises(ValueError, match=r"from_dict\(written, embedder=\.\.\.\)"):
        LocalEmbedding.from_dict(LSA.to_dict())


def test_a_chat_template_reads_back():
    template = ChatPromptTemplate.from_messages([("system", "Be short."), ("user", "{query_str}")])
    component = CompressPostprocessor(
        method="abstractive",
        compress_template=ChatPromptTemplate(
            [*template.message_templates], template_var_mappings={"context_str": "query_str"}
        ),
    )
    read = CompressPostprocessor.from_dict(component.to_dict())
    assert read.compress_template == component.compress_template
    functions = PromptTemplate("{context_str}", function_mappings={"context_str": str})
    written = component.to_dict() | {"compress_template": functions.model_dump()}
    with pytest.raises(InvalidParameterError, match="compress_template must be"):
        CompressPostprocessor.from_dict(written)


def test_a_pipeline_knows_a_component_that_was_read_back():
    component, live, _ = CASES["LongUnitNodeParser"]
    read = type(component).from_dict(component.to_dict(), **live)
    texts = [Document(id_=name, text=text) for name, text in TEXTS.items()]
    assert get_transformation_hash(texts, read) == get_transformation_hash(texts, component)
    other = LongUnitNodeParser(**{**live, "max_tokens": 98})
    assert get_transformation_hash(texts, other) != get_transformation_hash(texts, component)
    pipeline = IngestionPipeline(transformations=[component, LSA], disable_cache=False)
    nodes = pipeline.run(documents=texts)
    later = IngestionPipeline(transformations=[read, LSA], cache=pipeline.cache)
    assert [node.to_dict() for node in later.run(documents=texts)] == [
        node.to_dict() for node in nodes
    ]
