"""What the documentation site is made of besides the pages: its navigation and its reference.

The navigation is read from the tables of ``docs/index.md``, so that a page is listed in one place.
The reference has one page for each package and module with public names, from their docstrings.
"""

import importlib
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent
CORE = ("ingestion", "indexing", "retrieval", "refinement", "synthesis", "decoding", "quoting",
        "recipes", "indices", "stores", "explorer",
        "evaluation", "evaluation.datasets", "evaluation.harness", "evaluation.judged",
        "models", "calls", "journal", "prompts", "types", "errors")  # fmt: skip
MODULES = ("llama_index_longrag", "langchain_longrag", *(f"longrag.{name}" for name in CORE))

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_ROW = re.compile(r"^\| \[[^\]]+\]\(([^)]+\.md)\)", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the navigation of the sections of the index page and the pages they list."""
    parts = _SECTION.split((ROOT / "docs" / "index.md").read_text("utf-8"))
    navigation: list[Any] = [{"Home": "index.md"}]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if pages := _ROW.findall(body):
            if title == "Reference":
                pages = [*pages, *({name: _page(name)} for name in MODULES)]
            navigation.append({title: pages})
    config.nav = navigation
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page of public names for each module."""
    for name in MODULES:
        files.append(File.generated(config, _page(name), content=_reference(name)))
    return files


def _page(name: str) -> str:
    return f"reference/{name}.md"


def _reference(name: str) -> str:
    module = importlib.import_module(name)
    typed = getattr(module, "__annotations__", {})
    own = [
        attribute
        for attribute, value in vars(module).items()
        if not attribute.startswith("_")
        and (getattr(value, "__module__", None) == name or attribute in typed)
    ]
    public = getattr(module, "__all__", None) or own
    summary = (module.__doc__ or "").strip()
    entries = "\n\n".join(f"::: {name}.{attribute}" for attribute in public)
    return f"# {name}\n\n{summary}\n\n{entries}\n"
