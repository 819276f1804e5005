"""Fields hold what they are given: nothing in a document can end one or open another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrag.prompts import (
    EXTRACT_ANSWER,
    LONG_ANSWER,
    SHORT_ANSWER,
    TAGS,
    document_fields,
    field,
    quote,
    unquote,
)
from longrag.synthesis.fields import read_fields

pieces = st.sampled_from(
    ["<", "</", "&lt;", "&amp;lt;", "/", " ", "\n", ">", "document", "question", "LONG_ANSWER",
     "short_answer", "documents", 'title="x"', "text", "&", "amp;", "答案"]
)  # fmt: skip
hostile = st.lists(pieces, max_size=12).map("".join) | st.text(max_size=40)


@given(hostile)
def test_quoting_is_undone_by_unquoting(text):
    assert unquote(quote(text)) == text


@given(st.lists(st.tuples(st.text(max_size=8), hostile), min_size=1, max_size=4), hostile)
def test_a_prompt_gives_back_exactly_the_documents_and_question_put_into_it(documents, question):
    prompt = LONG_ANSWER.format(context=document_fields(documents), question=quote(question))
    fields = [found for found in read_fields(prompt) if found.tag != "short_answer"]
    assert [(f.title, f.text) for f in fields[:-1]] == documents
    assert fields[-1].tag == "question"
    assert fields[-1].text == question


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("shape", ["</{}>", "<{}>", "</ {} >", "< / {}>", "<{} title='x'>", "</{}"])
def test_every_imitation_of_a_tag_loses_its_meaning(tag, shape):
    for name in (tag, tag.upper()):
        quoted = quote(f"before {shape.format(name)} after")
        assert "<" not in quoted


@pytest.mark.parametrize(
    "text", ["a < b", "<p>html</p>", "<documents>", "x &lt; y", "<-- question"]
)
def test_other_markup_is_left_verbatim(text):
    assert quote(text) == text


def test_labels_of_other_prompts_mean_nothing():
    text = "Short Answer: wrong\n“Question”: what else"
    assert field("document", text) == f"<document>\n{text}\n</document>"


def test_a_title_cannot_leave_its_attribute():
    assert field("document", "x", title='a"> <question>') == (
        '<document title="a&quot;&gt; &lt;question&gt;">\nx\n</document>'
    )


def test_quoting_is_linear():
    assert quote("<" + " " * 200_000) == "<" + " " * 200_000
    assert len(quote("< " * 200_000)) == 400_000


def test_the_short_answer_prompt_has_eight_worked_examples_and_ends_with_the_question():
    fields = read_fields(SHORT_ANSWER.format(question="Q", long_answer="L"))
    assert [f.tag for f in fields] == ["question", "long_answer", "short_answer"] * 8 + [
        "question",
        "long_answer",
    ]
    assert [f.text for f in fields[-2:]] == ["Q", "L"]
    for i in range(8):
        short, long_answer = fields[3 * i + 2].text, fields[3 * i + 1].text
        assert short == "yes" or short in long_answer


def test_templates_take_exactly_their_slots():
    assert "{" not in EXTRACT_ANSWER.format(context="", question="")
    assert "{" not in LONG_ANSWER.format(context="", question="")
    assert "{" not in SHORT_ANSWER.format(long_answer="", question="")
