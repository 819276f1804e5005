"""Evidence for one question, put together at query time within a token budget.

LongRAG groups documents before it knows the question, along hyperlinks that many corpora do not
have. Here the question's best passages are found first, and what they lead to is ranked with them:
the passages they are linked to, and those that share their rare terms. No model is asked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from longrag.calls import Embed, Flow, ask
from longrag.errors import EmbeddingError, InvalidParameterError
from longrag.indexing.vectors import check_vectors
from longrag.ingestion.adjacency import LinkMatrix, Links, link_array, link_matrix
from longrag.ingestion.units import build_units, check_documents, document_sizes
from longrag.models.tokens import count_tokens as default_counter
from longrag.models.words import STOPWORDS, content_terms, terms
from longrag.retrieval.assembly import check_token_budget
from longrag.retrieval.units import check_k, embed_query
from longrag.types import Chunk, Document, LongUnit, RetrievedUnit, TokenCounter

Passage: TypeAlias = Document | Chunk
"""What is ranked as a whole: a short document, or a chunk of a long one."""

Via: TypeAlias = Literal["question", "link", "terms"]
"""What brought a passage in: its own score, a link from a hit, or rare terms shared with one."""

Floats: TypeAlias = NDArray[np.float64]

# A hit with more links, or more related passages, than this says little about any one of them, so
# they share its weight.
_FULL_LINKS: Final = 5
_FULL_RELATED: Final = 10

# Longer titles are sentences, which no question repeats.
_MAX_TITLE_TERMS: Final = 32
_PARENTHESIS: Final = re.compile(r"\s*\([^()]*\)\s*\Z")

# From here on the compiled kernels repay the half second it takes to load them.
_COMPILE_FROM: Final = 200_000


@dataclass(frozen=True, slots=True)
class Evidence:
    """One passage found for a question.

    ``index`` is its place among the passages of the index. ``score`` is what it is ranked by and
    ``direct`` the part of it that it owes to the question alone. ``via`` is "question" where
    ``direct`` alone would have brought it into the same budget; otherwise "link" or "terms",
    whichever gave the larger part of its bonus, and ``source`` is the index of the hit that gave
    it.
    """

    passage: Passage
    index: int
    score: float
    direct: float
    via: Via = "question"
    source: int | None = None


class EvidenceIndex:
    r"""Ranks passages by the question, and by what the question's best passages lead to.

    With s the inner products of the query with the passages' vectors, and t those of the question
    with their TF-IDF vectors::

        direct(p) = (s(p) - mean s) / (max s - mean s)
                    + lexical_weight * t(p) / max t + title_weight * n(p)
        lead(h, p) = max(link_weight * l(h, p), related_weight * m(h, p))
                     + term_weight * r(h, p) / max r(h, .)
        score(p) = direct(p) + max over h of direct(h) / direct(best) * lead(h, p)

    where n(p) is 0 unless the question holds the title of p word for word, and then the weight of
    the title's rarest term divided by that of the question's rarest term; h runs over the ``hits``
    passages of the largest positive ``direct`` other than p; l(h, p) is 0 without a link and
    min(1, 5 / n) with one, for a hit h that is linked to n passages; m(h, p) is the same for
    related passages, with 10 in place of 5; and r(h, p) is the TF-IDF cosine of h and p over the
    terms that are not in the question: these are the names a further hop goes over. Each part is at
    most 1 before its weight, so that one setting serves embedders whose inner products lie in
    different ranges.

    Passages are then taken best first while they fit into the token budget; one that does not fit
    is passed over. Equal scores go by index. Results are the same whatever the number of threads
    and the other queries. A search reads the vectors once and the postings of the terms of the
    question and the hits.

    Args:
        passages: What is ranked. Long documents are to be given as chunks.
        vectors: shape (passages, width), rounded to float32. For cosine similarity normalise them.
        links: Pairs of document numbers, or any other kind of links ``group_documents`` takes: one
            of the two points to the other, or names it. A link counts in both directions. By
            default a passage's number is its index.
        related: Pairs of documents that have something in common, such as a rare name, in the form
            of ``links``. Such pairs are many and say less, so that each kind has a weight.
        document_of: The document number of each passage, where passages are chunks and links are
            between documents.
        hits: How many passages are followed.
        lexical_weight: The weight of the question's own terms, at least 0.
        title_weight: The weight of a title that the question holds, at least 0.
        link_weight: The weight of a link from a hit, at least 0.
        related_weight: The weight of being related to a hit, at least 0.
        term_weight: The weight of rare terms shared with a hit, at least 0.
        count_tokens: Counts the tokens of a text; a passage's title counts with it.

    Attributes:
        passages: what is ranked.
        sizes: the tokens of each passage, its title included.

    Raises:
        EmbeddingError: Vectors that are not finite, not of one width, or not one a passage.
        InvalidDocumentError: Two passages have one id, or one is neither document nor chunk.
        InvalidParameterError: Another argument that is not allowed.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        vectors: ArrayLike,
        links: Links = (),
        *,
        related: Links = (),
        document_of: Sequence[int] | None = None,
        hits: int = 10,
        lexical_weight: float = 1.0,
        title_weight: float = 0.5,
        link_weight: float = 1.0,
        related_weight: float = 0.5,
        term_weight: float = 0.7,
        count_tokens: TokenCounter = default_counter,
    ) -> None:
        self.passages = tuple(passages)
        self._documents = [_as_document(passage) for passage in self.passages]
        check_documents(self._documents)
        self._count_tokens = count_tokens
        self.sizes = document_sizes(self._documents, count_tokens=count_tokens)
        self._vectors = check_vectors(vectors, name="vectors")
        if len(self._vectors) != len(self.passages):
            raise EmbeddingError(
                f"there are {len(self._vectors)} vectors for {len(self.passages)} passages"
            )
        if isinstance(hits, bool) or not isinstance(hits, int) or hits < 0:
            raise InvalidParameterError("hits", hits, "an integer of at least 0")
        self._hits = hits
        self._lexical_weight = _check_weight("lexical_weight", lexical_weight)
        self._title_weight = _check_weight("title_weight", title_weight)
        self._link_weight = _check_weight("link_weight", link_weight)
        self._related_weight = _check_weight("related_weight", related_weight)
        self._term_weight = _check_weight("term_weight", term_weight)
        self._number = _check_numbers(document_of, len(self.passages))
        count = int(self._number.max(initial=-1)) + 1
        self._links = _undirected(links, count)
        self._related = _undirected(related, count)
        self._terms = _TermIndex([f"{d.title}\n{d.text}" for d in self._documents])
        self._titles = _TitleIndex([document.title for document in self._documents])

    @property
    def width(self) -> int:
        """The number of values in a vector."""
        return int(self._vectors.shape[1])

    def search(
        self, question: str, vector: ArrayLike, *, token_budget: int | None, k: int | None = None
    ) -> list[Evidence]:
        """Return the evidence for a question, best first, of at most ``token_budget`` tokens.

        Args:
            question: The text of the question.
            vector: Its embedding, shape (width,).
            token_budget: Tokens of all passages together, titles included; None for no limit,
                which ranks everything.
            k: The most passages; None for as many as fit.

        Raises:
            EmbeddingError: A vector that is not finite or of another width.
            InvalidParameterError: A question or budget that is not allowed.
        """
        check_token_budget(token_budget)
        if k is not None:
            check_k(k)
        if not isinstance(question, str):
            raise InvalidParameterError("question", question, "a string")
        if not self.passages:
            return []
        query = check_vectors(vector, name="vector", width=self.width, one_row=True)
        if len(query) != 1:
            raise InvalidParameterError("vector.shape", query.shape, "that of one vector")
        asked = self._terms.known(content_terms(question))
        direct = self._direct(asked, query[0]) + self._named(question, asked)
        leads = [(hit, *self._leads(hit, asked)) for hit in self._best(direct)]
        score = direct.copy()
        for hit, link, term in leads:
            share = direct[hit] / direct.max()
            np.maximum(score, direct + share * (link + term), out=score)
        expected = set(self._fit(direct, token_budget)[:k])
        return [
            self._evidence(index, score, direct, leads if index not in expected else [])
            for index in self._fit(score, token_budget)[:k]
        ]

    def shared_terms(self, question: str, one: int, other: int, count: int = 5) -> list[str]:
        """Return the terms that two passages share and the question does not hold.

        Those that weigh most for their cosine come first, at most ``count``.
        """
        asked = self._terms.known(content_terms(question))
        return self._terms.shared(one, other, asked)[:count]

    def units(self, found: Sequence[Evidence]) -> list[RetrievedUnit]:
        """Write each passage found as a separate unit, in the same order.

        A unit's text opens with the passage's title, as in ``build_units``. Its member has the id
        and the offsets of the passage's document, its best chunk is the passage, and its score that
        of the evidence.
        """
        return [self._unit(evidence) for evidence in found]

    def _direct(self, asked: NDArray[np.int64], query: NDArray[np.float32]) -> Floats:
        # Not BLAS, whose last bits depend on the number of threads.
        dense = np.einsum("ij,j->i", self._vectors, query).astype(np.float64)
        dense -= dense.mean()
        lexical = self._terms.products(asked, self._terms.idf[asked])
        return _scale(dense) + self._lexical_weight * _scale(lexical)

    def _named(self, question: str, asked: NDArray[np.int64]) -> Floats:
        """Score the passages whose title the question holds."""
        named = np.zeros(len(self.passages))
        rarest = self._terms.idf[asked].max(initial=0.0)
        for title, indices in self._titles.found_in(question):
            known = self._terms.known(content_terms(title))
            if known.size:
                named[indices] = self._title_weight * self._terms.idf[known].max() / rarest
        return named

    def _best(self, direct: Floats) -> list[int]:
        best: list[int] = np.argsort(-direct, kind="stable")[: self._hits].tolist()
        return [hit for hit in best if direct[hit] > 0]

    def _leads(self, hit: int, asked: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Score what links and shared terms lead to from a hit, each times its weight."""
        link = np.maximum(
            self._link_weight * self._neighbours(self._links, hit, _FULL_LINKS),
            self._related_weight * self._neighbours(self._related, hit, _FULL_RELATED),
        )
        shared = self._terms.products(*self._terms.others(hit, asked))
        shared[hit] = 0
        return link, self._term_weight * _scale(shared)

    def _neighbours(self, links: LinkMatrix, hit: int, full: int) -> Floats:
        """Share the weight of ``full`` links, 1 each at most, among the neighbours of a hit."""
        number = self._number[hit]
        linked = np.zeros(len(links.starts) - 1, bool)
        linked[links.neighbours[links.starts[number] : links.starts[number + 1]]] = True
        passages = linked[self._number]
        return passages * (full / max(int(passages.sum()), full))

    def _fit(self, score: Floats, token_budget: int | None) -> list[int]:
        order: list[int] = np.argsort(-score, kind="stable").tolist()
        if token_budget is None:
            return order
        chosen, room, smallest = [], token_budget, min(self.sizes)
        for index in order:
            if room < smallest:
                break
            if self.sizes[index] <= room:
                chosen.append(index)
                room -= self.sizes[index]
        return chosen

    def _evidence(
        self,
        index: int,
        score: Floats,
        direct: Floats,
        leads: Sequence[tuple[int, Floats, Floats]],
    ) -> Evidence:
        found = Evidence(self.passages[index], index, float(score[index]), float(direct[index]))
        if not leads or found.score == found.direct:
            return found
        hit, link, term = max(leads, key=lambda lead: direct[lead[0]] * (lead[1] + lead[2])[index])
        return replace(found, via="link" if link[index] >= term[index] else "terms", source=hit)

    def _unit(self, found: Evidence) -> RetrievedUnit:
        document, passage = self._documents[found.index], found.passage
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
        return RetrievedUnit(unit, found.score, chunk)


def embed_evidence(
    passages: Sequence[Passage], links: Links = (), **settings: Any
) -> Flow[EvidenceIndex]:
    """Embed the passages, each as its title and text, and return the index over them.

    ``settings`` are the keyword arguments of ``EvidenceIndex``.
    """
    texts = tuple(f"{p.title}\n\n{p.text}" if p.title.strip() else p.text for p in passages)
    vectors = (yield from ask(Embed(texts, "document"))) if texts else np.empty((0, 1), np.float32)
    return EvidenceIndex(passages, vectors, links, **settings)


def retrieve_evidence(
    texts: Sequence[str],
    index: EvidenceIndex,
    *,
    token_budget: int | None,
    k: int | None = None,
    vector: ArrayLike | None = None,
) -> Flow[list[RetrievedUnit]]:
    """Return the evidence for a query as units, best first.

    ``texts`` are the query's texts, ``vector`` its embedding when the caller has it. An empty index
    returns nothing and embeds nothing.
    """
    if not index.passages:
        return []
    if vector is None:
        vector = yield from embed_query(texts)
    found = index.search("\n".join(texts), vector, token_budget=token_budget, k=k)
    return index.units(found)


class _TermIndex:
    """TF-IDF vectors of unit length, kept by text and by term in compressed sparse rows.

    A term counts 1 + ln(frequency), times the inverse document frequency of BM25.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        vocabulary: dict[str, int] = {}
        bags = [Counter(_content(text)) for text in texts]
        numbers = [[vocabulary.setdefault(term, len(vocabulary)) for term in bag] for bag in bags]
        self._vocabulary = vocabulary
        lengths = np.array([len(bag) for bag in bags], np.int64)
        self._ends = np.cumsum(lengths)
        self._terms = np.fromiter(chain.from_iterable(numbers), np.int64)
        counts = np.fromiter(chain.from_iterable(bag.values() for bag in bags), np.float64)
        frequency = np.bincount(self._terms, minlength=len(vocabulary))
        self.idf: Floats = np.log(1 + (len(texts) - frequency + 0.5) / (frequency + 0.5))
        owners = np.repeat(np.arange(len(texts)), lengths)
        weights = (1 + np.log(counts)) * self.idf[self._terms]
        norms = np.sqrt(np.bincount(owners, weights**2, minlength=len(texts)))
        self._weights: Floats = weights / np.where(norms > 0, norms, 1)[owners]
        by_term = np.argsort(self._terms, kind="stable")
        self._owners, self._posted = owners[by_term], self._weights[by_term]
        self._posting_ends = np.cumsum(frequency)

    def known(self, words: Sequence[str]) -> NDArray[np.int64]:
        """Return the numbers of the terms that occur in the texts."""
        return np.array([self._vocabulary[w] for w in words if w in self._vocabulary], np.int64)

    def others(self, text: int, asked: NDArray[np.int64]) -> tuple[NDArray[np.int64], Floats]:
        """Return the terms of a text that are not asked for, and their weights."""
        row = slice(self._ends[text - 1] if text else 0, self._ends[text])
        new = ~np.isin(self._terms[row], asked)
        return self._terms[row][new], self._weights[row][new]

    def shared(self, one: int, other: int, asked: NDArray[np.int64]) -> list[str]:
        """Return the terms of two texts that are not asked for, the weightiest first."""
        (mine, own), (yours, their) = self.others(one, asked), self.others(other, asked)
        common, first, second = np.intersect1d(mine, yours, return_indices=True)
        order = np.argsort(-own[first] * their[second], kind="stable")
        names = list(self._vocabulary)
        return [names[number] for number in common[order].tolist()]

    def products(self, numbers: NDArray[np.int64], weights: Floats) -> Floats:
        """Multiply a weighted list of terms, by number, with every text; shape (texts,)."""
        products = np.zeros(len(self._ends))
        for term, weight in zip(numbers.tolist(), weights.tolist(), strict=True):
            row = slice(self._posting_ends[term - 1] if term else 0, self._posting_ends[term])
            products[self._owners[row]] += weight * self._posted[row]
        return products


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


def _undirected(links: Links, count: int) -> LinkMatrix:
    pairs = link_array(links, count, directed=False)
    return link_matrix(pairs, count, directed=False, compiled=len(pairs) >= _COMPILE_FROM)


def _content(text: str) -> Iterator[str]:
    return (term for term, (a, b) in terms(text) if text[a:b].casefold() not in STOPWORDS)


def _scale(values: Floats) -> Floats:
    """Divide by the maximum; all zeros where nothing is positive."""
    largest = values.max()
    return values / largest if largest > 0 else np.zeros_like(values)


def _as_document(passage: Passage) -> Document:
    if isinstance(passage, Chunk):
        return Document(passage.id, passage.text, passage.title)
    return passage


def _check_weight(name: str, weight: float) -> float:
    real = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    if not real or not 0 <= weight < np.inf:
        raise InvalidParameterError(name, weight, "a finite number of at least 0")
    return float(weight)


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
