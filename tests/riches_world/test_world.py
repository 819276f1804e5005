"""The world itself: what the corpus contradicts, and what may be asked."""

import subprocess
import sys
from pathlib import Path

import pytest

from examples.riches_world.grammar import COMPOSITIONS, RELATIONS
from examples.riches_world.lessons import FORMS, Teacher, prompt_for
from examples.riches_world.world import (
    ask_questions,
    follow,
    make_world,
    without_answers,
)
from longrag.ingestion.key_extraction import paragraphs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def world():
    return make_world(0)


@pytest.fixture(scope="module", params=[1, 2])
def questions(request, world):
    return ask_questions(world, 400, hops=request.param)


def test_a_world_is_the_same_whatever_the_hash_seed():
    code = (
        "from hashlib import sha256\n"
        "from examples.riches_world.lessons import Teacher\n"
        "from examples.riches_world.world import ask_questions, make_world\n"
        "world = make_world(3)\n"
        "teacher = Teacher(world, 1)\n"
        "told = [world, ask_questions(world, 50, hops=2), [teacher.lesson() for _ in range(200)]]\n"
        "print(sha256(repr(told).encode()).hexdigest())\n"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert make_world(3) == make_world(3)


def test_worlds_of_different_seeds_differ():
    assert make_world(0).facts != make_world(1).facts


def test_the_corpus_contradicts_all_that_is_remembered_and_goes_on(world):
    assert set(world.memory) < set(world.facts)
    assert [fact for fact in world.memory if world.memory[fact] == world.facts[fact]] == []
    assert len(world.facts) > 3 * len(world.memory)


def test_there_are_nine_relations_and_nine_ways_to_put_two_in_a_row():
    assert (len(RELATIONS), len(set(COMPOSITIONS))) == (9, 9)
    for first, second in COMPOSITIONS:
        assert RELATIONS[first].object == RELATIONS[second].subject


def test_every_fact_is_one_key_that_names_both_its_ends(world):
    assert len({key.text for key in world.keys}) == len(world.keys) == len(world.facts)
    for (subject, relation), said in world.statements.items():
        assert subject in said
        assert world.facts[subject, relation] in said


def test_a_key_stands_for_the_paragraph_that_tells_its_fact(world):
    text_of = {document.id: document.text for document in world.documents}
    places = {(found.doc_id, found.start, found.end) for found in paragraphs(world.documents)}
    assert {(key.doc_id, key.start, key.end) for key in world.keys} == places
    for fact, key in zip(world.facts, world.keys, strict=True):
        assert world.facts[fact] in text_of[key.doc_id][key.start : key.end]


def test_questions_are_as_many_as_asked_for_and_all_different(questions):
    assert len({question.text for question in questions}) == len(questions) == 400


def test_the_keys_of_a_question_are_in_the_corpus_and_lead_to_its_answer(world, questions):
    said = {text: fact for fact, text in world.statements.items()}
    documents = {key.text: key.doc_id for key in world.keys}
    for question in questions:
        facts = [said[key] for key in question.keys]
        chain = follow(facts[0][0], [relation for _, relation in facts], world.facts)
        assert chain[:-1] == [subject for subject, _ in facts]
        assert chain[-1] == question.answer
        assert question.doc_ids == tuple(documents[key] for key in question.keys)


def test_no_question_gives_its_answer_away(questions):
    assert [q for q in questions if q.answer.casefold() in q.text.casefold()] == []


def test_no_answer_was_right_before(questions):
    assert [question for question in questions if question.stale == question.answer] == []
    assert 100 < sum(question.stale is not None for question in questions) < 300


def test_all_relations_are_asked_for_evenly(questions, world):
    said = {text: relation for (_, relation), text in world.statements.items()}
    paths = [tuple(said[key] for key in question.keys) for question in questions]
    counts = [paths.count(path) for path in set(paths)]
    assert len(counts) == 9
    assert max(counts) <= 3 * min(counts)


def test_a_share_of_the_keys_can_begin_with_the_object(world):
    turned = make_world(0, object_first=0.3)
    assert turned.facts == world.facts
    first = [said.startswith(turned.facts[fact]) for fact, said in turned.statements.items()]
    assert 0.25 < sum(first) / len(first) < 0.35
    assert not any(said.startswith(world.facts[fact]) for fact, said in world.statements.items())


def test_the_keys_of_answers_can_be_taken_out_of_the_corpus(world, questions):
    left = {key.text for key in without_answers(world, questions)}
    assert {question.keys[-1] for question in questions}.isdisjoint(left)
    assert len(left) == len(world.keys) - len({question.keys[-1] for question in questions})


def test_lessons_never_tell_what_only_the_corpus_knows(world):
    teacher = Teacher(world, 0)
    lessons = [teacher.lesson() for _ in range(3000)]
    new = {name for kind, names in world.names.items() for name in names[len(world.known[kind]) :]}
    told = " ".join(prompt + output for prompt, output in lessons)
    assert [name for name in sorted(new) if name in told] == []
    forms = {prompt.split("\n")[1].partition(":")[0] for prompt, _ in lessons}
    assert forms == set(FORMS)


def test_a_lesson_answers_from_what_it_quotes(world):
    teacher = Teacher(world, 0)
    lessons = [teacher.lesson() for _ in range(500)]
    quoting = [lesson for lesson in lessons if "\nanswer: " in lesson.output]
    for prompt, output in quoting:
        evidence, answer = output.split("\nanswer: ")
        assert answer in evidence
        assert answer not in prompt
    assert len(quoting) > 350


def test_a_prompt_ends_where_its_form_begins():
    assert prompt_for("Who?", "evidence") == "question: Who?\nevidence:"
