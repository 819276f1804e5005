"""Which sentences of some texts say most of them: coverage under a budget of tokens.

A sentence is worth what it adds to those chosen before it: content words that several texts share,
names and numbers first, and nearness to sentences that nothing chosen is near to. Both are
submodular, so that greedy choice is close to the best (Lin and Bilmes 2011; for words as concepts,
Gillick and Favre 2009). On stories with human summaries this covers far more of what the summaries
say than choice by centrality, which finds sentences that are typical rather than informative.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from longrag.ingestion.sentences import SentenceSplitter, strip_span
from longrag.models.words import CJK, content_terms, word_set

_SHARE_OF_NEARNESS: Final = 0.3
_NAME: Final = 2
_LENGTH_POWER: Final = 0.75
_WITHOUT_ANTECEDENT: Final = 0.7
_QUOTABLE: Final = 0.25
_NEW_WORDS: Final = 0.2
_BLOCK_ROWS: Final = 1024

_WORD: Final = re.compile(rf"[{CJK}]|[^\W_]+")
_WRAPPED_CJK: Final = re.compile(rf"(?<=[{CJK}。，、；：])[ \t]*\r?\n\s*(?=[{CJK}])")
_NAMES: Final = re.compile(r"(?<=[a-z,] )[A-Z][\w-]+|\d[\w.,]*")
_FENCE: Final = re.compile(r"^[ ]{0,3}(?:```|~~~)(.*)$", re.MULTILINE)
_HEADING: Final = re.compile(r"#{1,6}(?:\s|$|[\u3400-\u9fff])|[^\n]*\n(?:=+|-+)\s*$")
_MARKER: Final = re.compile(r"(?:[-*+•]|\d{1,3}[.)]|>)[ \t]+")
_TERMINATED: Final = re.compile(r"[.!?。！？…;:][\"'”’»」』）)\]*_]*$")
_DENSE_END: Final = re.compile(r"[。！？…；：」』）]$")
_LEANING: Final = word_set("""
    he she it they his her hers its their theirs him them this that these those such i we you
    and but or so yet nor then thus hence therefore however moreover also still instead meanwhile
    otherwise besides because although though which who yes no oh well there here
""")
_LEANING_CJK: Final = (*tuple("他她它这那但而彼"), "所以", "因此", "于是", "然而", "不过", "しかし")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of one of several texts.

    ``weight``, up to 1, tells how well it can be quoted; ``leans`` that it begins with a pronoun or
    a connective; ``follows`` that the sentence before it in the list precedes it in its text.
    """

    text: str
    source: int
    weight: float
    leans: bool
    follows: bool


def list_sentences(texts: Sequence[str], split: SentenceSplitter) -> list[Sentence]:
    """List the sentences of texts in their order, equal ones once.

    Sentences are equal when their words are, whatever their case and punctuation. White space
    within a sentence becomes a single space, so that wrapped lines are one again, and a list marker
    is not part of it; all else is verbatim.
    """
    found: dict[str, Sentence] = {}
    for source, text in enumerate(texts):
        follows = False
        for quote, in_code in _quotes(text, split):
            key = " ".join(_WORD.findall(quote)).casefold() or quote
            if key not in found:
                weight = 0.1 if in_code else _quotability(quote)
                found[key] = Sentence(quote, source, weight, _leans(quote), follows)
                follows = True
            else:
                follows = False
    return list(found.values())


def _quotes(text: str, split: SentenceSplitter) -> Iterator[tuple[str, bool]]:
    """Yield each sentence on one line, and whether it is code."""
    fences = _FENCE.findall(text)
    # A closing fence comes first where the text was cut out of a document inside its code.
    in_code = len(fences) % 2 == 1 and not fences[0].strip()
    for start, end in split(text):
        opened = len(_FENCE.findall(text[start:end]))
        heading = _HEADING.match(text, start, end)
        marker = _MARKER.match(text, start, end)
        begin, stop = strip_span(text, marker.end() if marker else start, end)
        piece = text[begin:stop] or text[start:end]
        quote = " ".join(_WRAPPED_CJK.sub("", piece).split())
        if quote:
            yield quote, in_code or opened > 0 or heading is not None
        in_code ^= opened % 2 == 1


def _quotability(sentence: str) -> float:
    words = _WORD.findall(sentence)
    if len(words) < 4:
        return 0.1
    weight = 1.0
    if not _TERMINATED.search(sentence):
        weight *= 0.5
    if sentence.count("|") > 1 or sentence.count("](") * 8 > len(words):
        weight *= 0.5
    if sentence.endswith(("?", "？")):
        weight *= 0.6
    return weight


def _leans(sentence: str) -> bool:
    first = _WORD.search(sentence)
    return first is not None and (
        first.group().casefold() in _LEANING or sentence.startswith(_LEANING_CJK, first.start())
    )


def choose(
    sentences: Sequence[Sentence],
    vectors: NDArray[np.float32],
    sizes: Sequence[int],
    budget: int,
) -> list[int]:
    """Choose sentences under a budget of tokens, the best first.

    Args:
        sentences: At least one.
        vectors: Shape (sentences, width), of any length; a zero vector is near nothing.
        sizes: The tokens of each sentence.
        budget: What the sizes of the chosen may add up to.

    Returns:
        Indices of sentences; the best one alone, over the budget, when none that can be quoted
        fits. Equal worth goes to the lower index. Deterministic, whatever the number of threads.
    """
    words = [frozenset(content_terms(sentence.text)) for sentence in sentences]
    worth = _word_worth(sentences, words)
    total = max(1, sum(worth.values()))
    unit = _unit_length(vectors)
    nearest = np.zeros(len(sentences))
    threshold = _QUOTABLE * max(sentence.weight for sentence in sentences)
    left = [i for i, sentence in enumerate(sentences) if sentence.weight >= threshold]
    chosen: list[int] = []
    while fitting := [i for i in left if sizes[i] <= budget] or (left if not chosen else []):
        gains = {}
        for i, near in zip(fitting, _added_nearness(unit, nearest, fitting), strict=True):
            added = sum(worth[word] for word in words[i]) / total
            gain = (1 - _SHARE_OF_NEARNESS) * added + _SHARE_OF_NEARNESS * near
            gain *= sentences[i].weight / max(1, sizes[i]) ** _LENGTH_POWER
            if sentences[i].leans and not (sentences[i].follows and i - 1 in chosen):
                gain *= _WITHOUT_ANTECEDENT
            gains[i] = round(gain, 9)
        best = max(fitting, key=lambda i: (gains[i], -i))
        chosen.append(best)
        budget -= sizes[best]
        nearest = np.maximum(nearest, _cosines(unit, [best])[0])
        worth.update(dict.fromkeys(words[best], 0))
        left = [i for i in left if i != best and _says_more(words[i], worth)]
    return chosen


def _word_worth(sentences: Sequence[Sentence], words: Sequence[frozenset[str]]) -> dict[str, int]:
    """Count the texts that hold each content word; names and numbers count double."""
    holders: dict[str, set[int]] = {}
    names: set[str] = set()
    for sentence, own in zip(sentences, words, strict=True):
        for word in own:
            holders.setdefault(word, set()).add(sentence.source)
        for name in _NAMES.findall(sentence.text):
            names.update(content_terms(name))
    return {word: len(held) * (_NAME if word in names else 1) for word, held in holders.items()}


def _says_more(words: frozenset[str], worth: Mapping[str, int]) -> bool:
    """Whether enough of a sentence's content words are in no chosen sentence."""
    return sum(worth[word] > 0 for word in words) > _NEW_WORDS * len(words)


def _unit_length(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = vectors.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    unit: NDArray[np.float64] = wide / np.where(norms > 0, norms, 1)
    return unit


def _cosines(unit: NDArray[np.float64], rows: Sequence[int]) -> NDArray[np.float64]:
    """Return the cosines of some rows to all, no less than 0; shape (rows, all)."""
    # threadpoolctl looks through the loaded libraries when it is imported.
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        products = unit[list(rows)] @ unit.T
    # Beyond six decimals products are rounding, which differs between machines.
    cosines: NDArray[np.float64] = np.clip(np.round(products, 6), 0, 1)
    return cosines


def _added_nearness(
    unit: NDArray[np.float64], nearest: NDArray[np.float64], rows: Sequence[int]
) -> list[float]:
    """Say how much nearer all sentences come, on average, to what is chosen with each of the rows.

    Cosines are made anew for a block of rows at a time: those of all pairs would take gigabytes
    for a cluster of ten thousand sentences.
    """
    added: list[float] = []
    for first in range(0, len(rows), _BLOCK_ROWS):
        cosines = _cosines(unit, rows[first : first + _BLOCK_ROWS])
        added.extend(np.maximum(cosines - nearest, 0).mean(axis=1).tolist())
    return added


def join(sentences: Sequence[Sentence]) -> str:
    """Join sentences to a text: one paragraph a source, Chinese without spaces."""
    parts: list[str] = []
    for number, sentence in enumerate(sentences):
        if number:
            before = sentences[number - 1]
            if before.source != sentence.source or not _TERMINATED.search(before.text):
                parts.append("\n")
            elif not _DENSE_END.search(before.text):
                parts.append(" ")
        parts.append(sentence.text)
    return "".join(parts)
