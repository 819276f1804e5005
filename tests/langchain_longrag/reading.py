"""A language model that writes what it is told to, as far as it is let, and pages for it to read.

It needs no torch: a table of characters, of which the next one of the script is the likely one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from langchain_core.documents import Document

from tests.fakes import Door
from tests.tiny_models import CharacterTokenizer, TableModel

ALPHABET = "\n" + "".join(map(chr, range(32, 127))) + "é中文？：〈〉"
FACTS = {
    "mill": "The mill grinds rye. The mill burned down in 1684.",
    "weir": "The weir was built in 1312. The weir holds the river back.",
    "church": "The church has one clock.\n\nThe clock strikes at noon.",
}
PAGES = [
    Document(
        text,
        id=name,
        metadata={"title": name.title(), "source": f"https://example.org/{name}", "tags": [name]},
    )
    for name, text in FACTS.items()
]


def writing(
    script: Callable[[str], str],
    *,
    name: str = "reader",
    pause: float = 0,
    door: Door | None = None,
    **settings: Any,
) -> TableModel:
    """Return a model that goes on with ``script(question)``, behind a quote it had to change too.

    ``pause`` is the seconds that each probability takes, at ``door`` each waits.
    """
    tokenizer = CharacterTokenizer(ALPHABET)

    def probabilities(prefix: tuple[int, ...]) -> np.ndarray:
        time.sleep(pause)
        if door is not None:
            door.through()
        asked, _, output = tokenizer.decode(prefix).rpartition("\npassage:")
        question = asked.rpartition("question:")[2].strip()
        found = np.full(tokenizer.vocab_size, 0.1 / tokenizer.vocab_size)
        wanted = _next(script(question), output)
        if wanted is not None:
            found[ALPHABET.index(wanted) if wanted else len(ALPHABET)] += 0.9
        return found / found.sum()

    return TableModel(tokenizer, probabilities, name=name, **settings)


def _next(script: str, output: str) -> str | None:
    """Return the next character, "" at the end, None where the model is led elsewhere."""
    if script.startswith(output):
        return script[len(output) : len(output) + 1]
    if " >>" not in output:
        return None
    script, output = script.rpartition(" >>")[2], output.rpartition(" >>")[2]
    return script[len(output) : len(output) + 1] if script.startswith(output) else ""


def quoting(question: str) -> str:
    """Quote the sentence that shares most words with the question, then answer its last word."""
    words = set(question.lower().replace("?", "").split())
    sentences = [f"{one}." for text in FACTS.values() for one in text.strip(".").split(". ")]
    sentences = [one for text in sentences for one in text.split("\n\n")]
    best = max(sentences, key=lambda one: len(words & set(one.lower().strip(".").split())))
    return f" keyword: fact << {best} >>\nanswer: {best.strip('.').split()[-1]}"
