"""Units put together from chunks and cut to budgets: offsets stay true, budgets hold."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrag.errors import InvalidParameterError
from longrag.ingestion import chunk_unit, long_units
from longrag.models.tokens import count_tokens
from longrag.retrieval import fit_budget, unit_of_chunks
from longrag.retrieval.assembly import place
from longrag.types import Chunk, Document, LongUnit, Member, RetrievedUnit

WORDS = ["pear", "oak", "fern", "moss", "reed"]


def found_unit(texts, *, best=0, granularity="chunk", titles=True):
    documents = [
        Document(f"d{n}", text, title=f"Title {n}" if titles else "")
        for n, text in enumerate(texts)
    ]
    links = [(n, n + 1) for n in range(len(texts) - 1)]
    (unit,), chunks = long_units(
        documents, links, max_tokens=10**6, chunk_size=12, granularity=granularity
    )
    return RetrievedUnit(unit, 1.0, chunks[best % len(chunks)])


def prose(word, sentences):
    return "".join(f" The {word} grows in bed {n}.\n" for n in range(sentences))


def check_offsets(found, texts):
    unit = found.unit
    for member in unit.members:
        own = unit.text[member.start : member.end]
        assert own == texts[int(member.doc_id[1:])][member.doc_start : member.doc_end]
    best = found.best_chunk
    assert unit.text[best.start : best.end] == best.text


shapes = st.lists(st.tuples(st.sampled_from(WORDS), st.integers(1, 6)), min_size=1, max_size=5)


@given(
    shapes,
    st.integers(0, 20),
    st.integers(1, 200),
    st.booleans(),
    st.sampled_from(["chunk", "document", "unit"]),
)
def test_a_cut_unit_keeps_true_offsets_its_best_chunk_and_the_budget(
    shape, best, budget, titles, granularity
):
    texts = [prose(word, sentences) for word, sentences in shape]
    found = found_unit(texts, best=best, titles=titles, granularity=granularity)
    (cut,) = fit_budget([found], budget)
    assert count_tokens(cut.unit.text) <= budget
    assert cut.unit.tokens == (found.unit.tokens if cut.complete else count_tokens(cut.unit.text))
    assert cut.complete == (cut.unit == found.unit)
    if granularity != "unit":
        check_offsets(cut, texts)
    assert set(cut.unit.doc_ids) <= set(found.unit.doc_ids)
    if granularity == "chunk":
        assert found.best_chunk.doc_id in cut.unit.doc_ids


def test_a_unit_is_cut_to_the_documents_that_fit_the_best_one_first():
    texts = [prose("pear", 4), prose("oak", 4), prose("fern", 1)]
    found = found_unit(texts, best=5)
    assert found.best_chunk.doc_id == "d1"
    size = count_tokens(texts[1]) + 2
    (cut,) = fit_budget([found], size)
    assert cut.unit.doc_ids == ("d1",)
    (cut,) = fit_budget([found], size + count_tokens(texts[2]) + 2)
    assert cut.unit.doc_ids == ("d1", "d2")
    assert cut.unit.text == f"Title 1\n\n{texts[1]}\n\nTitle 2\n\n{texts[2]}"


def test_a_document_that_does_not_fit_is_cut_to_the_best_chunk():
    found = found_unit([prose("pear", 6)], best=1)
    (cut,) = fit_budget([found], 14)
    assert cut.unit.text == found.best_chunk.text
    assert not cut.complete


def test_the_first_unit_is_never_left_out_but_later_ones_are():
    first, second = found_unit([prose("pear", 6)]), found_unit([prose("oak", 6)])
    (only,) = fit_budget([first, second], 3)
    assert only.unit.id == first.unit.id
    assert only.unit.text == only.best_chunk.text == "The pear grows"


def test_later_units_get_what_is_left():
    first, second = found_unit([prose("pear", 1)]), found_unit([prose("oak", 6)])
    room = count_tokens(first.unit.text) + 14
    kept = fit_budget([first, second], room)
    assert [unit.complete for unit in kept] == [True, False]
    assert sum(count_tokens(unit.unit.text) for unit in kept) <= room


@given(
    st.lists(shapes, min_size=1, max_size=4),
    st.integers(0, 20),
    st.integers(0, 60),
    st.sampled_from([count_tokens, len]),
)
def test_units_joined_by_blank_lines_keep_to_the_budget(units, best, missing, count):
    texts = [[prose(word, sentences) for word, sentences in shape] for shape in units]
    found = [found_unit(own, best=best) for own in texts]
    budget = max(count("\n\n".join(one.unit.text for one in found)) - missing, 1)
    kept = fit_budget(found, budget, count_tokens=count)
    assert len(kept) >= 1
    assert count("\n\n".join(one.unit.text for one in kept)) <= budget


def test_the_blank_lines_between_units_count():
    found = [found_unit([prose(word, 1)], titles=False) for word in WORDS[:3]]
    joined = "\n\n".join(one.unit.text for one in found)
    assert fit_budget(found, len(joined) + 2, count_tokens=len) == found
    (first, second, third) = fit_budget(found, len(joined) - 1, count_tokens=len)
    assert (first, second) == (found[0], found[1])
    assert third.unit.text == found[2].best_chunk.text


def test_no_budget_changes_nothing():
    found = [found_unit([prose("pear", 6)])]
    assert fit_budget(found, None) == found


@pytest.mark.parametrize("budget", [0, -1, True, 1.5, "9"])
def test_a_budget_out_of_range_is_refused(budget):
    with pytest.raises(
        InvalidParameterError, match="token_budget must be an integer of at least 1"
    ):
        fit_budget([], budget)


def test_chunks_make_a_unit_in_document_order_without_repeating_overlaps():
    text = "abcdefghij"
    spans = [(6, 10), (0, 4), (2, 7)]
    chunks = [Chunk(f"{s}", "u", "d", "T", text[s:e], 0, 0, s, e) for s, e in spans]
    unit = unit_of_chunks("u", chunks)
    assert unit.text == text
    assert unit.doc_ids == ("d",)


def test_a_chunk_inside_another_adds_nothing():
    chunks = [
        Chunk("1", "u", "d", "", "abcdef", 0, 0, 0, 6),
        Chunk("2", "u", "d", "", "cd", 0, 0, 2, 4),
    ]
    assert unit_of_chunks("u", chunks).text == "abcdef"


@given(st.sampled_from(WORDS), st.integers(2, 8), st.integers(0, 20), st.integers(1, 60))
def test_what_a_budget_leaves_of_stored_chunks_is_found_in_the_source(word, sentences, best, room):
    source = prose(word, sentences)
    # The chunks begin in different places, and what parted them is not stored.
    _, chunks = long_units([Document("d", source)], [], chunk_size=7)
    stored = chunks[1:]
    unit = unit_of_chunks("u", stored)
    chunk = place(stored[best % len(stored)], unit)
    (cut,) = fit_budget([RetrievedUnit(unit, 1.0, chunk)], room)
    if not cut.complete:
        (member,) = cut.unit.members
        assert source[member.doc_start : member.doc_end] == cut.unit.text
    held = cut.best_chunk
    assert source[held.doc_start : held.doc_end] == held.text


def test_documents_and_gaps_are_parted_by_a_blank_line():
    chunks = [
        Chunk("1", "u", "b", "", "one", 0, 0, 0, 3),
        Chunk("2", "u", "a", "", "two", 0, 0, 0, 3),
        Chunk("3", "u", "a", "", "three", 0, 0, 9, 14),
    ]
    unit = unit_of_chunks("u", chunks)
    assert unit.text == "two\n\nthree\n\none"
    assert unit.members == (
        Member("a", "", 0, 0, 3),
        Member("a", "", 5, 9, 14),
        Member("b", "", 12, 0, 3),
    )
    assert unit.doc_ids == ("a", "b")


@given(shapes)
def test_place_finds_every_chunk_of_a_unit(shape):
    texts = [prose(word, sentences) for word, sentences in shape]
    unit = found_unit(texts).unit
    for chunk in chunk_unit(unit, chunk_size=12):
        stored = Chunk(
            chunk.id,
            "",
            chunk.doc_id,
            chunk.title,
            chunk.text,
            0,
            0,
            chunk.doc_start,
            chunk.doc_end,
        )
        assert place(stored, unit) == chunk


def test_a_best_chunk_that_is_the_whole_unit_is_cut_with_it():
    texts = [prose("pear", 2), prose("oak", 2), prose("fern", 2)]
    found = found_unit(texts, granularity="unit")
    (cut,) = fit_budget([found], count_tokens(texts[0]) + 3)
    assert cut.unit.text == f"Title 0\n\n{texts[0]}"
    best = cut.best_chunk
    assert (best.text, best.start, best.end) == (cut.unit.text, 0, len(cut.unit.text))
    assert (best.doc_id, best.doc_start, best.doc_end) == ("d0", 0, len(texts[0]))


def test_white_space_over_the_budget_is_cut_to_nothing():
    found = found_unit([" " * 30, prose("oak", 1)], titles=False)
    blank = Chunk("b", found.unit.id, "d0", "", " " * 30, 0, 30, 0, 30)
    (cut,) = fit_budget([RetrievedUnit(found.unit, 1.0, blank)], 10, count_tokens=len)
    assert (cut.unit.text, cut.unit.tokens, cut.complete) == ("", 0, False)
    assert (cut.best_chunk.text, cut.best_chunk.doc_id) == ("", "d0")


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), min_size=1, max_size=6))
def test_every_stretch_without_a_gap_is_a_member_with_its_place_in_the_source(spans):
    source = "".join(chr(ord("a") + n % 26) for n in range(50))
    chunks = [Chunk(str(s), "u", "d", "", source[s : s + n], 0, 0, s, s + n) for s, n in spans]
    unit = unit_of_chunks("u", chunks)
    covered = {at for s, n in spans for at in range(s, s + n)}
    starts = [at for at in sorted(covered) if at - 1 not in covered]
    ends = [at + 1 for at in sorted(covered) if at + 1 not in covered]
    assert [(m.doc_start, m.doc_end) for m in unit.members] == list(zip(starts, ends, strict=True))
    assert unit.text == "\n\n".join(map(source.__getitem__, map(slice, starts, ends)))
    check_members(unit, {"d": source})


def check_members(unit, sources):
    for member in unit.members:
        of_source = sources[member.doc_id][member.doc_start : member.doc_end]
        assert of_source == (unit.text[member.start : member.end] if member.placed else "")


def test_offsets_that_are_not_those_of_the_text_give_no_place_in_the_source():
    stored = [
        Chunk("1", "u", "d", "", "Title\n\none", 0, 0, 5, 8),
        Chunk("2", "u", "d", "", "two", 0, 0, 9, 12),
        Chunk("3", "u", "d", "", "none", 40, 44, -1, 3),
    ]
    unit = unit_of_chunks("u", stored)
    assert unit.text == "Title\n\none\n\ntwo\n\nnone"
    assert unit.members == (
        Member.unplaced("d", "", 0, 10),
        Member("d", "", 12, 9, 12),
        Member.unplaced("d", "", 17, 4),
    )
    assert [m.placed for m in unit.members] == [False, True, False]
    assert [unit.text[m.start : m.end] for m in unit.members] == ["Title\n\none", "two", "none"]
    best = place(stored[2], unit)
    assert (best.start, best.end, best.doc_start, best.doc_end) == (17, 21, -4, 0)


def test_chunks_that_disagree_about_a_place_leave_none_of_the_document_placed():
    stored = [
        Chunk("1", "u", "d", "", "abcdef", 0, 0, 0, 6),
        Chunk("2", "u", "d", "", "xyz", 0, 0, 4, 7),
        Chunk("3", "u", "d", "", "cd", 0, 0, 2, 4),
        Chunk("4", "u", "d", "", "uvw", 0, 0, 20, 23),
        Chunk("5", "u", "other", "", "cd", 0, 0, 2, 4),
    ]
    unit = unit_of_chunks("u", stored)
    assert unit.text == "abcdef\n\nxyz\n\nuvw\n\ncd"
    assert [member.placed for member in unit.members] == [False, False, False, True]
    places = [place(chunk, unit) for chunk in stored]
    assert [unit.text[one.start : one.end] for one in places] == [one.text for one in stored]
    assert [one.doc_start for one in places] == [-6, -3, -2, -3, 2]


def test_text_that_stands_in_the_longer_of_two_that_disagree_is_not_repeated():
    stored = [
        Chunk("1", "u", "d", "", "abcdefghij", 0, 0, 0, 10),
        Chunk("2", "u", "d", "", "xy", 0, 0, 2, 4),
        Chunk("3", "u", "d", "", "fghijkl", 0, 0, 5, 12),
    ]
    assert unit_of_chunks("u", stored).text == "abcdefghijkl\n\nxy"


def test_chunks_without_a_place_say_nothing_against_those_that_have_one():
    stored = [
        Chunk("1", "u", "d", "", "one", 0, 0, -1, -1),
        Chunk("2", "u", "d", "", "two", 0, 0, -1, -1),
        Chunk("3", "u", "d", "", "three", 0, 0, 0, 5),
    ]
    unit = unit_of_chunks("u", stored)
    assert unit.text == "one\n\ntwo\n\nthree"
    assert [member.placed for member in unit.members] == [False, False, True]


@given(st.lists(st.tuples(st.integers(0, 8), st.text("ab", min_size=1, max_size=6)), max_size=6))
def test_no_text_is_lost_and_no_two_members_claim_one_place_for_different_texts(rows):
    stored = [
        Chunk(f"{n}", "u", "d", "", text, 0, 0, at, at + len(text))
        for n, (at, text) in enumerate(rows)
    ]
    unit = unit_of_chunks("u", stored)
    claimed = {}
    for chunk in [*stored, *(place(chunk, unit) for chunk in stored)]:
        assert chunk.text in unit.text
    for member in unit.members:
        for at in range(max(member.doc_start, 0), member.doc_end):
            character = unit.text[member.start + at - member.doc_start]
            assert claimed.setdefault(at, character) == character
    truth = {}
    agree = all(
        truth.setdefault(chunk.doc_start + n, character) == character
        for chunk in stored
        for n, character in enumerate(chunk.text)
    )
    assert all(member.placed == agree for member in unit.members)


@given(st.integers(0, 9), st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))
def test_parts_of_a_text_without_a_place_have_none(start, length, first, last):
    whole = Member.unplaced("d", "", start, length)
    assert (whole.end, whole.placed) == (start + length, False)
    first, last = sorted((min(first, length), min(last, length)))
    part = replace(
        whole,
        start=start + first,
        doc_start=whole.doc_start + first,
        doc_end=whole.doc_start + last,
    )
    assert part.end - part.start == last - first
    assert ("x" * 20)[part.doc_start : part.doc_end] == ""


def stretches(word, count):
    """Return a source and chunks of it that leave the white space between them out."""
    sentences = [f"The {word} grows in bed {n}." for n in range(count)]
    source, chunks = "", []
    for n, sentence in enumerate(sentences):
        start = len(source)
        chunks.append(
            Chunk(f"{word}{n}", "u", word, "", sentence, 0, 0, start, start + len(sentence))
        )
        source += sentence + "\n \n"
    return source, chunks


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 20), st.integers(1, 90))
def test_a_budget_keeps_documents_of_stretches_whole_or_else_their_best_chunk(m, n, best, room):
    sources, stored = {}, []
    for word, count in (("oak", m), ("fern", n)):
        sources[word], chunks = stretches(word, count)
        stored += chunks
    unit = unit_of_chunks("u", stored)
    assert [len(parts) for parts in unit.documents] == [n, m]
    best = place(stored[best % len(stored)], unit)
    (cut,) = fit_budget([RetrievedUnit(unit, 1.0, best)], room)
    check_members(cut.unit, sources)
    assert count_tokens(cut.unit.text) <= room
    held = cut.best_chunk
    assert held.text == cut.unit.text[held.start : held.end]
    assert held.text == sources[held.doc_id][held.doc_start : held.doc_end]
    whole = {parts[0].doc_id: len(parts) for parts in unit.documents}
    left = {parts[0].doc_id: len(parts) for parts in cut.unit.documents}
    assert left.items() <= whole.items() or len(cut.unit.members) == 1


def test_a_chunk_that_is_not_in_a_fetched_unit_has_no_place_there():
    unit = LongUnit("u", "The whole page of the mill.", (Member("mill", "", 0, 0, 27),), 6)
    stored = Chunk("1", "u", "mill", "", "The mill grinds rye.", 0, 20, 0, 20)
    best = place(stored, unit)
    assert (best.start, best.end, best.doc_start, best.doc_end) == (0, 0, -20, 0)
    (cut,) = fit_budget([RetrievedUnit(unit, 1.0, best)], 3)
    check_members(cut.unit, {"mill": unit.text})
    assert cut.unit.text == "The whole page"
    assert cut.best_chunk.text == "The whole page"


def test_a_chunk_whose_offsets_count_from_elsewhere_gets_those_of_its_unit():
    text = "One. Two. One. Two."
    unit = LongUnit("u", text, (Member("d", "", 0, 100, 100 + len(text)),), 4)
    stored = Chunk("1", "u", "d", "", "Two.", 15, 19, -4, 0)
    best = place(stored, unit)
    assert (best.start, best.doc_start, best.doc_end) == (15, 115, 119)
