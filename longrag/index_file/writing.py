"""An answer that a language model writes from what was found, and what it quotes of that."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from longrag.errors import GenerationError
from longrag.index_file.models import Generator
from longrag.index_file.places import locate
from longrag.index_file.quotes import Quote
from longrag.ingestion.sentences import split_sentences
from longrag.models.text_model import Show, TextModel
from longrag.models.tokens import count_tokens
from longrag.synthesis.two_turn import (
    EMPTY_ANSWER,
    AnswerStream,
    first_turn,
    fit_context,
    reader_documents,
)
from longrag.types import Document, RetrievedUnit

# Fewer are said without quoting anybody.
_QUOTED_TOKENS: Final = 5
_MARKS: Final = "\"'“”‘’«»> "


def write_answer(
    question: str, retrieved: Sequence[RetrievedUnit], generate: Generator, show: Show | None = None
) -> str:
    """Return a language model's answer to a question, in one call.

    The prompt is that of the reader's first turn. Thoughts and repeated instructions are left out
    of the reply before anything of it is shown, so that nothing shown is taken back.

    Args:
        question: the question.
        retrieved: what was found for it; without any the model is not called.
        generate: the language model.
        show: is given the answer piece by piece.

    Raises:
        GenerationError: the language model gave no text.
        ModelCallError: the language model could not be called, or broke off.
    """
    show = show or (lambda piece: None)
    if not retrieved:
        show(EMPTY_ANSWER)
        return EMPTY_ANSWER
    prompt, echo = first_turn(question, fit_context(reader_documents(retrieved)).text)
    answer = AnswerStream(EMPTY_ANSWER, echo=echo)

    def feed(piece: str) -> None:
        if shown := answer.feed(piece):
            show(shown)

    if isinstance(generate, TextModel):
        generate.write(prompt, feed)
    else:
        reply = generate(prompt)
        if not isinstance(reply, str):
            raise GenerationError(f"a model's answer must be a string, got {reply!r}")
        feed(reply)
    if rest := answer.finish():
        show(rest)
    return answer.text


def find_quotes(
    answer: str, retrieved: Sequence[RetrievedUnit], documents: Mapping[str, Document]
) -> Iterator[Quote]:
    """Yield the lines and sentences of an answer that stand at exactly one place, in order.

    A line is taken whole where it stands there whole. Those of fewer than five tokens are passed
    over, and so is all that the model put in other words.
    """
    for line in answer.splitlines():
        if whole := _quote(line, retrieved, documents):
            yield whole
            continue
        for start, end in split_sentences(line):
            if part := _quote(line[start:end], retrieved, documents):
                yield part


def _quote(
    text: str, retrieved: Sequence[RetrievedUnit], documents: Mapping[str, Document]
) -> Quote | None:
    text = text.strip(_MARKS)
    if count_tokens(text) < _QUOTED_TOKENS:
        return None
    # What was found twice, as a unit and as a node of the tree, is one place.
    hits = {
        (member.doc_id, member.doc_start + match.start())
        for one in retrieved
        for member in one.unit.members
        for match in re.finditer(re.escape(text), one.unit.text[member.start : member.end])
        if member.placed
    }
    if len(hits) != 1:
        return None
    ((doc_id, start),) = hits
    return Quote(text, locate(documents[doc_id], start, start + len(text)))
