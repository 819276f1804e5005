"""Precision and recall of link extraction and resolution on true hyperlinks.

    python benchmarks/links.py

The corpus is the PowerShell documentation: raw Markdown with paths, and for each page the pages of
the corpus it links to. What only this site knows (its ``xref:`` scheme and where its absolute paths
lead) is given as rules, as a user of the library would give it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from public_data import add_data_option, rows

from longrag.ingestion.links import LinkExtractor, MarkdownLinkExtractor
from longrag.ingestion.resolving import (
    LinkReport,
    LinkResolver,
    LinkRule,
    PrefixRule,
    resolve_links,
)
from longrag.types import Document

MODULES = "/reference/7.5/"
CONCEPTS = "/reference/docs-conceptual/"


def xref(target: str, source: Document) -> str | None:
    """Rewrite ``xref:Module.Name.Command`` to the path of the command's page."""
    if not target.startswith("xref:"):
        return None
    module, _, command = target.removeprefix("xref:").rpartition(".")
    return f"{MODULES}{module}/{command}"


SITE_RULES: tuple[LinkRule, ...] = (
    xref,
    PrefixRule("https://learn.microsoft.com/powershell/module/", MODULES),
    PrefixRule("/powershell/module/", MODULES),
    PrefixRule("/powershell/scripting/", CONCEPTS),
)


def load(folder: Path) -> tuple[list[Document], set[tuple[str, str]]]:
    """Return the pages of the corpus and its true edges, as pairs of ids."""
    pages = [
        Document(row["id"], row["markdown"], metadata={"path": row["path"]})
        for row in rows(folder / "d_docs" / "powershell.markdown.jsonl.gz")
    ]
    truth = {
        (row["id"], target)
        for row in rows(folder / "d_docs" / "powershell.corpus.jsonl.gz")
        for target in row["links"]
    }
    return pages, truth


def measure(
    pages: list[Document], extractor: LinkExtractor, rules: tuple[LinkRule, ...]
) -> tuple[LinkReport, set[tuple[str, str]]]:
    """Resolve the links of the pages; return the report and its edges as pairs of ids."""
    report = resolve_links(pages, extractor=extractor, resolver=LinkResolver(pages, rules=rules))
    return report, {(pages[source].id, pages[target].id) for source, target in report.links}


def main() -> None:
    """Print the table: with the site's rules, and without."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_data_option(parser)
    parser.add_argument("--misses", action="store_true", help="print every miss and false hit")
    options = parser.parse_args()
    pages, truth = load(options.data)
    print("rules  docs  edges  precision  recall  unresolved  external  seconds")
    for name, rules in (("none", ()), ("site", SITE_RULES)):
        start = time.perf_counter()
        report, edges = measure(pages, MarkdownLinkExtractor(), rules)
        seconds = time.perf_counter() - start
        hits = len(edges & truth)
        print(
            f"{name:5} {len(pages):5} {len(edges):6} {hits / len(edges):10.4f} "
            f"{hits / len(truth):7.4f} {len(report.unresolved):11} {len(report.external):9} "
            f"{seconds:8.2f}"
        )
    if options.misses:
        for label, pairs in (("missed", truth - edges), ("false", edges - truth)):
            for source, target in sorted(pairs):
                print(label, source, "->", target)


if __name__ == "__main__":
    main()
