"""Generated text compared with references by what they have in common: ROUGE-L, BLEU, METEOR."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

from longrag.errors import InvalidParameterError, MissingExtraError
from longrag.evaluation.text_metrics import check_answers, check_text, words

OverlapTokenizer: TypeAlias = Callable[[str], Sequence[str]]
"""Splits a text into the tokens that are compared."""


class RougeL(NamedTuple):
    """The longest common subsequence as a share of the prediction, of the reference, of both."""

    precision: float
    recall: float
    f_measure: float


class Meteor(NamedTuple):
    """A METEOR score, and the kinds of matches that it counts."""

    score: float
    matching: Literal["exact+stem", "exact+stem+synonym"]


class WordNet(Protocol):
    """The part of a thesaurus that METEOR uses; ``nltk.corpus.wordnet`` is one."""

    def synsets(self, word: str) -> Iterable[object]:
        """Return the sets of synonyms a word is in."""


def rouge_l(
    prediction: str, references: Sequence[str], *, tokenizer: OverlapTokenizer = words
) -> RougeL:
    """Score a text by the longest common subsequence of tokens with a reference (Lin 2004).

    Of several references the one with the largest F-measure counts, as in Google's ``rouge-score``;
    F weighs precision and recall equally. By default tokens are lower-case words without stemming,
    and single characters of Chinese; ``tokenizer`` replaces that.

    Raises:
        InvalidParameterError: no references, a blank one, or something that is not a string.
    """
    given = list(tokenizer(check_text("prediction", prediction)))
    scores = [_rouge(given, list(tokenizer(r))) for r in check_answers(references, "references")]
    return max(scores, key=lambda score: score.f_measure)


def bleu(
    prediction: str,
    references: Sequence[str],
    *,
    max_order: Literal[1, 4] = 4,
    tokenize: str = "13a",
) -> float:
    """Score a text by the n-grams of up to ``max_order`` tokens it shares with the references.

    BLEU (Papineni et al. 2002) of one text, from 0 to 1, through sacrebleu: n-grams of all orders
    weigh the same, orders the text is too short for are left out, and counts of 0 are smoothed
    exponentially. This is the sentence-level score that RAPTOR's NarrativeQA tables average (its
    Appendix H); the BLEU of machine translation is of a whole corpus, and differs from that mean.

    Args:
        prediction: the generated text.
        references: the texts it is compared with.
        max_order: 1 or 4.
        tokenize: a tokenizer of sacrebleu: ``"13a"`` for Western languages, ``"zh"`` for Chinese.

    Raises:
        InvalidParameterError: another order or tokenizer, no references, a blank one, or something
            that is not a string.
        MissingExtraError: the extra ``eval`` is not installed.
    """
    check_text("prediction", prediction)
    check_answers(references, "references")
    if max_order not in (1, 4):
        raise InvalidParameterError("max_order", max_order, "one of 1 and 4")
    try:
        # An optional dependency, needed by no other metric.
        from sacrebleu.metrics.bleu import BLEU
    except ImportError as error:
        raise MissingExtraError("BLEU", "eval") from error
    if tokenize not in BLEU.TOKENIZERS:
        raise InvalidParameterError("tokenize", tokenize, f"one of {sorted(BLEU.TOKENIZERS)}")
    metric = BLEU(max_ngram_order=max_order, effective_order=True, tokenize=tokenize)
    # A perfect score comes out a rounding error above 100.
    return min(float(metric.sentence_score(prediction, list(references)).score) / 100, 1.0)


def meteor(
    prediction: str,
    references: Sequence[str],
    *,
    tokenizer: OverlapTokenizer = words,
    wordnet: WordNet | Literal["auto"] | None = "auto",
) -> Meteor:
    """Score a text by aligned words, with a penalty for broken order (Banerjee and Lavie 2005).

    Through NLTK, with its default weights, best over the references. Words match when they are
    equal or have the same Porter stem; synonyms match only where WordNet's data is at hand, so the
    value returned names the matching that was used, and scores of different matchings are not to be
    compared. NLTK looks synonyms up by the stem, so they match only for words that are their own.
    A single word in common scores 0.5 at most: the penalty counts it as one broken piece.

    Args:
        prediction: the generated text.
        references: the texts it is compared with.
        tokenizer: splits a text into words.
        wordnet: where synonyms come from. ``"auto"`` is NLTK's WordNet if its data is installed;
            ``None`` leaves synonyms out, for the same scores on every machine.

    Raises:
        InvalidParameterError: no references, a blank one, or something that is not a string.
        MissingExtraError: the extra ``eval`` is not installed.
    """
    given = list(tokenizer(check_text("prediction", prediction)))
    accepted = [list(tokenizer(r)) for r in check_answers(references, "references")]
    try:
        # NLTK takes a second to import.
        from nltk.translate.meteor_score import meteor_score
    except ImportError as error:
        raise MissingExtraError("METEOR", "eval") from error
    thesaurus = _installed_wordnet() if wordnet == "auto" else wordnet
    score = meteor_score(accepted, given, wordnet=thesaurus or _NoSynonyms())
    return Meteor(float(score), "exact+stem+synonym" if thesaurus else "exact+stem")


class _NoSynonyms:
    def synsets(self, word: str) -> Iterable[object]:
        return ()


def _installed_wordnet() -> WordNet | None:
    from nltk.corpus import wordnet

    try:
        wordnet.ensure_loaded()
    except LookupError:
        return None
    found: WordNet = wordnet
    return found


def _rouge(given: list[str], reference: list[str]) -> RougeL:
    common = _longest_common_subsequence(given, reference)
    if not common:
        return RougeL(0.0, 0.0, 0.0)
    precision, recall = common / len(given), common / len(reference)
    return RougeL(precision, recall, 2 * precision * recall / (precision + recall))


def _longest_common_subsequence(one: list[str], other: list[str]) -> int:
    """Return its length, one bit a token of ``one`` at a time (Hyyrö 2004).

    The zero bits of ``rows`` are where the length of the subsequence grows.
    """
    places: dict[str, int] = {}
    for at, token in enumerate(one):
        places[token] = places.get(token, 0) | 1 << at
    every = (1 << len(one)) - 1
    rows = every
    for token in other:
        hits = rows & places.get(token, 0)
        rows = ((rows + hits) | (rows - hits)) & every
    return len(one) - rows.bit_count()
