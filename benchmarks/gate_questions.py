"""Tell which share of the questions of public data the default query gate sends to retrieval.

    python benchmarks/gate_questions.py

All of them need it. Nothing was trained or tuned on these questions.
"""

from __future__ import annotations

import argparse

from public_data import add_data_option, rows

from longrag.retrieval import QueryClassifier


def main() -> None:
    """Print one line for each file of questions."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_data_option(parser)
    gate = QueryClassifier.load_default()
    for path in sorted(parser.parse_args().data.glob("*/*.dev.jsonl.gz")):
        questions = [row["question"] for row in rows(path)]
        retrieved = sum(map(gate.needs_retrieval, questions))
        name = path.name.partition(".")[0]
        print(f"{name:<16}{len(questions):>6}  {retrieved / len(questions):.3f}")


if __name__ == "__main__":
    main()
