"""Why a question was lost: index, search or attribution (RICHES, Table 7).

The paper sorts fifty lost questions by hand. Here it is done by the definitions below, for
questions whose evidence is known.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from typing import Final, Literal, TypeAlias, get_args

from longrag.errors import InvalidParameterError
from longrag.evaluation.text_metrics import check_answers, check_text
from longrag.indexing import KeyIndex
from longrag.ingestion.key_extraction import one_line
from longrag.models.tokenizer import Tokenizer, encode_key

Loss: TypeAlias = Literal["index", "search", "attribution"]
"""Why a question was lost, as ``loss`` defines it."""

_POINTING: Final = re.compile(
    r"\W*(?:(?:it|its|he|him|his|she|hers?|they|them|theirs?|this|that|these|those|there|"
    r"the (?:former|latter|same))(?!\w)|[他她它牠其此这這那该該])",
    re.IGNORECASE,
)


def loss(
    *,
    correct: bool,
    entailed: bool,
    retrieved: Sequence[str],
    indexed: Container[str],
    gold_keys: Sequence[str] = (),
    gold_docs: Sequence[str] = (),
) -> Loss | None:
    """Tell why a question was lost; None where it was not.

    A question is lost when its answer is wrong or does not follow from what was retrieved. Of what
    is needed to answer it, the gold, everything must have been there at each step, and the first
    step where something was missing is the one to blame:

    - "index": a gold key or document is not in the index, or a gold key cannot be understood by
      itself (``needs_context``), so that it does not answer the question;
    - "search": all of the gold is in the index, and some of it was not retrieved;
    - "attribution": all of the gold was retrieved, and the answer is wrong all the same, or the
      evidence does not entail it.

    Gold is given as keys or as the ids of documents, and ``retrieved`` and ``indexed`` hold the
    same. Keys are compared as texts, white space apart. With documents, facts that are missing from
    a document that is there, or need its context, count as losses of the search; so do questions
    that could be answered from other evidence than the gold.

    Args:
        correct: whether the answer is right, by a metric and threshold of the caller's choice.
        entailed: whether the evidence entails it; see ``auto_ais``.
        retrieved: the keys, or the documents, that were retrieved.
        indexed: those in the index; see ``IndexedKeys``, and ``KeyIndex.doc_ids``.
        gold_keys: the keys that answer the question together.
        gold_docs: the ids of the documents that do.

    Raises:
        InvalidParameterError: not exactly one kind of gold, a blank one, or something that is not a
            string.
    """
    if bool(len(gold_keys)) == bool(len(gold_docs)):
        raise InvalidParameterError.because("Pass either gold_keys or gold_docs, and not empty.")
    keys = bool(len(gold_keys))
    gold = check_answers(gold_keys if keys else gold_docs, "gold_keys" if keys else "gold_docs")
    found = {check_text(f"retrieved[{at}]", text) for at, text in enumerate(_as_texts(retrieved))}
    if isinstance(indexed, str):
        raise InvalidParameterError("indexed", indexed, "a set of strings, or IndexedKeys")
    if keys:
        gold = [one_line(text) for text in gold]
        found = {one_line(text) for text in found}
    if correct and entailed:
        return None
    if any(one not in indexed or (keys and needs_context(one)) for one in gold):
        return "index"
    return "attribution" if found.issuperset(gold) else "search"


def needs_context(text: str) -> bool:
    """Tell whether a key begins with a word for something that is named elsewhere.

    Such as "it", "he" or "these", and their Chinese counterparts: the mark of a sentence that was
    taken out of its passage as it was. Words further on are not looked at, so a key that leaves out
    what it is about, such as "35 episodes were made", is not found, while one about the film "It"
    is.
    """
    return _POINTING.match(check_text("text", text)) is not None


def loss_counts(losses: Iterable[Loss | None]) -> dict[Loss, int]:
    """Count lost questions by reason, in the order of the table; None is a question not lost."""
    counts: dict[Loss, int] = dict.fromkeys(get_args(Loss), 0)
    for one in losses:
        if one is None:
            continue
        if one not in counts:
            raise InvalidParameterError("losses", one, f"one of {[*counts]} or None")
        counts[one] += 1
    return counts


class IndexedKeys:
    """The texts that can be decoded from an index, as what ``loss`` asks: ``text in keys``.

    Args:
        index: the index.
        tokenizer: the one it was made with.
    """

    def __init__(self, index: KeyIndex, tokenizer: Tokenizer) -> None:
        self._index, self._tokenizer = index, tokenizer

    def __contains__(self, text: object) -> bool:
        if not isinstance(text, str) or not text.strip():
            return False
        state = self._index.find(encode_key(self._tokenizer, one_line(text)))
        return state is not None and self._index.may_close(state)


def _as_texts(texts: Sequence[str]) -> Sequence[str]:
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InvalidParameterError("retrieved", texts, "a list of strings")
    return texts
