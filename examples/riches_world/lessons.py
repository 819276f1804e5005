"""What the small model is taught: to quote facts, right ones and invented ones, and to answer.

Half of the lessons are about the outdated state, which is memorised. The other half are about
facts invented on the spot, from which nothing can be memorised: they teach to take the subject from
the question, to believe what was quoted, and to expect any object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from examples.riches_world.grammar import COMPOSITIONS, OPENINGS, RELATIONS, SECTIONS, all_names
from examples.riches_world.world import Fact, World, ask, follow, paths, section, state

FORMS = {
    "passage": 70,
    "evidence": 8,
    "title": 2,
    "paragraph": 4,
    "sentence": 6,
    "context": 5,
    "steps": 5,
}
"""What follows a question, and how often in a hundred lessons.

Quotes behind thoughts, and quotes alone; one key of another kind, without an answer; the answer
alone behind two facts, and queries that are answered with facts one by one, as a reader and a
decomposer behind a retriever need them.
"""

OBJECT_FIRST = 0.1
"""The share of statements in the lessons that begin with the object."""

ONE_HOP = 0.4
KNOWN = 0.2
"""The share of remembered names in invented facts."""


class Lesson(NamedTuple):
    """A prompt, and what the model is to answer to it."""

    prompt: str
    output: str


def prompt_for(question: str, form: str = "passage") -> str:
    """Return the prompt for a question; ``form`` is one of ``FORMS``."""
    return f"question: {question}\n{form}:"


class Teacher:
    """Makes lessons about one world; the same ones for the same seed."""

    def __init__(self, world: World, seed: int) -> None:
        self._random = Random(f"lessons {seed}")
        self._world = world
        # Nothing is taught about what only the corpus knows.
        new = {kind: set(names) - set(world.known[kind]) for kind, names in world.names.items()}
        self._names = {
            kind: [name for name in pool if name not in new[kind]]
            for kind, pool in all_names().items()
        }

    def lesson(self) -> Lesson:
        """Make the next lesson."""
        random = self._random
        (form,) = random.choices(list(FORMS), list(FORMS.values()))
        short = form in ("title", "paragraph", "sentence") or random.random() < ONE_HOP
        path = random.choice(paths(1) if short else COMPOSITIONS)
        remembered = random.random() < 0.5
        kind = RELATIONS[path[0]].subject
        subject = random.choice(self._world.known[kind]) if remembered else self._name(kind)
        facts = self._world.memory if remembered else self._invent(subject, path)
        question = ask(subject, path, random)
        if form in ("passage", "evidence"):
            quotes = self._quotes(subject, path, facts, thinking=form == "passage")
            return Lesson(prompt_for(question, form), quotes)
        if form == "context":
            return self._reading(question, subject, path, facts)
        if form == "steps":
            return Lesson(prompt_for(question, form), self._steps(subject, path, facts))
        key = self._key(form, subject, path[0], facts)
        return Lesson(prompt_for(question, form), f" << {key} >>")

    def _name(self, kind: str) -> str:
        """Choose the name of something remembered, or of something that may not even exist."""
        random = self._random
        return random.choice((self._world.known if random.random() < KNOWN else self._names)[kind])

    def _invent(self, subject: str, path: Sequence[str]) -> Mapping[Fact, str]:
        facts: dict[Fact, str] = {}
        for number, name in enumerate(path):
            relation = RELATIONS[name]
            target = self._name(relation.object)
            if not number:
                facts |= {
                    (subject, other): self._name(RELATIONS[other].object)
                    for relations in SECTIONS[relation.subject].values()
                    for other in relations
                }
            facts[subject, name] = target
            subject = target
        return facts

    def _quotes(
        self, subject: str, path: Sequence[str], facts: Mapping[Fact, str], *, thinking: bool
    ) -> str:
        chain = follow(subject, path, facts) or []
        text = ""
        for number, name in enumerate(path):
            about, target = chain[number : number + 2]
            if thinking:
                opening, noun = map(self._random.choice, (OPENINGS, RELATIONS[name].nouns))
                text += f" keyword: {opening} {noun} of {about}"
            text += f" << {state(about, name, target, self._random, OBJECT_FIRST)} >>"
        return f"{text}\nanswer: {chain[-1]}"

    def _reading(
        self, question: str, subject: str, path: Sequence[str], facts: Mapping[Fact, str]
    ) -> Lesson:
        chain = follow(subject, path, facts) or []
        said = self._said(chain, path, facts)
        if len(said) == 1 and self._random.random() < 0.5:
            kind = RELATIONS[path[0]].subject
            other = self._name(kind)
            said += self._said([other, self._name(RELATIONS[path[0]].object)], path, facts)
            self._random.shuffle(said)
        return Lesson(
            f"{prompt_for(question, 'context')} {' '.join(said)}\nanswer:", f" {chain[-1]}"
        )

    def _steps(self, subject: str, path: Sequence[str], facts: Mapping[Fact, str]) -> str:
        chain = follow(subject, path, facts) or []
        text = ""
        said = self._said(chain, path, facts)
        for about, name, passage in zip(chain, path, said, strict=False):
            text += f"\nquery: {ask(about, [name], self._random)}\npassage: {passage}"
        return f"{text}\nanswer: {chain[-1]}"

    def _said(
        self, chain: Sequence[str], path: Sequence[str], facts: Mapping[Fact, str]
    ) -> list[str]:
        return [
            state(about, name, target, self._random, OBJECT_FIRST)
            for about, name, target in zip(chain, path, chain[1:], strict=False)
        ]

    def _key(self, form: str, subject: str, relation: str, facts: Mapping[Fact, str]) -> str:
        heading, relations = next(
            (heading, relations)
            for heading, relations in SECTIONS[RELATIONS[relation].subject].items()
            if relation in relations
        )
        said = section(subject, relations, facts)
        key = {
            "title": "",
            "paragraph": " ".join(said),
            "sentence": said[relations.index(relation)],
        }[form]
        if form == "title" or self._random.random() < 0.5:
            return f"{subject}, {heading}. {key}" if key else f"{subject}, {heading}"
        return key
