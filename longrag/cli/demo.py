"""``longrag demo PATH QUESTION``: an answer with its sources, without an index that is kept."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from longrag.calls import Embed, Flow, Generate, Request
from longrag.calls import run as run_flow
from longrag.errors import InvalidParameterError, MissingExtraError
from longrag.ingestion.resolving import resolve_links
from longrag.ingestion.sources import read_documents
from longrag.ingestion.units import embedding_text, long_units
from longrag.models.embedder import Embedder, LsaEmbedder
from longrag.models.minilm.embedder import MiniLmEmbedder
from longrag.retrieval.units import embed_units, retrieve
from longrag.synthesis.extractive import answer_prompt
from longrag.synthesis.two_turn import ReaderAnswer, read
from longrag.types import Chunk, Document, LongUnit, RetrievedUnit


def add(commands: Any) -> None:
    """Describe the command."""
    parser: argparse.ArgumentParser = commands.add_parser("demo")
    parser.add_argument("path", help="a folder, or one file, of Markdown, HTML or text")
    parser.add_argument("question", nargs="+", help="one question, or several in quotes")
    parser.add_argument("--k", type=int, default=4, help="units to retrieve (default 4)")
    parser.add_argument("--max-tokens", type=int, default=4096, help="largest unit (default 4096)")
    parser.add_argument(
        "--embedder",
        choices=["auto", "lsa", "minilm"],
        default="auto",
        help="auto takes MiniLM when the extra 'local' is installed, else LSA",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Answer the questions."""
    documents = read_documents(options.path)
    report = resolve_links(documents)
    minilm = _minilm(options.embedder)
    units, chunks = long_units(
        documents,
        report.links,
        max_tokens=options.max_tokens,
        chunk_size=minilm.chunk_size if minilm else 256,
    )
    if not chunks:
        raise InvalidParameterError("path", options.path, "a place with some text in it")
    embedder = minilm or LsaEmbedder([embedding_text(chunk) for chunk in chunks])
    print(
        f"{len(documents)} documents, {len(report.links)} links between them"
        f" ({len(report.unresolved)} unresolved), {len(units)} units, {len(chunks)} chunks;"
        f" {type(embedder).__name__}, extractive reader"
    )
    for question in options.question:
        flow = _answer(units, chunks, question, options.k)
        answer, found = run_flow(flow, lambda request: _local(request, embedder))
        _show(question, answer, found, documents)
    return 0


def _minilm(choice: str) -> MiniLmEmbedder | None:
    if choice == "lsa":
        return None
    try:
        return MiniLmEmbedder()
    except MissingExtraError:
        if choice == "minilm":
            raise
        return None


def _answer(
    units: Sequence[LongUnit], chunks: Sequence[Chunk], question: str, k: int
) -> Flow[tuple[ReaderAnswer, list[RetrievedUnit]]]:
    index = yield from embed_units(units, chunks)
    found = yield from retrieve([question], index, k=k)
    return (yield from read(question, found)), found


def _local(request: Request, embedder: Embedder) -> object:
    match request:
        case Embed():
            return embedder(request.texts, request.role)
        case Generate():
            return answer_prompt(request.prompt)
        case _:
            raise NotImplementedError(type(request).__name__)


def _show(
    question: str,
    answer: ReaderAnswer,
    found: Sequence[RetrievedUnit],
    documents: Sequence[Document],
) -> None:
    titles = {document.id: document.title for document in documents}
    print(f"\nQ: {question}\nA: {answer.answer}")
    if answer.long_answer and answer.long_answer != answer.answer:
        print("\n".join(f"   | {line}" for line in answer.long_answer.splitlines()))
    for rank, unit in enumerate(found, start=1):
        names = ", ".join(unit.unit.doc_ids[:6])
        more = f" and {len(unit.unit.doc_ids) - 6} more" if len(unit.unit.doc_ids) > 6 else ""
        best = titles[unit.best_chunk.doc_id]
        print(f"   {rank}. {unit.score:.3f}  best in “{best}”  unit of {names}{more}")
