"""Which sentences of some texts say most of them: centrality, redundancy and a token budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from longrag.ingestion.sentences import SentenceSplitter, strip_span
from longrag.models.words import CJK, word_set

_WORD: Final = re.compile(rf"[{CJK}]|[^\W_]+")
_FENCE: Final = re.compile(r"[ ]{0,3}(?:```|~~~)")
_HEADING: Final = re.compile(r"#{1,6}(?:\s|$|[\u3400-\u9fff])|[^\n]*\n(?:=+|-+)\s*$")
_MARKER: Final = re.compile(r"(?:[-*+•]|\d{1,3}[.)]|>)[ \t]+")
_TERMINATED: Final = re.compile(r"[.!?。！？…;:][\"'”’»」』）)\]*_]*$")
_DENSE_END: Final = re.compile(rf"[{CJK}。！？…，、；：」』”）]$")
_LEANING: Final = word_set("""
    he she it they his her hers its their theirs him them this that these those such i we you
    and but or so yet nor then thus hence therefore however moreover also still instead meanwhile
    otherwise besides because although though which who yes no oh well there here
""")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of one of several texts; ``weight``, up to 1, tells how well it can be quoted."""

    text: str
    source: int
    weight: float


def list_sentences(texts: Sequence[str], split: SentenceSplitter) -> list[Sentence]:
    """List the sentences of texts in their order, equal ones once.

    Sentences are equal when their words are, whatever their case and punctuation. A list marker is
    not part of a sentence.
    """
    found: dict[str, Sentence] = {}
    for source, text in enumerate(texts):
        in_code = False
        for start, end in split(text):
            fence = _FENCE.match(text, start, end)
            marker = _MARKER.match(text, start, end)
            begin, stop = strip_span(text, marker.end() if marker else start, end)
            quote = text[begin:stop] or text[start:end]
            key = " ".join(_WORD.findall(quote)).casefold() or quote
            if quote.strip() and key not in found:
                weight = 0.1 if fence or in_code else _weigh(quote)
                found[key] = Sentence(quote, source, weight)
            in_code ^= bool(fence) and not text[start:end].rstrip().endswith(("```", "~~~"))
    return list(found.values())


def _weigh(sentence: str) -> float:
    words = _WORD.findall(sentence)
    if len(words) < 4 or _HEADING.match(sentence):
        return 0.1
    weight = 1.0
    if not _TERMINATED.search(sentence):
        weight *= 0.5
    if sentence.count("|") > 1 or sentence.count("](") * 8 > len(words):
        weight *= 0.5
    if sentence.endswith(("?", "？")):
        weight *= 0.6
    if words[0].casefold() in _LEANING:
        weight *= 0.7
    return weight


def choose(
    sentences: Sequence[Sentence],
    vectors: NDArray[np.float32],
    sizes: Sequence[int],
    budget: int,
) -> list[int]:
    """Choose sentences under a budget of tokens, the best first.

    Returns:
        Indices of sentences whose sizes add up to at most the budget, or the one best sentence when
        none that can be quoted fits.
    """
    cosines = _cosines(vectors)
    worth = _centrality(cosines) * np.array([sentence.weight for sentence in sentences])
    good = max(sentence.weight for sentence in sentences) / 4
    left = [i for i, sentence in enumerate(sentences) if sentence.weight >= good]
    chosen: list[int] = []
    nearest = np.zeros(len(sentences))
    counts = [0] * (1 + max(sentence.source for sentence in sentences))
    room = budget
    while fitting := [i for i in left if sizes[i] <= room]:
        best = max(
            fitting,
            key=lambda i: (
                round(worth[i] - 0.5 * nearest[i] - 0.2 * counts[sentences[i].source], 6),
                -i,
            ),
        )
        chosen.append(best)
        left.remove(best)
        room -= sizes[best]
        nearest = np.maximum(nearest, cosines[best])
        counts[sentences[best].source] += 1
    return chosen or [max(left, key=lambda i: (round(float(worth[i]), 6), -i))]


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


def _cosines(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    # threadpoolctl looks through the loaded libraries when it is imported.
    from threadpoolctl import threadpool_limits

    wide = vectors.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    unit = wide / np.where(norms > 0, norms, 1)
    with threadpool_limits(1, user_api="blas"):
        products = unit @ unit.T
    # Beyond six decimals the products are rounding, which differs between machines.
    rounded: NDArray[np.float64] = np.clip(np.round(products, 6), 0, 1)
    return rounded


def _centrality(cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the principal eigenvector, scaled to a largest value of 1, by power iteration."""
    scores = np.ones(len(cosines))
    for _ in range(30):
        following = 0.15 + 0.85 * (cosines @ scores) / max(1, len(cosines))
        following /= following.max()
        if np.abs(following - scores).max() < 1e-7:
            break
        scores = following
    return scores
