"""Whole units over the embedded index and over stores of every temper."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrag.calls import Embed, Fetch, Request, Search, arun, run
from longrag.errors import EmbeddingError, InvalidParameterError, StoreError
from longrag.ingestion import long_units
from longrag.retrieval import Hit, UnitIndex, embed_units, retrieve, retrieve_from_store
from longrag.types import Chunk, Document, LongUnit, Member
from tests.fakes import HashEmbedder, hash_vector


def chunk(number: int, unit: str) -> Chunk:
    text = f"text {number}"
    return Chunk(f"c{number}", unit, f"doc-{unit}", "", text, 0, 6, number * 100, number * 100 + 6)


class Store:
    """A store over (unit, score) rows that answers searches as told."""

    def __init__(self, rows, *, excludes=True, keeps=True, cap=None, exact=True, whole=()):
        self.rows = sorted(
            (Hit(unit, chunk(i, unit), score) for i, (unit, score) in enumerate(rows)),
            key=lambda hit: -hit.score,
        )
        self.excludes, self.keeps, self.cap, self.exact = excludes, keeps, cap, exact
        self.whole = whole
        self.searches: list[Search] = []

    def __call__(self, request: Request):
        if isinstance(request, Fetch):
            return {
                id_: LongUnit(id_, f"whole {id_}", (Member(id_, "", 0, 0, 7),), 2)
                for id_ in request.unit_ids
                if id_ in self.whole
            }
        self.searches.append(request)
        rows = self.rows
        if request.exclude:
            if self.excludes == "raises":
                raise NotImplementedError
            if self.excludes:
                rows = [hit for hit in rows if hit.unit_id not in request.exclude]
        if request.only is not None:
            if not self.keeps:
                raise ValueError("no filters here")
            rows = [hit for hit in rows if hit.unit_id == request.only]
        return rows[: min(request.top_k, self.cap or request.top_k)]

    async def call(self, request: Request):
        return self(request)


def brute_force(rows, k):
    best = {}
    for unit, score in rows:
        best[unit] = max(best.get(unit, -np.inf), score)
    return sorted(best, key=lambda unit: -best[unit])[:k], best


scores = st.integers(0, 10_000)
corpora = st.lists(
    st.tuples(st.sampled_from([f"u{n}" for n in range(12)]), scores),
    max_size=80,
    unique_by=lambda r: r[1],
)


@given(corpora, st.integers(1, 15), st.sampled_from([True, False, "raises"]))
def test_an_exact_store_gives_the_k_best_distinct_units_however_it_filters(rows, k, excludes):
    store = Store(rows, excludes=excludes)
    found = run(retrieve_from_store(Search("q", k), exact=True), store)
    expected, best = brute_force(rows, k)
    assert [unit.unit.id for unit in found] == expected
    assert [unit.score for unit in found] == [best[id_] for id_ in expected]
    assert all(unit.exact for unit in found)


@given(corpora, st.integers(1, 15))
@settings(max_examples=30)
async def test_async_gives_what_sync_gives(rows, k):
    sync = run(retrieve_from_store(Search("q", k), exact=True), Store(rows))
    assert await arun(retrieve_from_store(Search("q", k), exact=True), Store(rows).call) == sync


HOARDER = [("u0", 10_000 - i) for i in range(900)] + [(f"u{n}", n) for n in range(1, 9)]


def test_a_unit_with_900_better_chunks_hides_no_other_and_costs_two_searches():
    store = Store(HOARDER, whole=[f"u{n}" for n in range(9)])
    found = run(retrieve_from_store(Search("q", 8), exact=True), store)
    assert [unit.unit.id for unit in found] == ["u0", "u8", "u7", "u6", "u5", "u4", "u3", "u2"]
    assert [search.top_k for search in store.searches] == [32, 28]
    assert store.searches[1].exclude == ("u0",)


def test_a_store_that_cannot_exclude_is_asked_for_more_and_more():
    store = Store(HOARDER, excludes="raises", whole=[f"u{n}" for n in range(9)])
    found = run(retrieve_from_store(Search("q", 8), exact=True), store)
    assert [unit.unit.id for unit in found][1:] == [f"u{n}" for n in range(8, 1, -1)]
    assert [search.top_k for search in store.searches] == [32, 28, 64, 128, 256, 512, 1024]


def test_a_capped_store_ends_and_is_marked():
    store = Store(HOARDER, excludes="raises", cap=50)
    found = run(retrieve_from_store(Search("q", 8), exact=False), store)
    assert [unit.unit.id for unit in found] == ["u0"]
    assert not found[0].exact
    assert len(store.searches) < 12


def test_fewer_rows_than_asked_are_no_end_on_a_store_that_may_approximate():
    class Short(Store):
        def __call__(self, request):
            rows = super().__call__(request)
            return rows[:3] if isinstance(request, Search) else rows

    found = run(retrieve_from_store(Search("q", 5), exact=False), Short(HOARDER))
    assert [unit.unit.id for unit in found] == ["u0", "u8", "u7", "u6", "u5"]


def test_whole_units_come_from_the_docstore_else_from_all_their_chunks():
    rows = [("u0", 9), ("u1", 8), ("u0", 1), ("u1", 2), ("u1", 3)]
    found = run(retrieve_from_store(Search("q", 2), exact=True), Store(rows, whole=["u1"]))
    assert [(unit.unit.text, unit.complete) for unit in found] == [
        ("text 0\n\ntext 2", True),
        ("whole u1", True),
    ]


def test_without_filters_a_unit_is_what_was_seen_of_it_and_says_so():
    rows = [("u0", 9), ("u1", 8), *[("u0", -n) for n in range(1, 90)]]
    found = run(retrieve_from_store(Search("q", 2), exact=True), Store(rows, keeps=False))
    assert [unit.complete for unit in found] == [False, False]
    assert found[0].unit.text.startswith("text 0\n\ntext 2")


def test_a_unit_of_many_chunks_is_fetched_whole():
    rows = [("u0", 10_000 - n) for n in range(300)]
    (unit,) = run(retrieve_from_store(Search("q", 1), exact=True), Store(rows))
    assert unit.complete
    assert unit.unit.text.count("text") == 300


@pytest.mark.parametrize("k", [0, -1, True, 2.0, "3", None])
def test_a_k_out_of_range_is_refused(k):
    with pytest.raises(InvalidParameterError, match="k must be an integer of at least 1"):
        run(retrieve_from_store(Search("q", k), exact=True), Store([]))
    with pytest.raises(InvalidParameterError, match="k must be"):
        run(retrieve(["q"], UnitIndex([], [], np.empty((0, 1))), k=k), HashEmbedder())


def test_an_empty_store_gives_nothing():
    assert run(retrieve_from_store(Search("q", 3), exact=True), Store([])) == []


def test_what_the_store_raises_is_raised():
    def broken(request):
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        run(retrieve_from_store(Search("q", 3), exact=True), broken)


def test_rows_that_are_no_hits_are_refused():
    with pytest.raises(StoreError, match="must be answered with hits"):
        run(retrieve_from_store(Search("q", 3), exact=True), lambda request: ["row"])


UNITS, CHUNKS = long_units(
    [
        Document(f"d{n}", f"The {word} is green. " * 30)
        for n, word in enumerate(["pear", "oak", "fern"])
    ],
    [],
    chunk_size=20,
)


def embedded(**settings: object) -> UnitIndex:
    return run(embed_units(UNITS, CHUNKS, **settings), vectors)


def vectors(request: Request):
    assert isinstance(request, Embed)
    return np.stack([hash_vector(text) for text in request.texts])


def test_the_embedded_index_ranks_units_by_their_best_chunk():
    found = run(retrieve(["The oak is green."], embedded(), k=2), vectors)
    assert found[0].unit.doc_ids == ("d1",)
    assert len({unit.unit.id for unit in found}) == 2
    best = found[0].best_chunk
    assert found[0].unit.text[best.start : best.end] == best.text
    assert found[0].score == pytest.approx(
        max(
            np.dot(hash_vector(c.text), hash_vector("The oak is green."))
            / np.linalg.norm(hash_vector(c.text))
            / np.linalg.norm(hash_vector("The oak is green."))
            for c in CHUNKS
        ),
        abs=1e-6,
    )


def test_without_normalisation_the_score_is_the_inner_product():
    found = run(retrieve(["oak"], embedded(normalize=False), k=3), vectors)
    expected = max(float(hash_vector(c.text) @ hash_vector("oak")) for c in CHUNKS)
    assert found[0].score == pytest.approx(expected, rel=1e-5)


def test_a_query_of_several_texts_is_the_mean_of_their_vectors():
    texts = ["The pear is green.", "oak oak"]
    mean = np.mean([hash_vector(text) for text in texts], axis=0)
    by_text = run(retrieve(texts, embedded(), k=3), vectors)
    by_vector = run(retrieve(["never embedded"], embedded(), k=3, vector=mean), None)
    assert by_text == by_vector


def test_a_zero_query_scores_zero_everywhere():
    found = run(retrieve(["q"], embedded(), k=3, vector=np.zeros(64)), None)
    assert [unit.score for unit in found] == [0.0, 0.0, 0.0]


def test_an_empty_index_embeds_nothing():
    index = run(embed_units([], []), None)
    assert run(retrieve(["q"], index, k=3), None) == []


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda n: np.full((n, 8), np.nan), "finite"),
        (lambda n: np.ones((n - 1, 8)), f"{len(CHUNKS) - 1} vectors for {len(CHUNKS)} texts"),
        (lambda n: [["a"] * 8] * n, "numbers"),
    ],
)
def test_unusable_vectors_are_refused_at_the_border(answer, message):
    with pytest.raises(EmbeddingError, match=message):
        run(embed_units(UNITS, CHUNKS), lambda request: answer(len(request.texts)))


def test_a_query_vector_of_another_width_is_refused():
    with pytest.raises(EmbeddingError, match="64"):
        run(retrieve(["q"], embedded(), k=1, vector=np.ones(8)), None)


def test_chunks_of_unknown_units_are_refused():
    with pytest.raises(InvalidParameterError, match="chunks of the given units"):
        UnitIndex(UNITS[:1], CHUNKS, np.ones((len(CHUNKS), 4)))


def test_vectors_that_are_no_rows_are_refused():
    with pytest.raises(InvalidParameterError, match="shape must be"):
        run(embed_units(UNITS, CHUNKS), lambda request: np.ones((len(request.texts), 8, 2)))
