"""What holds for every corpus: the formula as it is written, the budget, the order of scores."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longrag.indexing.neighbours import nearest_neighbours
from longrag.ingestion.units import document_sizes
from longrag.models.words import STOPWORDS, content_terms, stem
from longrag.retrieval import evidence
from longrag.retrieval.evidence import EvidenceIndex
from longrag.types import Document

WEIGHTS = ("lexical_weight", "title_weight", "link_weight", "related_weight", "term_weight")
WORDS = ["mill", "weir", "keller", "passau", "river", "stone", "the", "of"]


@st.composite
def corpora(draw):
    texts = draw(st.lists(st.lists(st.sampled_from(WORDS), max_size=8), min_size=1, max_size=8))
    count = len(texts)
    # Eighths are exact, so that ties are ties in any arithmetic.
    numbers = st.integers(-16, 16).map(lambda n: n / 8)
    vectors = draw(st.lists(st.tuples(numbers, numbers), min_size=count, max_size=count))
    number = st.integers(0, count - 1)
    links = draw(st.lists(st.tuples(number, number), max_size=10))
    related = draw(st.lists(st.tuples(number, number), max_size=10))
    titles = draw(
        st.lists(
            st.lists(st.sampled_from(WORDS), max_size=2).map(" ".join),
            min_size=count,
            max_size=count,
        )
    )
    question = draw(st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=5))
    return {
        "documents": [
            Document(str(i), " ".join(words), title)
            for i, (words, title) in enumerate(zip(texts, titles, strict=True))
        ],
        "vectors": np.array(vectors),
        "links": links,
        "related": related,
        "question": " ".join(question),
        "query": draw(st.tuples(numbers, numbers)),
        "full_links": draw(st.sampled_from([1, 2, 10])),
        "hits": draw(st.integers(0, 4)),
        "weights": draw(
            st.fixed_dictionaries(dict.fromkeys(WEIGHTS, st.sampled_from([0.0, 0.5, 1.0])))
        ),
    }


def by_the_book(case):
    """The docstring's formula, passage by passage, with dicts."""
    documents, count = case["documents"], len(case["documents"])
    weight = case["weights"]
    bags = [
        Counter(stem(w) for w in f"{d.title} {d.text}".split() if w not in STOPWORDS)
        for d in documents
    ]
    df = Counter(term for bag in bags for term in bag)
    idf = {t: math.log(1 + (count - n + 0.5) / (n + 0.5)) for t, n in df.items()}
    tfidf = []
    for bag in bags:
        row = {t: (1 + math.log(n)) * idf[t] for t, n in bag.items()}
        norm = math.sqrt(sum(w * w for w in row.values())) or 1
        tfidf.append({t: w / norm for t, w in row.items()})
    asked = set(content_terms(case["question"]))

    def scaled(values):
        top = max(values)
        return [v / top if top > 0 else 0.0 for v in values]

    s = [float(np.dot(v, case["query"])) for v in case["vectors"]]
    t = scaled([sum(idf[x] * row.get(x, 0) for x in sorted(asked & set(idf))) for row in tfidf])
    dense = scaled([v - sum(s) / count for v in s])
    named = [title_in_question(d.title, case["question"], idf) for d in documents]
    direct = [
        a + weight["lexical_weight"] * b + weight["title_weight"] * c
        for a, b, c in zip(dense, t, named, strict=True)
    ]
    best = sorted(range(count), key=lambda i: (-direct[i], i))[: case["hits"]]
    score = list(direct)
    for h in (h for h in best if direct[h] > 0):
        r = [
            0
            if p == h
            else sum(w * tfidf[p].get(x, 0) for x, w in tfidf[h].items() if x not in asked)
            for p in range(count)
        ]
        links = neighbours(h, case["links"], case["full_links"], count)
        related = neighbours(h, case["related"], case["full_links"], count)
        for p, shared in enumerate(scaled(r)):
            link = max(weight["link_weight"] * links[p], weight["related_weight"] * related[p])
            lead = link + weight["term_weight"] * shared
            score[p] = max(score[p], direct[p] + direct[h] / max(direct) * lead)
    return score


def neighbours(h, pairs, full, count):
    linked = {b if a == h else a for a, b in pairs if h in (a, b) and a != b}
    return [(p in linked) * min(1, full / max(len(linked), 1)) for p in range(count)]


def title_in_question(title, question, idf):
    inside = f" {title} " in f" {question} " if title else False
    rare = [idf[t] for t in content_terms(title)]
    if not inside or not rare:
        return 0.0
    return max(rare) / max(idf[t] for t in content_terms(question) if t in idf)


def index_of(case):
    return EvidenceIndex(
        case["documents"],
        case["vectors"],
        case["links"],
        related=case["related"],
        hits=case["hits"],
        **case["weights"],
    )


def near_tie(values):
    ordered = np.sort(values)
    gaps = np.diff(ordered)
    return bool(((gaps > 0) & (gaps < 1e-9)).any())


@settings(max_examples=150, deadline=None)
@given(corpora())
def test_scores_are_those_of_the_formula(case):
    expected = by_the_book(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "_FULL_LINKS", case["full_links"])
        patch.setattr(evidence, "_FULL_RELATED", case["full_links"])
        found = index_of(case).search(case["question"], case["query"], token_budget=None)
    assert sorted(e.index for e in found) == list(range(len(expected)))
    if not near_tie(expected):
        for one in found:
            assert math.isclose(one.score, expected[one.index], abs_tol=1e-6)


@settings(max_examples=100, deadline=None)
@given(corpora(), st.integers(1, 40))
def test_the_budget_holds_the_order_falls_and_nothing_better_that_fits_is_missing(case, budget):
    index = index_of(case)
    sizes = document_sizes(case["documents"])
    ranked = index.search(case["question"], case["query"], token_budget=None)
    assert [e.score for e in ranked] == sorted((e.score for e in ranked), reverse=True)
    expected, room = [], budget
    for one in ranked:
        if sizes[one.index] <= room:
            expected.append((one.index, one.score))
            room -= sizes[one.index]
    found = index.search(case["question"], case["query"], token_budget=budget)
    assert [(e.index, e.score) for e in found] == expected


@settings(max_examples=100, deadline=None)
@given(corpora())
def test_reasons_agree_with_the_scores(case):
    for one in index_of(case).search(case["question"], case["query"], token_budget=6):
        assert one.score >= one.direct
        assert (one.source is None) == (one.via == "question")
        if one.via == "link":
            pair = (one.source, one.index)
            pairs = [*case["links"], *case["related"]]
            assert pair in pairs or pair[::-1] in pairs


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(*[st.integers(-3, 3)] * 3), max_size=12),
    st.integers(1, 15),
)
@example([(1, 1, 1), (1, -1, 2), (1, 2, -1)], 1)
def test_nearest_neighbours_are_those_of_all_pairs(rows, k):
    vectors = np.array(rows, float).reshape(-1, 3)
    indices, cosines = nearest_neighbours(vectors, k=k)
    norms = np.linalg.norm(vectors, axis=1)
    # Equal cosines can come to lie on both sides of a rounding boundary, so neighbours are those
    # of all pairs up to two steps of the sixth decimal.
    step = 2e-6
    for i, row in enumerate(vectors):
        others = [j for j in range(len(vectors)) if j != i and norms[i] > 0 and norms[j] > 0]
        cosine = {j: float(row @ vectors[j]) / (norms[i] * norms[j]) for j in others}
        got = [j for j in indices[i].tolist() if j >= 0]
        found = cosines[i, : len(got)].tolist()
        assert len(got) == len(set(got)) == min(k, len(others))
        assert set(got) <= set(others)
        assert np.allclose(found, [cosine[j] for j in got], rtol=0, atol=step)
        ranked = list(zip(found, got, strict=True))
        assert ranked == sorted(ranked, key=lambda pair: (-pair[0], pair[1]))
        assert all(cosine[j] <= found[-1] + step for j in others if j not in got)
        assert (cosines[i, len(got) :] == -np.inf).all()
