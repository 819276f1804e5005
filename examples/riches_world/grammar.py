"""What can be said of the world: its relations, how each is put into words, and the names in it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True, slots=True)
class Relation:
    """One relation and its words; ``{s}`` is the subject and ``{o}`` the object.

    ``direct`` statements begin with the subject, ``indirect`` ones with the relation and
    ``object_first`` ones with the object. ``pronoun`` is how a sentence goes on about a subject
    that was named before. ``phrase`` stands for the object in a question of two hops.
    """

    name: str
    subject: str
    object: str
    direct: str
    indirect: str
    object_first: str
    pronoun: str
    questions: tuple[str, ...]
    nouns: tuple[str, ...]
    phrase: str


RELATIONS = {
    relation.name: relation
    for relation in (
        Relation(
            "director", "film", "person",
            "{s} was directed by {o}.", "The director of {s} is {o}.", "{o} directed {s}.",
            "It was directed by {o}.",
            ("Who directed {s}?", "Who is the director of {s}?", "By whom was {s} directed?"),
            ("director", "filmmaker"),
            "the director of {s}",
        ),
        Relation(
            "star", "film", "person",
            "{s} stars {o}.", "The lead in {s} is {o}.", "{o} stars in {s}.",
            "It stars {o}.",
            ("Who stars in {s}?", "Who is the star of {s}?", "Who plays the lead in {s}?"),
            ("star", "lead"),
            "the star of {s}",
        ),
        Relation(
            "studio", "film", "company",
            "{s} was produced by {o}.", "The studio behind {s} is {o}.", "{o} produced {s}.",
            "It was produced by {o}.",
            ("Which company produced {s}?", "Which studio made {s}?", "Who produced {s}?"),
            ("studio", "producer"),
            "the studio behind {s}",
        ),
        Relation(
            "born", "person", "country",
            "{s} was born in {o}.", "The birthplace of {s} is {o}.", "{o} is where {s} was born.",
            "They were born in {o}.",
            ("Where was {s} born?", "In which country was {s} born?",
             "What is the birthplace of {s}?"),
            ("birthplace", "homeland"),
            "the country where {s} was born",
        ),
        Relation(
            "teacher", "person", "person",
            "{s} was taught by {o}.", "The teacher of {s} was {o}.", "{o} taught {s}.",
            "They were taught by {o}.",
            ("Who taught {s}?", "Who was the teacher of {s}?", "By whom was {s} taught?"),
            ("teacher", "mentor"),
            "the teacher of {s}",
        ),
        Relation(
            "founder", "company", "person",
            "{s} was founded by {o}.", "The founder of {s} is {o}.", "{o} founded {s}.",
            "It was founded by {o}.",
            ("Who founded {s}?", "Who is the founder of {s}?", "By whom was {s} founded?"),
            ("founder", "creator"),
            "the founder of {s}",
        ),
        Relation(
            "based", "company", "country",
            "{s} is based in {o}.", "The home of {s} is {o}.", "{o} is home to {s}.",
            "It is based in {o}.",
            ("Where is {s} based?", "In which country is {s} based?", "What is the home of {s}?"),
            ("home", "base"),
            "the country where {s} is based",
        ),
        Relation(
            "capital", "country", "city",
            "{s} has its capital at {o}.", "The capital of {s} is {o}.",
            "{o} is the capital of {s}.",
            "It has its capital at {o}.",
            ("What is the capital of {s}?", "Which city is the capital of {s}?",
             "Where is the capital of {s}?"),
            ("capital", "seat"),
            "the capital of {s}",
        ),
        Relation(
            "leader", "country", "person",
            "{s} is led by {o}.", "The leader of {s} is {o}.", "{o} leads {s}.",
            "It is led by {o}.",
            ("Who leads {s}?", "Who is the leader of {s}?", "By whom is {s} led?"),
            ("leader", "ruler"),
            "the leader of {s}",
        ),
    )
}  # fmt: skip

COMPOSITIONS = (
    ("director", "teacher"),
    ("director", "born"),
    ("star", "teacher"),
    ("studio", "founder"),
    ("studio", "based"),
    ("born", "capital"),
    ("based", "leader"),
    ("founder", "born"),
    ("leader", "teacher"),
)
"""Questions of two hops: of whose answer the second relation is asked."""

OPENINGS = ("find", "check", "recall", "need", "seek", "verify", "ask", "get")
"""How a thought begins: what differs without a meaning takes the room of a beam (RICHES §3.3)."""

SECTIONS = {
    "film": {"Cast and crew": ("director", "star"), "Production": ("studio",)},
    "person": {"Life": ("born", "teacher")},
    "company": {"History": ("founder", "based")},
    "country": {"Government": ("capital", "leader")},
}
"""What a document about each kind of thing tells, section by section."""


def _two(first: str, second: str, between: str = "") -> list[str]:
    return [f"{one}{between}{other}" for one, other in product(first.split(), second.split())]


def all_names() -> dict[str, list[str]]:
    """Return every name that a thing of each kind may have, in a fixed order."""
    return {
        "film": [f"The {name}" for name in _two(
            "Silent Crimson Hollow Golden Last Burning Frozen Hidden Broken Distant Endless Pale "
            "Quiet Savage Velvet Wandering Winter Iron Amber Restless",
            "Harbor Forest River Lantern Garden Mirror Empire Voyage Orchard Signal Station "
            "Meadow Tower Compass Canyon Letter Island Season Bridge Shadow",
            " ",
        )],
        "person": _two(
            "Ana Bruno Clara Dario Elsa Felix Greta Hugo Irene Jonas Karin Leo Mira Nils Olga "
            "Pavel Quinn Rosa Stefan Tilda Ugo Vera Wanda Xenia Yuri Zora Adam Berta Cyril Dora",
            "Abbot Barlow Carver Draper Ellis Fisher Garner Hooper Ingram Jarvis Keller Lambert "
            "Mercer Norton Osborn Palmer Quigley Ramsey Sutton Tanner Underhill Vaughn Weaver "
            "Yardley Zeller Ashford Benson Colby Dalton Emery",
            " ",
        ),
        "company": _two(
            "Apex Beacon Cobalt Delta Ember Falcon Granite Helix Indigo Juniper Kestrel Lumen "
            "Meridian Nimbus Onyx Prism",
            "Pictures Studios Media Films Works",
            " ",
        ),
        "country": _two(
            "North South East West Upper Lower Old New Great Little",
            "Valdovia Kormania Terlandia Margoria Belthuria Druvara Fenstan Galdor Halmark Lorien "
            "Norsia Ostmark Pelgard Sarland Tolmere Veskar",
            " ",
        ),
        "city": _two(
            "Port Fort Mount Saint Lake Castle Bay Cape Glen",
            "Alder Bramble Crow Dunmore Easton Fairfax Hartley Kingsley Langdon Milton Oakham "
            "Redford Stanton Thornton Whitby Selby Marlow Corby",
            " ",
        ),
    }  # fmt: skip
