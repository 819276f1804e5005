"""``longrag ask QUESTION``: an answer with the places it is from."""

from __future__ import annotations

import argparse
from typing import Any

from longrag.cli.arguments import (
    add_embedder,
    add_file,
    add_llm,
    add_output,
    generator,
    print_json,
    printable,
    progress,
    read_options,
)
from longrag.errors import InvalidParameterError
from longrag.index_file.searching import Answered, IndexFile

_PLACES_SHOWN = 6


def add(commands: Any) -> None:
    """Describe the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "ask",
        description="Answer a question from an index file, with the places it is from.",
    )
    parser.add_argument("question", help="the question, in quotes")
    add_file(parser, option=True)
    parser.add_argument(
        "--search",
        choices=["units", "tree", "both"],
        help="what is searched (default units, or the tree of a file without units)",
    )
    parser.add_argument(
        "--evidence",
        action="store_true",
        help="single passages, and those they lead to, in place of whole units",
    )
    parser.add_argument(
        "--token-budget", type=int, default=8000, help="tokens that are read (default 8000)"
    )
    parser.add_argument("--k", type=int, default=8, help="most units or nodes (default 8)")
    add_embedder(parser, None, "needed where the file was made with an imported embedder")
    add_llm(parser, "writes the answer; without one it quotes sentences")
    add_output(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Answer, and tell from where; the status is 1 when nothing was found."""
    if options.evidence and options.search is not None:
        raise InvalidParameterError(
            "search", options.search, "left out with --evidence", "Evidence is made of passages."
        )
    generate = generator(options)
    given = read_options("embedder-options", options.embedder_options)
    with progress(options).step("opening the index and asking"):
        answered = IndexFile(options.file, embedder=options.embedder, options=given).ask(
            options.question,
            generate=generate,
            source="evidence" if options.evidence else options.search,
            token_budget=options.token_budget,
            k=options.k,
        )
    if options.json:
        print_json(_record(answered, options.token_budget))
    else:
        print(printable(_page(answered)))
    return 0 if answered.found else 1


def _record(answered: Answered, token_budget: int) -> dict[str, Any]:
    return {
        "question": answered.question,
        "answer": answered.answer,
        "quotes": [
            {"text": one.text, "place": None if one.place is None else one.place.record()}
            for one in answered.quotes
        ],
        "tokens": answered.tokens,
        "token_budget": token_budget,
        "sources": [one.record() for one in answered.found],
    }


def _page(answered: Answered) -> str:
    lines = [answered.answer]
    for quote in answered.quotes:
        lines += ["", *(f"  | {line}" for line in quote.text.splitlines())]
        if quote.place is not None:
            lines.append(f"    {quote.place}")
    lines += ["", f"read {answered.tokens:,} tokens:"]
    for rank, found in enumerate(answered.found, start=1):
        score = "" if found.score is None else f"{found.score:.3f}  "
        where = found.place or f"{len(found.places)} places below"
        lines.append(f"  {rank}. {score}{found.kind}, {found.tokens:,} tokens, best at {where}")
        pages = list(dict.fromkeys(place.path for place in found.places))
        if len(pages) > 1:
            more = len(pages) - _PLACES_SHOWN
            shown = ", ".join(pages[:_PLACES_SHOWN])
            lines.append(f"     of {shown}" + (f" and {more} more" if more > 0 else ""))
    return "\n".join(lines)
