"""An application of WSGI over indexes, which gunicorn loads before it forks its workers.

Each place of ``LONGRAG_PLACES`` holds one index. A request ``/PLACE/put/NAME/VERSION`` puts one
version of a page into it, ``/PLACE/pages`` answers with all pages as JSON, and ``/PLACE/worker``
with the number of the process that answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from tests.faults.indexes import opened

_INDEXES = [
    opened(framework, kind, place, name=f"{framework} {kind}")
    for place in os.environ["LONGRAG_PLACES"].split()
    for framework, kind in (("langchain", "LongRAGIndex"), ("llama_index", "RaptorIndex"))
]


def application(
    environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], object]
) -> Iterable[bytes]:
    number, what, *given = environ["PATH_INFO"].strip("/").split("/")
    index = _INDEXES[int(number)]
    result: object = os.getpid()
    if what == "put":
        index.put({given[0]: int(given[1])})
    elif what == "pages":
        result = index.pages()
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(result).encode()]
