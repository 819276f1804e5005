"""Rankings and gold documents in the files of TREC, which ir-measures and trec_eval read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

_BREAKS: Final = re.compile(r"[\s%]")


def trec_run(rows: Iterable[Mapping[str, Any]], label: str) -> str:
    """Return rankings as a run: question, "Q0", document, rank, score and label in a line.

    Columns are parted by blanks, so that white space and ``%`` in an id are written as in an
    address: "Rush (band)" is ``Rush%20(band)``. Scores count down to 1, since of many systems only
    the order of documents is known.

    Args:
        rows: each has ``id`` and ``ranking``, document ids with the best first.
        label: names the run.
    """
    return "".join(
        f"{_column(row['id'])} Q0 {_column(id_)} {at} {len(row['ranking']) - at + 1}"
        f" {_column(label)}\n"
        for row in rows
        for at, id_ in enumerate(row["ranking"], start=1)
    )


def trec_qrels(gold: Mapping[str, Mapping[str, int]]) -> str:
    """Return gold documents by question as judgements: question, "0", document and grade in a line.

    Ids are written as in ``trec_run``.
    """
    return "".join(
        f"{_column(question)} 0 {_column(id_)} {grade}\n"
        for question, relevant in gold.items()
        for id_, grade in relevant.items()
    )


def _column(value: str) -> str:
    return _BREAKS.sub(lambda found: quote(found[0]), value)
