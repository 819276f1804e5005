"""How much of what a long reference tells is in what is read, by places of the corpus.

Words do not tell: a list of a story's most frequent words holds more of the words of any answer
about it than the passages that answer the question, and a list of its most frequent pairs of words
more of its pairs. A pair that stands at one place names that place, and no list of what is frequent
has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from longrag.evaluation.text_metrics import check_answers, check_strings
from longrag.models.words import STOPWORDS, terms

Pair: TypeAlias = tuple[str, str]
PairUse: TypeAlias = tuple[Pair, tuple[str, ...]]
"""A pair, and the function words between its two."""

# A mark that ends a sentence in any text, and an abbreviation's too: what matters is that the
# corpus, the references and what is read are parted by one rule.
_SENTENCE_END: Final = re.compile(r"[.!?…][\"'”’»)\]]*\s|[。！？]|\n[^\S\n]*\n")


class PairRecall:
    """Scores texts by the pairs of a reference's content words whose place in a corpus they hold.

    A pair is two content words that follow one another in a sentence, as stems, with nothing but
    function words between them: "the keeper of the harbours" has the pair of "keeper" and
    "harbour". No pair reaches over the end of a sentence, which is ``.``, ``!``, ``?`` or ``…``
    before white space, their Chinese forms, or a blank line; nor from one text into another.

    Of the pairs of the references those count that stand at exactly one place of the corpus, and a
    text holds the place where it has the pair with the same function words between. So words or
    pairs that are frequent earn nothing, and leaving out function words to make room for more text
    earns little.

    Args:
        corpus: the texts that may be read, each once.
        references: all references that will be asked about; other pairs are not kept.

    Raises:
        InvalidParameterError: a string in place of a list of them, or something that is no string.
    """

    def __init__(self, corpus: Sequence[str], references: Sequence[str]) -> None:
        wanted = {
            pair for one in check_strings("references", references) for pair, _ in _places(one)
        }
        found: dict[Pair, list[tuple[str, ...]]] = {}
        for text in check_strings("corpus", corpus):
            for pair, between in _places(text):
                if pair in wanted:
                    found.setdefault(pair, []).append(between)
        self._between = {pair: all_[0] for pair, all_ in found.items() if len(all_) == 1}

    def places(self, references: Sequence[str]) -> frozenset[PairUse]:
        """Return the places of the corpus that the pairs of references name.

        Raises:
            InvalidParameterError: no references, a blank one, or something that is not a string.
        """
        given = check_answers(references, "references")
        pairs = {pair for one in given for pair, _ in _places(one)}
        return frozenset((pair, self._between[pair]) for pair in pairs if pair in self._between)

    def score(self, texts: Sequence[str], references: Sequence[str]) -> float | None:
        """Return the share of the references' places that the texts hold.

        The places of all references together, each once. None where they name no place. No texts
        score 0.

        Raises:
            InvalidParameterError: ``texts`` is not a list of strings, or as ``places``.
        """
        wanted = self.places(references)
        if not wanted:
            return None
        read = (place for text in check_strings("texts", texts) for place in _places(text))
        return len(wanted.intersection(read)) / len(wanted)


def _places(text: str) -> Iterator[PairUse]:
    for sentence in _SENTENCE_END.split(text):
        last: str | None = None
        between: list[str] = []
        for term, (start, end) in terms(sentence):
            word = sentence[start:end].casefold()
            if word in STOPWORDS:
                between.append(word)
                continue
            if last is not None:
                yield (last, term), tuple(between)
            last, between = term, []
