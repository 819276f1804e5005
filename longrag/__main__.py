"""``python -m longrag demo PATH QUESTION``: an answer with its sources, on local backends alone.

``python -m longrag check-store FRAMEWORK MODULE:FUNCTION`` checks a vector store of your own.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from longrag.calls import Embed, Flow, Generate, Request, run
from longrag.errors import InvalidParameterError, LongragError, MissingExtraError
from longrag.ingestion.resolving import resolve_links
from longrag.ingestion.sources import read_documents
from longrag.ingestion.units import embedding_text, long_units
from longrag.integration.store_command import check_named_store
from longrag.models.embedder import Embedder, LsaEmbedder, MiniLmEmbedder
from longrag.retrieval.units import embed_units, retrieve
from longrag.synthesis.extractive import answer_prompt
from longrag.synthesis.two_turn import ReaderAnswer, read
from longrag.types import Chunk, Document, LongUnit, RetrievedUnit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    It is 0, or 1 for a store that failed a check, or 2 for input that cannot be used.
    """
    parser = argparse.ArgumentParser(prog="python -m longrag", description=__doc__)
    commands = parser.add_subparsers(required=True)
    demo = commands.add_parser("demo", help="answer questions about a folder of documents")
    demo.add_argument("path", help="a folder, or one file, of Markdown, HTML or text")
    demo.add_argument("question", nargs="+", help="one question, or several in quotes")
    demo.add_argument("--k", type=int, default=4, help="units to retrieve (default 4)")
    demo.add_argument("--max-tokens", type=int, default=4096, help="largest unit (default 4096)")
    demo.add_argument(
        "--embedder",
        choices=["auto", "lsa", "minilm"],
        default="auto",
        help="auto takes MiniLM when the extra 'local' is installed, else LSA",
    )
    check = commands.add_parser("check-store", help="check a vector store of your own")
    check.add_argument("framework", help="llama-index or langchain")
    check.add_argument("factory", help="module:function, which returns a new, empty store")
    options = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Documents hold characters that a console may not know.
        sys.stdout.reconfigure(errors="replace")
    try:
        passed = _run(options)
        sys.stdout.flush()
    except LongragError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader has seen enough; the interpreter flushes once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0 if passed else 1


def _run(options: argparse.Namespace) -> bool:
    if "factory" in options:
        return check_named_store(options.framework, options.factory)
    _demo(options)
    return True


def _demo(options: argparse.Namespace) -> None:
    documents = read_documents(options.path)
    report = resolve_links(documents)
    minilm = _minilm(options.embedder)
    units, chunks = long_units(
        documents,
        report.links,
        max_tokens=options.max_tokens,
        chunk_size=minilm.chunk_size if minilm else 512,
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
        answer, found = run(flow, lambda request: _local(request, embedder))
        _show(question, answer, found, documents)


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


if __name__ == "__main__":
    sys.exit(main())
