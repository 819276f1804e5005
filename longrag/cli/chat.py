"""``longrag chat``: several questions to an index file that is opened once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from longrag.cli.ask import add_asking, answer, model_of, open_index
from longrag.errors import GenerationError, InvalidParameterError, ModelCallError
from longrag.models.served import ServedModel

_PROMPT = "> "


def add(commands: Any) -> None:
    """Describe the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "chat",
        description="Answer the questions that are typed or piped in, one a line, until an empty"
        " line or Ctrl-D. Each stands alone: what was asked and answered before is not remembered.",
    )
    add_asking(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Answer each line; the status is the highest of all answers'.

    A question that cannot be answered is told in one line, and counts as status 2.
    """
    model = model_of(options)
    opened = open_index(options)
    status = 0
    for question in _questions():
        if isinstance(model, ServedModel):
            # The server may have been started, or the account paid, since the last question.
            model.start_over()
        try:
            status = max(status, answer(opened, question, options, model))
        except (GenerationError, InvalidParameterError, ModelCallError) as error:
            print("error:", " ".join(str(error).split()), file=sys.stderr)
            status = 2
        if not options.json:
            print(flush=True)
    return status


def _questions() -> Iterator[str]:
    """Yield lines until an empty one; a terminal is shown that a question is awaited."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            if not line.strip():
                return
            yield line.strip()
        return
    while True:
        try:
            line = input(_PROMPT).strip()
        except EOFError:
            print()
            return
        if not line:
            return
        yield line
