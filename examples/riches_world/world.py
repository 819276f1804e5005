"""A world of films, people, companies and countries, in an outdated state and in that of a corpus.

What a language model remembers of it (``memory``) and what the corpus says (``facts``) differ: the
corpus contradicts all that is remembered, and goes on to things that were never heard of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from examples.riches_world.grammar import COMPOSITIONS, RELATIONS, SECTIONS, all_names
from longrag.types import Document, Key

Fact = tuple[str, str]
"""A subject and the name of a relation."""

REMEMBERED = {"film": 50, "person": 60, "company": 20, "country": 24, "city": 36}
UNHEARD = {"film": 120, "person": 320, "company": 15, "country": 12, "city": 20}
INDIRECT = 0.25
"""The share of statements that begin with the relation."""


@dataclass(frozen=True)
class Question:
    """A question about the corpus.

    ``keys`` are the keys that prove the answer, in the order in which they are needed, and
    ``doc_ids`` the documents that they are from. ``stale`` is the answer that was right in the
    outdated state, None where something was never heard of.
    """

    text: str
    answer: str
    stale: str | None
    keys: tuple[str, ...]
    doc_ids: tuple[str, ...]

    @property
    def hops(self) -> int:
        """How many facts the answer takes."""
        return len(self.keys)


@dataclass(frozen=True)
class World:
    """An outdated state, that of the corpus, and the corpus itself.

    ``known`` and ``names`` are the names of each kind in the outdated state and in the corpus.
    ``documents`` tell the facts in prose, one document for each thing. ``keys`` tell each fact in
    a sentence that stands alone, and each stands for the paragraph that tells it.
    """

    known: Mapping[str, Sequence[str]]
    names: Mapping[str, Sequence[str]]
    memory: Mapping[Fact, str]
    facts: Mapping[Fact, str]
    statements: Mapping[Fact, str]
    documents: Sequence[Document]
    keys: Sequence[Key]


def make_world(seed: int, *, object_first: float = 0.0) -> World:
    """Make a world; the same one for the same seed.

    ``object_first`` is the share of keys that begin with the object, the facts being the same.
    """
    random = Random(f"world {seed}")
    known, names = {}, {}
    for kind, pool in all_names().items():
        chosen = random.sample(pool, REMEMBERED[kind] + UNHEARD[kind])
        known[kind], names[kind] = chosen[: REMEMBERED[kind]], chosen
    memory = _facts(known, {}, random)
    facts = _facts(names, memory, random)
    wording = Random(f"wording {seed}")
    said = {fact: state(*fact, facts[fact], wording, object_first) for fact in facts}
    documents, places = _documents(names, facts)
    keys = [Key(said[fact], *places[fact]) for fact in facts]
    return World(known, names, memory, facts, said, documents, keys)


def _facts(
    names: Mapping[str, Sequence[str]], other_than: Mapping[Fact, str], random: Random
) -> dict[Fact, str]:
    facts = {}
    for relation in RELATIONS.values():
        for subject in names[relation.subject]:
            fact = (subject, relation.name)
            excluded = {subject, other_than.get(fact)}
            facts[fact] = random.choice(
                [name for name in names[relation.object] if name not in excluded]
            )
    return facts


def state(
    subject: str, relation: str, target: str, random: Random, object_first: float = 0.0
) -> str:
    """Put a fact into one of the sentences for its relation."""
    words = RELATIONS[relation]
    first, way = random.random(), random.random()
    chosen = words.indirect if way < INDIRECT else words.direct
    return (words.object_first if first < object_first else chosen).format(s=subject, o=target)


def doc_id(subject: str) -> str:
    """Return the id of the document about something."""
    return re.sub(r"\W+", "-", subject.lower()) + ".md"


def section(subject: str, relations: Sequence[str], facts: Mapping[Fact, str]) -> list[str]:
    """Write the sentences of a paragraph, of which the first alone names what it is about."""
    first, *others = relations
    said = [RELATIONS[first].direct.format(s=subject, o=facts[subject, first])]
    return said + [RELATIONS[name].pronoun.format(o=facts[subject, name]) for name in others]


def _documents(
    names: Mapping[str, Sequence[str]], facts: Mapping[Fact, str]
) -> tuple[list[Document], dict[Fact, tuple[str, int, int]]]:
    documents, places = [], {}
    for kind, sections in SECTIONS.items():
        for subject in names[kind]:
            text = ""
            for heading, relations in sections.items():
                text += f"## {heading}\n\n"
                paragraph = " ".join(section(subject, relations, facts))
                place = (doc_id(subject), len(text), len(text) + len(paragraph))
                places.update({(subject, relation): place for relation in relations})
                text += f"{paragraph}\n\n"
            documents.append(Document(doc_id(subject), text, subject))
    return documents, places


def ask(subject: str, path: Sequence[str], random: Random) -> str:
    """Ask for what one relation, or two in a row, lead to."""
    *inner, last = (RELATIONS[name] for name in path)
    about = inner[0].phrase.format(s=subject) if inner else subject
    return random.choice(last.questions).format(s=about)


def follow(subject: str, path: Sequence[str], facts: Mapping[Fact, str]) -> list[str] | None:
    """Return the subject and what each relation leads to; None where a fact is missing."""
    chain = [subject]
    for relation in path:
        found = facts.get((chain[-1], relation))
        if found is None:
            return None
        chain.append(found)
    return chain


def paths(hops: int) -> list[tuple[str, ...]]:
    """Return the relations that are asked for, each as a path of one or two."""
    return list(COMPOSITIONS) if hops == 2 else [(name,) for name in RELATIONS]


def ask_questions(world: World, count: int, *, hops: int, seed: int = 0) -> list[Question]:
    """Draw questions about the corpus, as evenly from all relations as there are subjects.

    No question contains its answer, and none has the same answer in both states.
    """
    random = Random(f"questions {seed} {hops}")
    pools = []
    for path in paths(hops):
        subjects = list(world.names[RELATIONS[path[0]].subject])
        random.shuffle(subjects)
        asked = (_question(world, subject, path, random) for subject in subjects)
        pools.append([question for question in asked if question])
    drawn: list[Question] = []
    for row in range(max(map(len, pools))):
        drawn += [pool[row] for pool in pools if row < len(pool)]
    return drawn[:count]


def _question(world: World, subject: str, path: Sequence[str], random: Random) -> Question | None:
    text = ask(subject, path, random)
    chain = follow(subject, path, world.facts)
    remembered = follow(subject, path, world.memory)
    stale = remembered[-1] if remembered else None
    if chain is None or chain[-1] == stale or chain[-1] in chain[:-1] or chain[-1] in text:
        return None
    facts = list(zip(chain, path, strict=False))
    return Question(
        text,
        chain[-1],
        stale,
        tuple(world.statements[fact] for fact in facts),
        tuple(doc_id(name) for name, _ in facts),
    )


def without_answers(world: World, questions: Sequence[Question]) -> list[Key]:
    """Return the keys of the world but those that the questions' answers stand in."""
    removed = {question.keys[-1] for question in questions}
    return [key for key in world.keys if key.text not in removed]
