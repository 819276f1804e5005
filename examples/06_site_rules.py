"""Teach the resolver what only one site knows, and see what is left unresolved."""

from collections import Counter

from longrag.ingestion import LinkResolver, PrefixRule, long_units, resolve_links
from longrag.types import Document

documents = [
    Document("guide/start.md", "Open a store with [Open](xref:Store.Open), see [help](/help/faq)."),
    Document("guide/faq.md", "Answers. Ask [the list](https://lists.example.org/store)."),
    Document("api/Store.Open.md", "Opens a store. Close it with [Close](xref:Store.Close)."),
    Document("api/Store.Close.md", "Closes a store. See [the guide](old://guide/start)."),
]


def old_guide(target: str, source: Document) -> str | None:
    """Follow links of the old site; None leaves other targets to the next rule."""
    return "/guide/" + target.rpartition("/")[2] if target.startswith("old://") else None


def show(title: str, *rules) -> None:
    report = resolve_links(documents, resolver=LinkResolver(documents, rules=rules))
    units, _ = long_units(documents, report.links)
    print(f"{title}: {len(report.links)} links, {len(units)} units")
    for left in report.unresolved:
        print(f"  unresolved in {left.doc_id}: {left.target}")
    for left in report.external:
        print(f"  external in {left.doc_id}: {left.target}")
    schemes = Counter(left.target.partition(":")[0] for left in report.unresolved)
    if schemes:
        print("  most frequent beginning:", schemes.most_common(1)[0][0])


show("Without rules")
show("With rules", PrefixRule("xref:", "/api/"), PrefixRule("/help/", "/guide/"), old_guide)

# The adapters take the same rules: LongUnitNodeParser(link_rules=[...]) and
# LongUnitTransformer(link_rules=[...]).
