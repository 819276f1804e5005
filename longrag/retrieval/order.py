"""One order in which passages are read for a question.

The best passage is taken; the words of the question that it holds count less from then on; the
passages that its names and links lead to count more; and so on. What is read within a token budget
is a prefix of it; see ``longrag.retrieval.reading``. No model is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from longrag.errors import EmbeddingError, InvalidParameterError
from longrag.indexing.postings import Floats, Numbers, Postings
from longrag.indexing.vectors import check_vectors
from longrag.ingestion.adjacency import Links, link_array, link_matrix
from longrag.ingestion.units import build_units, check_documents
from longrag.models.tokens import count_tokens as default_counter
from longrag.models.words import content_terms, content_words, name_words, terms
from longrag.retrieval.reading import read
from longrag.retrieval.units import check_k
from longrag.types import Chunk, Document, LongUnit, RankedPassage, RetrievedUnit, TokenCounter

Passage: TypeAlias = Document | Chunk
"""What is read as a whole: a short document, or a chunk of a long one."""

Via: TypeAlias = Literal["question", "link", "names"]
"""What brought a passage in: the question alone, a link from a passage before it, or names that it
shares with one."""

Weighted: TypeAlias = tuple[Numbers, Floats]
"""Passages, ascending, and a value for each."""

# Chosen on the development halves of nine question sets (benchmarks/order.py), not by a user.
_WORDS: Final = 2.0
_FADE: Final = 0.75
_LEAD: Final = 0.8
_TITLE: Final = 0.5
_FOLLOWED: Final = 20
# BM25 with its customary settings, but for the weight of rare words, which is between that of BM25
# and that of the TF-IDF cosine: the first serves long articles better, the second several hops.
_RARITY: Final = 1.5
_K1, _B = 1.5, 0.75
# A document with more links says little about any one of them: they share its weight.
_FULL_LINKS: Final = 5
# The names of a passage are followed, the rarest first, to this many passages in all.
_MOST_HOLDERS: Final = 20_000
# From here on passages stand in the order of their scores, and nothing fades any more.
_MOST_STEPS: Final = 1_000

# Scores that differ less are equal but for rounding.
_TIE: Final = 1e-9

# Longer titles are sentences, which no question repeats.
_MAX_TITLE_TERMS: Final = 32
_PARENTHESIS: Final = re.compile(r"\s*\([^()]*\)\s*\Z")

# From here on the compiled kernels repay the half second it takes to load them.
_COMPILE_FROM: Final = 200_000


@dataclass(frozen=True, slots=True)
class OrderedPassage:
    """One passage of an order.

    Attributes:
        passage: the passage.
        index: its place among the passages of the index.
        rank: its place in the order, from 0.
        score: what it was taken by; never above that of a passage before it.
        direct: what the question alone gives it, before any of its words has faded.
        via: "question" where it is clearly the best here without a lead; otherwise "link" or
            "names", whichever gave the larger part of its lead.
        source: the index of the passage that led to it; None for "question".
    """

    passage: Passage
    index: int
    rank: int
    score: float
    direct: float
    via: Via = "question"
    source: int | None = None


class PassageOrder:
    r"""Orders passages for a question: by its words and vector, and by what was taken before.

    With s the inner products of the query with the passages' vectors, and w(t, p) the BM25 weight
    of the question's term t in p, with the inverse document frequency to the power 1.5, divided by
    the largest sum of any passage::

        direct(p) = (s(p) - mean s) / (max s - mean s) + title(p) + sum over t of w(t, p)
        score(p) = direct(p) + sum over t of (2 left(t) - 1) w(t, p) + lead(p)

    The passage of the largest score is taken, again and again; equal scores go by index. At first
    left(t) is 1 and lead(p) 0. After each passage h, left(t) is multiplied by 0.75 for each term of
    the question that h holds, and for the first 20::

        lead(p) = max(lead(p), 0.8 direct(h) / max direct * (names(h, p) + link(h, p)))

    for the passages p of other documents: names(h, p) is the cosine of the TF-IDF vectors of their
    names, without the question's, divided by the largest; link(h, p) is min(1, 5 / n) where p is
    the first passage of one of the n documents that the document of h is linked with. title(p) is 0
    unless the question holds the title of p word for word, and then half the inverse document
    frequency of the title's rarest term, divided by that of the question's rarest term. Names are
    words with a capital or a digit, and runs of them; in a text without capitals all words are.

    The score that is told is the smallest so far. From the thousandth passage on the rest is taken
    in the order of its scores. Results are the same whatever the number of threads and the other
    queries. A search reads the vectors once, and the postings of the terms of the question and of
    the names of the first 20 passages: of each its rarest names, as far as they are in 20,000
    passages together, counted with repetitions.

    Args:
        passages: what is ordered. Long documents are to be given as chunks.
        vectors: shape (passages, width), rounded to float32. For cosine similarity normalise them.
        links: pairs of document numbers, or any other kind of links ``group_documents`` takes: one
            of the two points to the other, or names it. A link counts in both directions. By
            default a passage's number is its index.
        document_of: the document number of each passage, where passages are chunks and links are
            between documents.
        count_tokens: counts the tokens of a text; a passage's title counts with it.

    Attributes:
        passages: what is ordered.

    Raises:
        EmbeddingError: vectors that are not finite, not of one width, or not one a passage.
        InvalidDocumentError: two passages have one id, or one is neither document nor chunk.
        InvalidParameterError: another argument that is not allowed.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        vectors: ArrayLike,
        links: Links = (),
        *,
        document_of: Sequence[int] | None = None,
        count_tokens: TokenCounter = default_counter,
    ) -> None:
        self.passages = tuple(passages)
        self._documents = [_as_document(passage) for passage in self.passages]
        check_documents(self._documents)
        self._count_tokens = count_tokens
        self._vectors = check_vectors(vectors, name="vectors")
        if len(self._vectors) != len(self.passages):
            raise EmbeddingError(
                f"there are {len(self._vectors)} vectors for {len(self.passages)} passages"
            )
        self._number = _check_numbers(document_of, len(self.passages))
        count = int(self._number.max(initial=-1)) + 1
        pairs = link_array(links, count, directed=False)
        compiled = len(pairs) >= _COMPILE_FROM
        self._links = link_matrix(pairs, count, directed=False, compiled=compiled)
        by_document = np.argsort(self._number, kind="stable")
        ends = np.searchsorted(self._number[by_document], np.arange(count + 1))
        self._passages_of = np.split(by_document, ends[1:-1]) if count else []
        self._first = np.array([own[0] if len(own) else -1 for own in self._passages_of], np.int64)
        whole = [f"{document.title}\n{document.text}" for document in self._documents]
        self._words = Postings(map(content_words, whole))
        self._names = Postings(map(name_words, whole))
        self._name_norms = self._names.norms()
        self._titles = _TitleIndex([document.title for document in self._documents])

    @property
    def width(self) -> int:
        """The number of values in a vector."""
        return int(self._vectors.shape[1])

    def search(
        self,
        question: str,
        vector: ArrayLike,
        *,
        k: int | None = None,
        groups: NDArray[np.int64] | None = None,
    ) -> Iterator[OrderedPassage]:
        """Yield the passages, best first, each when it is asked for.

        Args:
            question: the text of the question.
            vector: its embedding, shape (width,).
            k: the most groups; None for no limit. Once passages of so many have been taken, those
                of all other groups are passed over.
            groups: a number for each passage, such as that of its unit; by default each passage is
                a group by itself.

        Raises:
            EmbeddingError: a vector that is not finite or of another width.
            InvalidParameterError: an argument that is not allowed.
        """
        if k is not None:
            check_k(k)
        if not isinstance(question, str):
            raise InvalidParameterError("question", question, "a string")
        if not self.passages:
            return iter(())
        query = check_vectors(vector, name="vector", width=self.width, one_row=True)
        if len(query) != 1:
            raise InvalidParameterError("vector.shape", query.shape, "that of one vector")
        if groups is None:
            return islice(_Reading(self, question, query[0]).passages(), k)
        return _Reading(self, question, query[0]).passages(k, groups)

    def read(
        self, question: str, vector: ArrayLike, *, token_budget: int | None, k: int | None = None
    ) -> list[RetrievedUnit]:
        """Return what is read of the order within a token budget, each passage as a unit.

        Args:
            question: the text of the question.
            vector: its embedding, shape (width,).
            token_budget: tokens of all passages with their titles, joined by blank lines; None for
                no limit, which orders everything.
            k: the most passages; None for as many as fit.

        Raises:
            EmbeddingError: a vector that is not finite or of another width.
            InvalidParameterError: an argument that is not allowed.
        """
        found = map(self.unit, self.search(question, vector, k=k))
        order = ((one, one.passages[0]) for one in found)
        cuts = read(order, token_budget, count_tokens=self._count_tokens)
        return [cut for _, cut in cuts]

    def shared_names(self, question: str, one: int, other: int, count: int = 5) -> list[str]:
        """Return the names that two passages share and the question lacks, as the first has them.

        Those that weigh most for their cosine come first, at most ``count``.
        """
        (mine, own), (yours, their) = (self._names.of_text(text) for text in (one, other))
        common, first, second = np.intersect1d(mine, yours, return_indices=True)
        weight = (1 + np.log(own[first])) * (1 + np.log(their[second]))
        order = np.argsort(-weight * self._names.idf[common] ** 2, kind="stable")
        asked = self._asked_names(question)
        new = [number for number in common[order].tolist() if number not in asked]
        text = self._documents[one].title + "\n" + self._documents[one].text
        written = {term: text[start:end] for term, (start, end) in terms(text)}
        return [written.get(name, name) for name in self._names.names(new[:count])]

    def unit(self, found: OrderedPassage) -> RetrievedUnit:
        """Write a passage as a unit.

        The text opens with the passage's title, as in ``build_units``. Its member has the id and
        the offsets of the passage's document, its best chunk is the passage, and its score that of
        the order.
        """
        passage, document = found.passage, _as_document(found.passage)
        (unit,) = build_units([document], [[0]], count_tokens=self._count_tokens)
        (member,) = unit.members
        if isinstance(passage, Chunk):
            member = passage.member(member.start)
            unit = LongUnit(unit.id, unit.text, (member,), unit.tokens)
        chunk = Chunk(
            id=passage.id,
            unit_id=unit.id,
            doc_id=member.doc_id,
            title=document.title,
            text=document.text,
            start=member.start,
            end=member.end,
            doc_start=member.doc_start,
            doc_end=member.doc_end,
        )
        ranked = RankedPassage(member.start, member.end, found.rank, found.score)
        return RetrievedUnit(unit, found.score, chunk, passages=(ranked,), ranking="order")

    def _asked_names(self, question: str) -> set[int]:
        return set(self._names.numbers([*name_words(question), *content_terms(question)]))

    def _matches(self, asked: Sequence[int]) -> list[Weighted]:
        """Weigh the question's terms in the passages that hold them, each term by itself."""
        lengths = self._words.lengths
        mean = lengths.mean() or 1.0
        matches = []
        for term in asked:
            holders, counts = self._words.of_term(term)
            length = 1 - _B + _B * lengths[holders] / mean
            weights = self._words.idf[term] ** _RARITY * counts / (counts + _K1 * length)
            matches.append((holders, weights))
        largest = _sum(matches, len(self.passages)).max()
        return [(holders, weights / largest) for holders, weights in matches]

    def _title_scores(self, question: str, asked: Sequence[int]) -> Floats:
        """Score the passages whose title the question holds."""
        scores = np.zeros(len(self.passages))
        rarest = self._words.idf[list(asked)].max(initial=0.0)
        for title, holders in self._titles.found_in(question):
            known = self._words.numbers(content_terms(title))
            if known:
                scores[holders] = _TITLE * self._words.idf[known].max() / rarest
        return scores

    def _holders_of_names(self, taken: int, asked: set[int]) -> Iterator[Weighted]:
        """Yield the passages that hold a name of a passage, weighed, the rarest names first."""
        names, counts = self._names.of_text(taken)
        rarest = np.argsort(-self._names.idf[names], kind="stable")
        room = _MOST_HOLDERS
        for name, count in zip(names[rarest].tolist(), counts[rarest].tolist(), strict=True):
            if name in asked:
                continue
            holders, held = self._names.of_term(name)
            room -= len(holders)
            if room < 0:
                return
            weight = self._names.idf[name] ** 2 * (1 + np.log(count))
            yield holders, weight * (1 + np.log(held)) / self._name_norms[holders]

    def _linked(self, taken: int) -> Numbers:
        """Return the first passages of the documents that a passage's document is linked with."""
        number, links = self._number[taken], self._links
        first = self._first[links.neighbours[links.starts[number] : links.starts[number + 1]]]
        return first[first >= 0]


class _Reading:
    """One question's way through the passages."""

    def __init__(self, order: PassageOrder, question: str, query: NDArray[np.float32]) -> None:
        self._order = order
        n_passages = len(order.passages)
        asked = order._words.numbers(content_terms(question))
        # Not BLAS, whose last bits depend on the number of threads.
        dense = np.einsum("ij,j->i", order._vectors, query).astype(np.float64)
        self._matches = order._matches(asked)
        words = _sum(self._matches, n_passages)
        self._direct = _scale(dense - dense.mean()) + order._title_scores(question, asked) + words
        self._score = self._direct + (_WORDS - 1) * words
        self._largest = self._direct.max()
        self._left = [1.0] * len(asked)
        self._asked_names = order._asked_names(question)
        # What a passage leads to, and by what: the passage before it, and the parts of its lead.
        self._lead, self._by_names, self._by_link = np.zeros((3, n_passages))
        self._source = np.full(n_passages, -1)

    def passages(
        self, k: int | None = None, groups: NDArray[np.int64] | None = None
    ) -> Iterator[OrderedPassage]:
        """Yield the passages, best first: all, or those of the first ``k`` groups reached."""
        lowest, reached = np.inf, set[int]()
        for rank in range(min(len(self._score), _MOST_STEPS)):
            best = int(self._score.argmax())
            if self._score[best] == -np.inf:
                return
            lowest = min(lowest, float(self._score[best]))
            own, self._score[best] = self._score[best] - self._lead[best], -np.inf
            by_lead = bool(own <= self._score.max() + _TIE)
            yield self._describe(best, rank, lowest, by_lead=by_lead)
            self._fade(best)
            if rank < _FOLLOWED:
                self._follow(best)
            if groups is not None and k is not None and len(reached) < k:
                reached.add(int(groups[best]))
                if len(reached) == k:
                    self._score[~np.isin(groups, list(reached))] = -np.inf
        for rank, best in enumerate(np.argsort(-self._score, kind="stable").tolist(), _MOST_STEPS):
            if self._score[best] == -np.inf:
                return
            lowest = min(lowest, float(self._score[best]))
            yield self._describe(best, rank, lowest, by_lead=False)

    def _describe(self, passage: int, rank: int, score: float, *, by_lead: bool) -> OrderedPassage:
        direct = float(self._direct[passage])
        found = OrderedPassage(self._order.passages[passage], passage, rank, score, direct)
        if not by_lead or self._source[passage] < 0:
            return found
        via: Via = "link" if self._by_link[passage] >= self._by_names[passage] else "names"
        return replace(found, via=via, source=int(self._source[passage]))

    def _fade(self, taken: int) -> None:
        """Let the words of the question that a passage holds count less."""
        for number, (holders, weights) in enumerate(self._matches):
            at = int(np.searchsorted(holders, taken))
            if at < len(holders) and holders[at] == taken:
                self._score[holders] -= _WORDS * self._left[number] * (1 - _FADE) * weights
                self._left[number] *= _FADE

    def _follow(self, taken: int) -> None:
        """Raise the passages that a passage leads to."""
        order = self._order
        if self._direct[taken] <= 0:
            return
        share = _LEAD * self._direct[taken] / self._largest
        linked = order._linked(taken)
        named = list(order._holders_of_names(taken, self._asked_names))
        reached = np.concatenate([linked, *(holders for holders, _ in named)])
        names = np.zeros(len(order.passages))
        for holders, values in named:
            names[holders] += values
        names[order._passages_of[order._number[taken]]] = 0
        link = np.zeros(len(order.passages))
        link[linked] = _FULL_LINKS / max(len(linked), _FULL_LINKS)
        # A passage may be reached several times: it is then written the same values again.
        by_names = share * names[reached] / (names[reached].max(initial=0.0) or 1.0)
        by_link = share * link[reached]
        more = by_names + by_link > self._lead[reached]
        raised, by_names, by_link = reached[more], by_names[more], by_link[more]
        self._score[raised] += by_names + by_link - self._lead[raised]
        self._lead[raised] = by_names + by_link
        self._by_names[raised], self._by_link[raised] = by_names, by_link
        self._source[raised] = taken


class _TitleIndex:
    """Finds the titles that a text holds as whole words, in any letter case.

    A title counts without a parenthesis at its end, so that "Rush (band)" is found as "Rush".
    """

    def __init__(self, titles: Sequence[str]) -> None:
        self._holders: dict[tuple[str, ...], tuple[str, list[int]]] = {}
        for index, title in enumerate(titles):
            name = _PARENTHESIS.sub("", title)
            words = tuple(term for term, _ in terms(name))
            if 0 < len(words) <= _MAX_TITLE_TERMS:
                self._holders.setdefault(words, (name, []))[1].append(index)
        self._lengths = sorted({len(words) for words in self._holders})

    def found_in(self, text: str) -> Iterator[tuple[str, list[int]]]:
        """Yield each title in the text and the indices of all that have it."""
        words = [term for term, _ in terms(text)]
        runs = {
            tuple(words[start : start + length])
            for length in self._lengths
            for start in range(len(words) - length + 1)
        }
        yield from (self._holders[run] for run in sorted(runs & self._holders.keys()))


def _sum(parts: Sequence[Weighted], size: int) -> Floats:
    sums = np.zeros(size)
    for places, values in parts:
        sums[places] += values
    return sums


def _scale(values: Floats) -> Floats:
    """Divide by the maximum; all zeros where nothing is positive."""
    largest = values.max(initial=0.0)
    return values / largest if largest > 0 else np.zeros_like(values)


def _as_document(passage: Passage) -> Document:
    if isinstance(passage, Chunk):
        return Document(passage.id, passage.text, passage.title)
    return passage


def _check_numbers(document_of: Sequence[int] | None, count: int) -> NDArray[np.int64]:
    if document_of is None:
        return np.arange(count)
    numbers = np.asarray(document_of)
    if numbers.shape != (count,) or (
        count and (numbers.dtype.kind not in "iu" or numbers.min() < 0)
    ):
        received = f"{numbers.dtype} of shape {numbers.shape}"
        raise InvalidParameterError(
            "document_of", received, "a number of at least 0 for each passage"
        )
    return numbers.astype(np.int64)
