"""A small corpus of our own, which no model has read, and questions about it."""

PAGES = {
    "Harrow Mill": "Harrow Mill is a watermill on the river Selm. It grinds rye and barley. "
    "The mill burned down in 1684 and was built again in stone in 1691.",
    "Selm": "The Selm is a river of 84 kilometres. It rises at Cold Spring and flows into the "
    "Orla Lake. Trout live in its upper course.",
    "Orla Lake": "Orla Lake is the deepest lake of the county, with 112 metres. A ferry crosses "
    "it from April to October.",
    "Ada Lind": "Ada Lind was a bridge engineer. She designed the Long Bridge over the Selm, which "
    "was opened in 1907. She taught at the school of Harrow until 1931.",
    "Long Bridge": "The Long Bridge has seven arches of granite. It replaced a ferry. Its toll was "
    "abolished in 1952.",
    "Harrow Museum": "The Harrow Museum shows tools of millers and weavers. It is closed on "
    "Mondays. Its oldest loom is from 1733.",
    "Tobias Wren": "Tobias Wren was a clockmaker in Harrow. He built the clock of the church of "
    "Saint Anne in 1768. The clock strikes only at noon.",
    "Saint Anne": "Saint Anne is the parish church of Harrow. Its tower is 61 metres high. The "
    "great bell weighs four tonnes.",
    "Cold Spring": "Cold Spring is a village of 300 people. Its water is bottled and sold as "
    "Selm Water. The village school was closed in 1988.",
    "Harrow Railway": "The Harrow Railway was opened in 1874. Its steam engines were replaced by "
    "electric ones in 1966. The journey to the coast takes two hours.",
}
QUESTIONS = [
    ("When did Harrow Mill burn down?", "Harrow Mill"),
    ("Who designed the Long Bridge over the Selm?", "Ada Lind"),
    ("How deep is Orla Lake?", "Orla Lake"),
    ("Who built the clock of Saint Anne?", "Tobias Wren"),
    ("How high is the tower of the church Saint Anne?", "Saint Anne"),
    ("When was the Harrow Railway opened?", "Harrow Railway"),
]
