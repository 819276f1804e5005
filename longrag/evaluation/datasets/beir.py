"""Folders of BEIR: a corpus, queries, and how relevant documents are to them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from longrag.errors import InvalidDocumentError, InvalidParameterError
from longrag.evaluation.datasets.dataset import Dataset, Question
from longrag.evaluation.datasets.files import PathLike, numbered_rows, open_text
from longrag.types import Document

_COLUMNS: Final = ["query-id", "corpus-id", "score"]


def read_beir(path: PathLike, *, split: str = "test", name: str = "") -> Dataset:
    """Read a folder of BEIR (Thakur et al. 2021) as a corpus with questions, without answers.

    It holds ``corpus.jsonl`` with ``_id``, ``title`` and ``text``; ``queries.jsonl`` with ``_id``
    and ``text``; and ``qrels/SPLIT.tsv`` with a header and the columns ``query-id``, ``corpus-id``
    and ``score``. Each file may be compressed, its name then ends in ``.gz``. Queries of the split
    with a document of a score above 0 are the questions, in the order of their file; scores are the
    grades of nDCG.

    Args:
        path: the folder.
        split: names the file of judgements.
        name: names the data set; by default the folder's name.

    Raises:
        InvalidParameterError: the split is not there.
        InvalidDocumentError: a file that is missing or cannot be read, or a line that lacks
            something, repeats an id or names one that is not there; names the file and the line.
    """
    folder = Path(path)
    judged = _file(folder / "qrels", f"{split}.tsv")
    if judged is None:
        there = sorted({one.name.partition(".tsv")[0] for one in folder.glob("qrels/*.tsv*")})
        raise InvalidParameterError("split", split, f"one of {there}", f"It is read from {folder}.")
    documents = {
        id_: Document(id_, _text(row, "text", where), _text(row, "title", where, ""))
        for id_, row, where in _by_id(_there(folder, "corpus.jsonl"))
    }
    queries = {
        id_: _text(row, "text", where)
        for id_, row, where in _by_id(_there(folder, "queries.jsonl"))
    }
    relevant: dict[str, dict[str, int]] = {id_: {} for id_ in queries}
    seen: set[tuple[str, str]] = set()
    for query, document, score, where in _judgements(judged):
        if query not in queries:
            raise InvalidDocumentError(f"{where} names the query {query!r}, which is not there")
        if document not in documents:
            raise InvalidDocumentError(
                f"{where} names the document {document!r}, not in the corpus"
            )
        if (query, document) in seen:
            raise InvalidDocumentError(f"{where} judges {document!r} for {query!r} a second time")
        seen.add((query, document))
        if score > 0:
            relevant[query][document] = score
    questions = tuple(
        Question(id_, queries[id_], gold_ids=tuple(gold), grades=tuple(gold.values()))
        for id_, gold in relevant.items()
        if gold
    )
    return Dataset(name or folder.resolve().name, tuple(documents.values()), questions)


def _file(folder: Path, name: str) -> Path | None:
    return next((one for one in (folder / name, folder / f"{name}.gz") if one.is_file()), None)


def _there(folder: Path, name: str) -> Path:
    found = _file(folder, name)
    if found is None:
        raise InvalidDocumentError(f"{folder} has no {name}, which a folder of BEIR holds")
    return found


def _by_id(path: Path) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the id, the row and the place of each line."""
    seen: set[str] = set()
    for number, row in numbered_rows(path):
        where = f"line {number} of {path}"
        id_ = _text(row, "_id", where)
        if id_ in seen:
            raise InvalidDocumentError(f"{where} repeats the id {id_!r}")
        seen.add(id_)
        yield id_, row, where


def _text(row: dict[str, Any], name: str, where: str, default: str | None = None) -> str:
    value = row.get(name, default)
    if not isinstance(value, str):
        raise InvalidDocumentError(f"{where} must have a string {name!r}, got {value!r}")
    return value


def _judgements(path: Path) -> Iterator[tuple[str, str, int, str]]:
    """Yield query, document, score and place of each line below the header."""
    with open_text(path) as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        try:
            for row in rows:
                where = f"line {rows.line_num} of {path}"
                if rows.line_num == 1:
                    if row != _COLUMNS:
                        raise InvalidDocumentError(f"{where} must be {_COLUMNS}, got {row!r}")
                    continue
                if len(row) != len(_COLUMNS):
                    raise InvalidDocumentError(f"{where} must have three columns, got {row!r}")
                try:
                    score = int(row[2])
                except ValueError:
                    raise InvalidDocumentError(
                        f"the score in {where} must be an integer, got {row[2]!r}"
                    ) from None
                yield row[0], row[1], score, where
        except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
            raise InvalidDocumentError(f"{path} cannot be read: {error}") from error
