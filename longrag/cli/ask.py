"""``longrag ask QUESTION``: an answer with the places it is from."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from longrag.cli.written import Answering, tell_written
from longrag.errors import InvalidParameterError
from longrag.index_file.checked_quotes import quote_record
from longrag.index_file.quotes import Quote
from longrag.index_file.searching import Answered, IndexFile
from longrag.models.text_model import TextModel
from longrag.synthesis.two_turn import EMPTY_ANSWER
from longrag.types import Document

_PAGES_SHOWN = 4


def add(commands: Any) -> None:
    """Describe the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "ask",
        description="Answer a question from an index file, with the places it is from.",
    )
    parser.add_argument("question", help="the question, in quotes")
    add_asking(parser)
    parser.set_defaults(run=run)


def add_asking(parser: argparse.ArgumentParser) -> None:
    """Add what says how questions are asked."""
    add_file(parser, option=True)
    parser.add_argument(
        "--search",
        choices=["units", "tree", "both"],
        help="what is searched (default units, or the tree of a file without units)",
    )
    add_reading(parser)
    add_embedder(parser, None, "needed where the file was made with an imported embedder")
    add_llm(parser, "writes the answer; without one passages are quoted")
    parser.add_argument(
        "--quotes",
        action="store_true",
        help="the model answers with quotes, each looked up before it is shown: without one that"
        " is found there is no answer",
    )
    add_output(parser)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add what says how much is read, and in which form."""
    parser.add_argument(
        "--evidence",
        action="store_true",
        help="single passages, and those they lead to, in place of whole units",
    )
    parser.add_argument(
        "--token-budget", type=int, default=8000, help="tokens that are read (default 8000)"
    )
    parser.add_argument("--k", type=int, default=8, help="most units or nodes (default 8)")


def run(options: argparse.Namespace) -> int:
    """Answer, and tell from where; the status is 1 when nothing was found."""
    model = model_of(options)
    with _uncollected():
        return answer(open_index(options), options.question, options, model)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Look for no garbage: nearly all that one question reads lives until its answer."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def model_of(options: argparse.Namespace) -> TextModel | None:
    """Return the model that answers, if any."""
    model = generator(options)
    if options.quotes and model is None:
        raise InvalidParameterError.because(
            "--quotes needs a language model: without one all that is shown is quoted anyway."
        )
    return model


def open_index(options: argparse.Namespace) -> IndexFile:
    """Open the index file that is asked."""
    if options.evidence and options.search is not None:
        raise InvalidParameterError.because("Choose --search or --evidence.")
    given = read_options("embedder-options", options.embedder_options)
    with progress(options).step("opening the index"):
        return IndexFile(options.file, embedder=options.embedder, options=given)


def answer(
    opened: IndexFile, question: str, options: argparse.Namespace, model: TextModel | None
) -> int:
    """Answer one question, and return the status: 1 when nothing was found."""
    with Answering(progress(options)) as answering:
        answered = opened.ask(
            question,
            generate=model,
            quotes=options.quotes,
            show=None if options.json else answering.show,
            source="evidence" if options.evidence else options.search,
            token_budget=options.token_budget,
            k=options.k,
        )
    record = _record(answered, options.token_budget, opened.documents)
    if model is not None:
        tell_written(answered, record if options.json else None, model)
    elif options.json:
        print_json(record)
    else:
        print(printable(_page(answered)))
    return 1 if answered.answer == EMPTY_ANSWER else 0


def _record(
    answered: Answered, token_budget: int, documents: Mapping[str, Document]
) -> dict[str, Any]:
    return {
        "question": answered.question,
        "answer": answered.answer,
        "quotes": [
            {
                "text": one.text,
                "headings": one.headings,
                "place": None if one.place is None else one.place.record(),
            }
            for one in answered.quotes
        ],
        "rejected": [quote_record(one, documents) for one in answered.rejected],
        "tokens": answered.tokens,
        "token_budget": token_budget,
        "sources": [one.record() for one in answered.found],
    }


def _page(answered: Answered) -> str:
    pages = list(dict.fromkeys(place.path for one in answered.found for place in one.places))
    more = len(pages) - _PAGES_SHOWN
    shown = ", ".join(pages[:_PAGES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return (
        f"{quoted(answered.answer, answered.quotes)}\n\nread {answered.tokens:,} tokens of {shown}"
    )


def quoted(answer: str, quotes: Sequence[Quote]) -> str:
    """Write an answer that quotes passages: each with its place and headings, as it stands."""
    parts = [
        f"[{number}] {quote.place or ''}  {' › '.join(quote.headings)}".rstrip() + f"\n{quote.text}"
        for number, quote in enumerate(quotes, start=1)
    ]
    if not quotes or answer != quotes[0].text:
        parts.insert(0, answer)
    return "\n\n".join(parts)
