"""From units to an answer: prompts filled, answers parsed, a reader that needs no model."""

from typing import TYPE_CHECKING

from longrag import lazily

if TYPE_CHECKING:
    from longrag.synthesis.extractive import answer_prompt, extract_evidence, shortest_answer
    from longrag.synthesis.two_turn import (
        AnswerStream,
        FittedContext,
        ReaderAnswer,
        ReaderDocument,
        fit_context,
        read,
        reader_documents,
    )
else:
    __getattr__, __dir__ = lazily(
        globals(),
        {
            "extractive": "answer_prompt extract_evidence shortest_answer",
            "two_turn": (
                "AnswerStream FittedContext ReaderAnswer ReaderDocument fit_context read "
                "reader_documents"
            ),
        },
    )

__all__ = [
    "AnswerStream",
    "FittedContext",
    "ReaderAnswer",
    "ReaderDocument",
    "answer_prompt",
    "extract_evidence",
    "fit_context",
    "read",
    "reader_documents",
    "shortest_answer",
]
