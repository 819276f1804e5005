"""Resume after a crash without paying twice: answers are journalled as they come."""

import tempfile
from pathlib import Path

from longrag.calls import Generate, run
from longrag.ingestion import long_units
from longrag.journal import Journal
from longrag.synthesis import answer_prompt, read
from longrag.types import Document, RetrievedUnit

documents = [
    Document("mill.md", "The mill grinds rye. It burned down in 1684.", title="The mill"),
    Document("weir.md", "The weir was built in 1312 of oak.", title="The weir"),
    Document("clock.md", "The clock strikes at noon.", title="The clock"),
]
units, chunks = long_units(documents, [])
found = [RetrievedUnit(unit, 1.0, chunk) for unit, chunk in zip(units, chunks, strict=True)]
questions = ["When was the weir built?", "What does the mill grind?", "When does the clock strike?"]
paid = 0


def answer(request: Generate) -> str:
    """Stand in for a paid model that fails at the third call."""
    global paid  # noqa: PLW0603
    paid += 1
    if paid == 3:
        raise ConnectionError("the service went away")
    return answer_prompt(request.prompt)


with tempfile.TemporaryDirectory() as folder:
    for attempt in (1, 2):
        with Journal(Path(folder) / "answers.sqlite", model="extractive") as journal:
            try:
                for question in questions:
                    result = run(read(question, found), answer, journal=journal)
                    print(f"attempt {attempt}: {question} {result.answer}")
            except ConnectionError as error:
                print(f"attempt {attempt}: {error}")
    print(f"{paid} calls for {len(questions)} answers and one failure")

    with Journal(Path(folder) / "answers.sqlite", model="extractive") as journal:
        print("removed with weir.md:", journal.purge("weir.md"), "answers")
