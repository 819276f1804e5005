"""The house itself: what is exported, what is imported when, and what may stand nowhere."""

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import langchain_longrag
import llama_index_longrag
import longrag

ROOT = Path(__file__).parents[2]
HEAVY = ("sklearn", "scipy", "numba", "torch", "transformers", "faiss", "networkx", "markdown_it",
         "selectolax", "sentencex", "umap")  # fmt: skip

EXPORTED = {
    "llama_index_longrag": [
        "AsyncTransformRetriever",
        "ChunkMetadataExtractor",
        "CompressPostprocessor",
        "EvidenceRetriever",
        "ExtractiveLLM",
        "HybridRetriever",
        "HydeTransform",
        "LocalEmbedding",
        "LongRAGIndex",
        "LongUnitNodeParser",
        "LongUnitTool",
        "MaxPRetriever",
        "MediaQueryEngine",
        "MonoT5Rerank",
        "QueryClassifierQueryEngine",
        "RaptorIndex",
        "RaptorRetriever",
        "RecipeQueryEngine",
        "RecipeSynthesizer",
        "RepackPostprocessor",
        "RichesLLM",
        "RichesQueryEngine",
        "ScorerRerank",
        "TildeRerank",
        "TwoTurnSynthesizer",
        "balanced_efficiency",
        "best_performance",
    ],
    "langchain_longrag": [
        "ChatRiches",
        "ChunkMetadataTransformer",
        "CompressDocuments",
        "EvidenceRetriever",
        "ExtractiveChatModel",
        "HybridRetriever",
        "LocalEmbeddings",
        "LongRAGIndex",
        "LongUnitTransformer",
        "MaxPRetriever",
        "MediaFinder",
        "MetadataReplacement",
        "MonoT5Rerank",
        "QueryTransformRetriever",
        "RaptorIndex",
        "RaptorRetriever",
        "ReaderSettings",
        "RecipeSettings",
        "RepackDocuments",
        "RichesRetriever",
        "ScorerRerank",
        "SentenceWindowTransformer",
        "TildeRerank",
        "answer_alone",
        "balanced_efficiency",
        "best_performance",
        "create_longrag_chain",
        "create_longrag_tool",
        "create_query_gate",
        "create_two_turn_reader",
    ],
}


@pytest.mark.parametrize("name", EXPORTED)
def test_the_adapters_export_exactly_these_names(name):
    assert importlib.import_module(name).__all__ == EXPORTED[name]


@pytest.mark.parametrize(
    "name",
    ["ingestion", "indexing", "retrieval", "refinement", "decoding", "synthesis", "recipes",
     "models", "evaluation"],
)  # fmt: skip
def test_every_exported_name_exists_and_is_in_order(name):
    module = importlib.import_module(f"longrag.{name}")
    assert module.__all__ == sorted(module.__all__)
    assert [hasattr(module, exported) for exported in module.__all__] == [True] * len(
        module.__all__
    )


def modules():
    for package in (longrag, llama_index_longrag, langchain_longrag):
        yield package.__name__
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield found.name


@pytest.mark.parametrize("name", list(modules()))
def test_every_module_and_public_name_is_documented(name):
    module = importlib.import_module(name)
    assert module.__doc__, name
    for attribute, value in vars(module).items():
        own = getattr(value, "__module__", None) == name and callable(value)
        if own and not attribute.startswith("_") and "._" not in name:
            assert value.__doc__, f"{name}.{attribute}"


@pytest.mark.parametrize(
    ("framework", "adapter"),
    [
        (None, "longrag.retrieval, longrag.synthesis, longrag.ingestion"),
        ("llama_index.core", "llama_index_longrag"),
        ("langchain_core.retrievers", "langchain_longrag"),
    ],
)
def test_importing_loads_nothing_heavy_that_the_framework_did_not(framework, adapter):
    code = (
        "import sys\n"
        + (f"import {framework}\n" if framework else "")
        + "before = set(sys.modules)\n"
        + f"import {adapter}\n"
        + f"print([name for name in {HEAVY!r} if name in sys.modules and name not in before])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_types_are_published():
    for name in ("longrag", "llama_index_longrag", "langchain_longrag"):
        assert (ROOT / name / "py.typed").is_file()


def test_no_module_uses_what_the_house_forbids():
    forbidden = re.compile(r"\bpickle\b|\beval\(|\bexec\(|trust_remote_code|allow_pickle=True")
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for name in ("longrag", "llama_index_longrag", "langchain_longrag")
        for path in sorted((ROOT / name).rglob("*.py"))
        for match in forbidden.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
