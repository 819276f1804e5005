"""Train the classifier that comes with the package.

    python benchmarks/query_classifier/train.py
    python benchmarks/query_classifier/train.py --output some/folder

Reads ``train.jsonl``, chooses the threshold on ``dev.jsonl`` and never opens the test sets.
Equal data give equal files on one platform with one version of scikit-learn.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from queries import FOLDER, Query, read

from longrag.retrieval import QueryClassifier

SHIPPED = FOLDER.parents[1] / "longrag" / "retrieval" / "query_classifier_default"
THRESHOLDS = [step / 20 for step in range(4, 17)]


def train(queries: list[Query]) -> QueryClassifier:
    """Fit with the settings chosen on the development set."""
    return QueryClassifier.fit(
        [query.text for query in queries], [query.retrieval for query in queries], min_count=3
    )


def choose_threshold(classifier: QueryClassifier, queries: list[Query]) -> float:
    """Return the threshold with the best accuracy, of equal ones the lowest.

    A needless search costs time, a missing one the answer.
    """
    scored = [(classifier.probability(query.text), query.retrieval) for query in queries]

    def correct(threshold: float) -> int:
        return sum((probability >= threshold) == label for probability, label in scored)

    return max(THRESHOLDS, key=correct)


def main() -> None:
    """Train, save and print what the development set says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=SHIPPED, help="the folder to write")
    output = parser.parse_args().output
    development = read("dev")
    classifier = train(read("train"))
    classifier = classifier.with_threshold(choose_threshold(classifier, development))
    classifier.save(output)
    correct = sum(classifier.needs_retrieval(q.text) == q.retrieval for q in development)
    size = sum(path.stat().st_size for path in output.iterdir())
    print(f"features {len(classifier.terms)}, threshold {classifier.threshold}, {size} bytes")
    print(f"development set: {correct} of {len(development)} correct")


if __name__ == "__main__":
    main()
