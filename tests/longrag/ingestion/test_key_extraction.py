"""The keys of Table 3: titles, paragraphs, sentences, with the characters they stand for."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrag.errors import InvalidDocumentError
from longrag.ingestion import sentence_keys
from longrag.ingestion.key_extraction import one_line, paragraph_keys, paragraphs, title_keys
from longrag.types import Document

MILL = Document(
    "mill",
    "The mill grinds rye.\nIt stands at the weir.\n"
    "\n"
    "# History\n"
    "It was built in 1684.\n"
    "## Fires ##\n"
    "It burned twice. It stood again.\n"
    "\n"
    "Nobody was hurt.\n"
    "# Today\n"
    "```\n"
    "# no heading\n"
    "\n"
    "code\n"
    "```\n"
    "It is a museum.",
    title="The mill",
)


def shown(keys):
    return [(key.text, MILL.text[key.start : key.end]) for key in keys]


def test_a_paragraph_ends_at_blank_lines_headings_and_fences_and_knows_its_headings():
    found = [(p.heading, p.text) for p in paragraphs([MILL])]
    assert found == [
        ("The mill", "The mill grinds rye.\nIt stands at the weir."),
        ("The mill, History", "It was built in 1684."),
        ("The mill, History, Fires", "It burned twice. It stood again."),
        ("The mill, History, Fires", "Nobody was hurt."),
        ("The mill, Today", "```\n# no heading\n\ncode\n```"),
        ("The mill, Today", "It is a museum."),
    ]


def test_the_paragraphs_of_a_section_share_its_key_and_keep_their_own_characters():
    keys = [key for key in title_keys([MILL]) if key.text.endswith("Fires")]
    assert shown(keys) == [
        ("The mill, History, Fires", "It burned twice. It stood again."),
        ("The mill, History, Fires", "Nobody was hurt."),
    ]
    assert keys[0].passage_id != keys[1].passage_id
    assert {key.doc_id for key in keys} == {"mill"}


def test_a_paragraph_is_a_key_on_one_line_with_or_without_its_headings():
    first = "The mill grinds rye. It stands at the weir."
    assert paragraph_keys([MILL])[0].text == first
    titled = paragraph_keys([MILL], with_title=True)
    assert titled[0].text == f"The mill. {first}"
    assert titled[3].text == "The mill, History, Fires. Nobody was hurt."
    assert [(k.start, k.end, k.passage_id) for k in titled] == [
        (k.start, k.end, k.passage_id) for k in paragraph_keys([MILL])
    ]


def test_a_sentence_is_a_key_with_its_own_characters_and_its_paragraphs_id():
    keys = sentence_keys([MILL])
    assert shown(keys)[:5] == [
        (text, text)
        for text in (
            "The mill grinds rye.",
            "It stands at the weir.",
            "It was built in 1684.",
            "It burned twice.",
            "It stood again.",
        )
    ]
    assert keys[3].passage_id == keys[4].passage_id == paragraphs([MILL])[2].id
    titled = sentence_keys([MILL], with_title=True)
    assert titled[4].text == "The mill, History, Fires. It stood again."
    assert shown(titled)[4][1] == "It stood again."


def test_a_splitter_of_ones_own_is_used():
    keys = sentence_keys([MILL], split_sentences=lambda text: [(0, 3)])
    assert keys[0].text == "The"


def test_a_text_under_no_title_has_no_title_key_and_no_title_before_its_paragraphs():
    document = Document("d", "One.\n\n#\n\nTwo.")
    assert title_keys([document]) == []
    assert [k.text for k in paragraph_keys([document], with_title=True)] == ["One.", "Two."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n\r\n\t\n", []),
        ("One.\r\n\r\n# Two\r\nThree.\r\n", [("", "One."), ("Two", "Three.")]),
        ("#tag is no heading", [("", "#tag is no heading")]),
        ("####### seven", [("", "####### seven")]),
        ("# C#\nSharp.", [("C#", "Sharp.")]),
        ("# A #\nB.\n### C\nD.\n## E\nF.", [("A", "B."), ("A, C", "D."), ("A, E", "F.")]),
        ("~~~\nnever closed\n\n# x", [("", "~~~\nnever closed\n\n# x")]),
        ("````\n```\n\nin\n````\nout", [("", "````\n```\n\nin\n````"), ("", "out")]),
        ("```inline``` code\n\nB.", [("", "```inline``` code"), ("", "B.")]),
        ("水磨坊。\n\n## 历史\n它被烧毁。", [("", "水磨坊。"), ("历史", "它被烧毁。")]),
    ],
)
def test_headings_fences_and_blank_lines_are_told_apart(text, expected):
    found = [(p.heading, p.text) for p in paragraphs([Document("d", text)])]
    assert found == expected


@given(st.lists(st.sampled_from(["# a", "## b ", "", "  ", "text \ud800", "```", "~~~", "文。"])))
def test_every_character_is_in_one_paragraph_a_heading_or_white_space(lines):
    text = "\n".join(lines)
    found = paragraphs([Document("d", text)])
    assert [text[p.start : p.end] for p in found] == [p.text for p in found]
    borders = [place for p in found for place in (p.start, p.end)]
    assert borders == sorted(borders)
    rest = list(text)
    for p in found:
        rest[p.start : p.end] = " " * (p.end - p.start)
    assert {line.strip() for line in "".join(rest).split("\n")} <= {"", "# a", "## b"}
    assert all(
        key.text == one_line(key.text) != "" for key in paragraph_keys([Document("d", text)])
    )


def test_ids_do_not_depend_on_other_documents_and_differ_within_one():
    other = Document("other", MILL.text)
    together = {p.id for p in paragraphs([other, MILL])}
    assert {p.id for p in paragraphs([MILL])} < together
    assert len(together) == 12


def test_documents_that_cannot_be_ingested_are_refused():
    with pytest.raises(InvalidDocumentError, match="have the same id 'mill'"):
        paragraph_keys([MILL, MILL])


@pytest.mark.parametrize("text", ["# " + " " * 200_000 + "x", "#" * 200_000, "`" * 200_000])
def test_hostile_lines_take_no_time(text):
    start = time.process_time()
    paragraphs([Document("d", text + "\nend.")])
    assert time.process_time() - start < 2
