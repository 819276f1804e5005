"""A language model that writes what a script says, and a corpus it writes about."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from llama_index.core import Document

from tests.fakes import PATIENCE
from tests.tiny_models import CharacterTokenizer, TableModel

ALPHABET = "\n" + "".join(map(chr, range(32, 127))) + "éü，：中文。"
BURNED = "When did the mill burn down?"
TOLD = (
    " keyword: fire of the mill << It burned down in 1684. >> keyword: the river"
    " << The weir holds the river back. >>\nanswer: 1684"
)


def documents() -> list[Document]:
    mill = "The mill grinds rye. It burned down in 1684.\n\n## Today\n\nIt is a museum."
    return [
        Document(text=mill, id_="mill.md", metadata={"title": "The mill", "author": "Ann"}),
        Document(text="The weir holds the river back.", id_="weir.md"),
    ]


class Scripted(TableModel):
    """Writes the output of the question that stands last in the prompt, as far as it may.

    Each call of the model waits for the ``gate``, which is open.
    """

    def __init__(self, scripts: Mapping[str, str], **settings: Any) -> None:
        tokenizer = CharacterTokenizer(ALPHABET)
        super().__init__(tokenizer, self._probabilities, **settings)
        self.scripts = scripts
        self.sessions = 0
        self.open_sessions = 0
        self.threads: set[int] = set()
        self.called = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def prompt_ids(self, prompt: str) -> list[int]:
        self.threads.add(threading.get_ident())
        return self.tokenizer.encode(prompt)

    def session(self, prompts: Any) -> Any:
        return _Watched(self, super().session(prompts))

    def _probabilities(self, prefix: tuple[int, ...]) -> Any:
        text = self.tokenizer.decode(prefix)
        weights = np.ones(self.tokenizer.vocab_size)
        for question, output in self.scripts.items():
            _, found, written = text.rpartition(question)
            for label in ("passage:", "\nassistant: "):
                written = written.partition(label)[2] if label in written else written
            if found and output.startswith(written):
                whole = output == written
                weights[-1 if whole else ALPHABET.index(output[len(written)])] = 5000
        return weights / weights.sum()


class _Watched:
    def __init__(self, model: Scripted, inner: Any) -> None:
        self._model, self._inner = model, inner

    def __enter__(self) -> Any:
        self._model.sessions += 1
        self._model.open_sessions += 1
        self._session = self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        self._model.open_sessions -= 1
        return self._inner.__exit__(*error)

    def score(self, asked: Any) -> Any:
        self._model.threads.add(threading.get_ident())
        self._model.called.set()
        assert self._model.gate.wait(PATIENCE)
        return self._session.score(asked)
