"""What a run finds in its journal, and what it claims there before it asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from longrag.calls.requests import CallResult, Compute, Embed, Generate, Request
from longrag.errors import JournalError

if TYPE_CHECKING:
    from longrag.journal import Journal


@dataclass(frozen=True, slots=True)
class Recall:
    """The part of a request still to be asked, and how its outcome is made from the answer.

    ``keys`` are the claims on the calls that are still to be made.
    """

    asked: Request | None
    finish: Callable[[Any], CallResult]
    keys: tuple[bytes, ...] = ()


class RunJournal:
    """A run's journal, if any, and the claims that the run has made in it."""

    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._claimed: set[bytes] = set()

    def keeps(self, request: Request) -> bool:
        """Whether the journal is consulted before a request is answered."""
        match request:
            case _ if self._journal is None:
                return False
            case Embed(sources=sources):
                return bool(sources)
            case Compute(key=key):
                return bool(key)
            case _:
                return isinstance(request, Generate)

    def recall(self, request: Request) -> Recall | None:
        """Look a request up and claim what is missing; None while another run asks for it."""
        journal = self._journal
        if journal is None or not self.keeps(request):
            return Recall(request, _unchanged)
        recalled = _recall(request, journal)
        if not recalled.keys:
            return recalled
        if not journal.claim(recalled.keys):
            return None
        self._claimed.update(recalled.keys)
        # The run that claimed it may have ended since.
        again = _recall(request, journal)
        self.release(tuple(set(recalled.keys).difference(again.keys)))
        return again

    @contextmanager
    def holding(self, recalled: Recall) -> Iterator[None]:
        """Release the claims of a request that failed; writing an answer releases its claim."""
        try:
            yield
        except BaseException:
            self.release(recalled.keys)
            raise
        self._claimed.difference_update(recalled.keys)

    def release(self, keys: tuple[bytes, ...]) -> None:
        """Release claims of this run."""
        held = self._claimed.intersection(keys)
        if held and self._journal is not None:
            # A claim that cannot be removed expires.
            with suppress(JournalError):
                self._journal.release(tuple(held))
            self._claimed.difference_update(held)

    def close(self) -> None:
        """Release the claims of calls that were interrupted."""
        self.release(tuple(self._claimed))


def _recall(request: Request, journal: Journal) -> Recall:
    match request:
        case Generate(prompt=prompt):
            known = journal.get(prompt)
            return Recall(
                request if known is None else None,
                lambda answer: (
                    journal.put(prompt, answer, sources=request.sources) if known is None else known
                ),
                (journal.answer_key(prompt),) if known is None else (),
            )
        case Compute(key=key):
            # Work that costs nothing is not waited for.
            result = journal.get(key)
            return Recall(
                request if result is None else None,
                lambda made: (
                    journal.put(key, made, sources=request.sources) if result is None else result
                ),
            )
        case Embed():
            return _recall_vectors(request, journal)
        case _:
            return Recall(request, _unchanged)


def _recall_vectors(request: Embed, journal: Journal) -> Recall:
    known = journal.get_vectors(request.texts, role=request.role)
    missing = [index for index, vector in enumerate(known) if vector is None]
    texts = tuple(request.texts[index] for index in missing)
    sources = tuple(request.sources[index] for index in missing)

    def finish(answer: Any) -> CallResult:
        if missing:
            paid = journal.put_vectors(texts, answer, role=request.role, sources=sources)
            for index, vector in zip(missing, paid, strict=True):
                known[index] = vector
        return known

    asked = replace(request, texts=texts, sources=sources) if missing else None
    keys = dict.fromkeys(journal.vector_key(text, request.role) for text in texts)
    return Recall(asked, finish, tuple(keys))


def _unchanged(answer: Any) -> CallResult:
    return answer
