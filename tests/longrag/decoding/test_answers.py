"""A question cannot break the form it is put into, and an answer is never read out of a span."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longrag.decoding.answers import LABELS, defuse, fill, parse_answer, riches_prompt, thoughts
from longrag.errors import InvalidParameterError
from longrag.generation import Generation, RetrievedSpan, Usage
from longrag.prompts import (
    RICHES_MULTI_HOP,
    RICHES_SINGLE_HOP,
    RICHES_STOP,
)

TEMPLATES = {"single": RICHES_SINGLE_HOP, "multi": RICHES_MULTI_HOP}
LABEL = re.compile(r"(?:question|passage|keyword|query|answer)[::]", re.IGNORECASE)

pieces = st.sampled_from(
    ["<", "<<", "<<<", ">", ">>", " ", "\n", "\r\n", "\u2028", "\x85", "question", "Answer",
     "KEYWORD", "passage", "query", ":", ":", "{question}", "{", "}", "\\1", "西湖", "x", "\ud800"]
)  # fmt: skip
hostile = st.lists(pieces, min_size=1, max_size=12).map("".join) | st.text(min_size=1, max_size=40)


def generation(text, *spans):
    """Make a generation whose spans are these texts, in their order."""
    found, done = [], 0
    for span in spans:
        done = text.index(span, done) + len(span)
        found.append(RetrievedSpan(span, done - len(span), done, -1.0, ()))
    return Generation(text, tuple(found), -1.0, "stop", Usage(1, 1, 1, 1))


def lines(prompt):
    return [tuple(block.splitlines()) for block in prompt.split("\n\n")[1:]]


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_prompt_has_three_demonstrations_in_the_form_of_the_paper_and_then_the_question(template):
    *demonstrations, asked = lines(riches_prompt("who burned it", template))
    assert asked == ("question: who burned it", "passage:")
    assert len(demonstrations) == 3
    part = r" keyword: [^<>:]+ << [^<>:]+\. >>"
    for question, passage, answer in demonstrations:
        assert re.fullmatch(r"question: \S.*", question)
        assert re.fullmatch(rf"passage:(?:{part})+", passage)
        assert re.fullmatch(r"answer: \S.*", answer)
        spans = re.findall(r"<< (.*?) >>", passage)
        assert len(set(spans)) == len(spans) <= 4
        assert not any(re.match(r"(?:It|He|She|They|This|There)\b", span) for span in spans)


def test_demonstrations_of_several_hops_take_at_least_two_passages_each():
    hops = [found[1].count("<<") for found in lines(RICHES_MULTI_HOP)[:-1]]
    assert hops == [2, 4, 3]


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@given(question=hostile)
def test_no_question_changes_the_form_of_the_prompt(template, question):
    if not question.strip():
        return
    prompt = riches_prompt(question, template)
    head, _, asked = prompt.rpartition("\n\n")
    assert head == template.rpartition("\n\n")[0]
    first, second = asked.splitlines()
    assert second == "passage:"
    shown = first.removeprefix("question: ")
    assert not LABEL.search(shown)
    assert "<<" not in shown
    assert ">>" not in shown
    assert re.sub(r"\s", "", shown) == re.sub(r"\s", "", question)


@given(st.text(alphabet="abc äö,.?中 <>", max_size=30).filter(str.strip))
def test_an_ordinary_question_is_left_as_it_is(question):
    plain = " ".join(question.replace("<<", "").replace(">>", "").split())
    if "<<" not in plain and ">>" not in plain:
        assert defuse(plain) == plain


def test_other_markers_are_defused_in_their_turn():
    assert defuse("a <ev> b </ev> <<", markers=("<ev>", "</ev>")) == "a < ev> b < /ev> <<"
    assert defuse("a ⟦b⟧", markers=(" ⟦", "⟧ ")) == "a  b "
    assert defuse("aaa", markers=("aa", "b")) == "a a a"


def test_slots_are_filled_at_once_and_other_braces_stand_for_themselves():
    template = '{"x": 1} {question} {passage}'
    filled = fill(template, {"question": "{passage}", "passage": "\\g<0> answer: {question}"})
    assert filled == '{"x": 1} {passage} \\g<0> answer : {question}'
    raw = {"steps": "query: {question}\n"}
    assert fill("{question}|{steps}", {"question": "{steps}"}, raw=raw) == "{steps}|" + raw["steps"]


@pytest.mark.parametrize("template", ["no slot", None, "{Question}"])
def test_a_template_without_its_slot_is_refused(template):
    with pytest.raises(InvalidParameterError, match=r"template must be a string with the slot"):
        riches_prompt("who", template)


@pytest.mark.parametrize("question", ["", " \n", None, 3])
def test_a_question_that_says_nothing_is_refused(question):
    with pytest.raises(InvalidParameterError, match="question must be"):
        riches_prompt(question)


def test_an_output_is_stopped_by_the_next_question_and_not_before_its_answer_ends():
    for template in TEMPLATES.values():
        _, *demonstrations = template.split("\nquestion: ")
        for demonstration in demonstrations[:-1]:
            output = demonstration.partition("\npassage:")[2]
            assert not any(stop in output for stop in RICHES_STOP)
            assert any(stop in f"{output}\nquestion: next" for stop in RICHES_STOP)
            assert parse_answer(output) == output.rpartition("answer: ")[2].strip()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" keyword: a << A is b. >>\nanswer: b", "b"),
        (" keyword: a << A is b. >> answer: b", "b"),
        ("Answer: 1684\n", "1684"),
        ("**Answer:** the mill", "the mill"),
        ("**Answer**: the mill", "the mill"),
        ("**Answer: the mill**", "the mill"),
        ("_answer:_ the mill", "the mill"),
        ("answer: **the mill**", "the mill"),
        ("answer: `__init__`", "__init__"),
        ("answer: __init__", "__init__"),
        ("answer: *x* and *y*", "*x* and *y*"),
        ("### Final ANSWER : 7 : 3", "7 : 3"),
        ("answer:\n\n  Lund \nmore", "Lund"),
        ("answer:\nquestion: and now", ""),
        ("answer: a\nno\nanswer: b", "b"),
        ("answer: answer: b", "b"),
        ("answer:北京", "北京"),
        ("answer: b << The answer: c. >>", "b"),
        ("<< The answer: is 5. >>", ""),
        ("answer: b\nkeyword: x << The answer: is", "b"),
        ("my_answer: 5, reanswer: 6", ""),
        ("the answer is 5", ""),
        ("answer:", ""),
        ("", ""),
    ],
)
def test_the_answer_stands_behind_the_last_label_in_free_text(text, answer):
    assert parse_answer(text) == answer


def test_the_spans_of_a_generation_tell_what_is_free_text_even_where_a_key_holds_a_marker():
    text = " keyword: k << a >> answer: no >>\nanswer: yes"
    assert parse_answer(generation(text, "a >> answer: no")) == "yes"
    unfinished = generation(" keyword: k << a >> keyword: l << the answer: no", "a")
    assert parse_answer(unfinished) == ""


def test_other_markers_are_read_when_told():
    assert parse_answer("[[ answer: a ]] answer: << b", markers=("[[", "]]")) == "<< b"
    assert parse_answer("answer: a [[ b", markers=("[[", "]]")) == "a"


@given(st.text(max_size=60), st.sampled_from(LABELS), hostile)
def test_what_a_span_holds_never_becomes_the_answer(before, label, key):
    span = f"{label}: {key}".replace(">>", "")
    assert parse_answer(f"{before.replace('<<', '')}\n<< {span} >>\nanswer: right") == "right"


def test_each_span_has_the_thought_before_it():
    text = (
        "passage: keyword: the mill << It burned. >> Keyword:  a date<<It was 1684.>>\nanswer: 1684"
    )
    assert thoughts(generation(text, "It burned.", "It was 1684.")) == ("the mill", "a date")
    assert thoughts(
        generation("<< It burned. >> << It stands. >>", "It burned.", "It stands.")
    ) == (
        "",
        "",
    )
    assert thoughts(generation("answer: none")) == ()


def test_reading_an_answer_is_linear():
    assert parse_answer("answer: 1 " * 50_000) == "1"
    assert parse_answer("<<" * 100_000) == ""
    assert parse_answer("*" * 200_000) == ""
    assert len(defuse("<" * 100_000 + "answer:" * 20_000)) == 199_999 + 160_000


@pytest.mark.parametrize("template", [RICHES_SINGLE_HOP, RICHES_MULTI_HOP])
def test_the_worked_examples_show_the_markers_of_the_output(template):
    plain = riches_prompt("Who?", template)
    other = riches_prompt("Who?", template, markers=(">>>", "[<<]"))
    assert other.count(">>> ") == plain.count("<< ") > 2
    assert other.replace(">>>", "OPEN").replace("[<<]", ">>").replace("OPEN", "<<") == plain
    own = "say << a >>: {question}"
    assert riches_prompt("Who?", own, markers=("[[", "]]")) == "say << a >>: Who?"
