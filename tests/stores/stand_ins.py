"""Stand-ins of databases that need a server: they answer as the documentation of each says.

The frameworks' real classes talk to them: to Elasticsearch and OpenSearch by HTTP, to the others
through the object of the client that sends requests. Every ranking is exhaustive. They refuse what
the databases refuse, such as too many rows, and have their traps: texts that are cut into words,
results that are capped.
"""

from __future__ import annotations

import copy
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np

MOST = 10_000


def cosine(one, other) -> float:
    one, other = np.asarray(one, float), np.asarray(other, float)
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def at(document, path: str):
    for part in path.split("."):
        document = document.get(part) if isinstance(document, dict) else None
    return document


class Search:
    """Elasticsearch's and OpenSearch's documents of one index, and the requests that are asked."""

    # LlamaIndex's class for Elasticsearch maps these, so that they have no field for keywords.
    mapped = ("_id", "metadata.document_id", "metadata.doc_id", "metadata.ref_doc_id")

    def __init__(self) -> None:
        self.documents: dict[str, dict] = {}
        self.made = False
        self.searches: list[dict] = []

    def passes(self, query, document) -> bool:
        ((kind, body),) = query.items()
        match kind:
            case "match_all":
                return True
            case "bool":
                every = [*listed(body.get("must")), *listed(body.get("filter"))]
                should = listed(body.get("should"))
                return (
                    all(self.passes(one, document) for one in every)
                    and not any(self.passes(one, document) for one in listed(body.get("must_not")))
                    and (not should or every or any(self.passes(one, document) for one in should))
                    and (
                        not body.get("minimum_should_match")
                        or any(self.passes(one, document) for one in should)
                    )
                )
            case "term":
                ((field, value),) = body.items()
                value = value["value"] if isinstance(value, dict) else value
                return self.has(document, field, [value])
            case "terms":
                ((field, values),) = body.items()
                return self.has(document, field, values)
        raise AssertionError(f"unknown query {kind}")

    def has(self, document, field, values) -> bool:
        if field.endswith(".keyword"):
            value = at(document, field.removesuffix(".keyword"))
            if field.removesuffix(".keyword") in self.mapped:
                return False
            return isinstance(value, str) and len(value) <= 256 and value in values
        value = at(document, field)
        if isinstance(value, str) and field not in self.mapped:
            return bool(words(value) & set(values))
        return value is not None and value in values

    def search(self, body, size):
        self.searches.append(body)
        size = int(body.get("size", size))
        if size > MOST:
            return 400, {"error": "Result window is too large"}
        scored = []
        query, knn = body.get("query") or {"match_all": {}}, body.get("knn")
        if "knn" in query:
            ((field, asked),) = query["knn"].items()
            knn = {**asked, "field": field, "query_vector": asked["vector"]}
            knn.setdefault("num_candidates", max(asked["k"], 1))
        if knn is not None:
            if not knn["k"] <= knn["num_candidates"] <= MOST:
                return 400, {"error": "[num_candidates] must be from [k] to [10000]"}
            filters = listed(knn.get("filter"))
            size = min(size, knn["k"])
            for id_, document in self.documents.items():
                if all(self.passes(one, document) for one in filters):
                    score = cosine(at(document, knn["field"]), knn["query_vector"])
                    scored.append((1 + score, id_, document))
            scored.sort(key=lambda one: -one[0])
        else:
            found = self.documents.items()
            scored = [(1.0, id_, one) for id_, one in found if self.passes(query, one)]
        hits = [{"_index": "i", "_id": i, "_score": s, "_source": d} for s, i, d in scored[:size]]
        return 200, {"hits": {"hits": hits}, "timed_out": False, "_shards": {"failed": 0}}

    def bulk(self, body):
        lines = [json.loads(line) for line in body.splitlines() if line.strip()]
        items = []
        while lines:
            ((action, about),) = lines.pop(0).items()
            if action == "delete":
                self.documents.pop(about["_id"], None)
            else:
                self.documents[about["_id"]] = lines.pop(0)
            items.append({action: {"_id": about["_id"], "status": 200}})
        return 200, {"items": items, "errors": False}

    def delete(self, query):
        gone = [i for i, d in self.documents.items() if self.passes(query, {**d, "_id": i})]
        for id_ in gone:
            del self.documents[id_]
        return 200, {"deleted": len(gone)}

    def answer(self, method, path, parameters, body):
        match path.rpartition("/")[2]:
            case "":
                answer = {"version": {"number": "8.19.0"}, "cluster_name": "c", "name": "n"}
            case "_bulk":
                return self.bulk(body)
            case "_search":
                return self.search(json.loads(body), parameters.get("size", 10))
            case "_delete_by_query":
                return self.delete(json.loads(body)["query"])
            case _ if method == "PUT":
                self.made, answer = True, {"acknowledged": True}
            case "_refresh":
                answer = {}
            case _ if not self.made:
                return 404, {"error": {"type": "none"}, "status": 404}
            case _:
                answer = {"i": {}}
        return 200, answer


def listed(value) -> list:
    return [] if value is None else value if isinstance(value, list) else [value]


@contextmanager
def search_server():
    """Run a server of one index; gives its address and the index."""
    index = Search()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def reply(self) -> None:
            path, _, rest = self.path.partition("?")
            parameters = dict(one.split("=", 1) for one in rest.split("&") if "=" in one)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            status, answer = index.answer(self.command, path, parameters, body)
            content = b"" if self.command == "HEAD" else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("X-Elastic-Product", "Elasticsearch")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = reply

        def log_message(self, *args) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", index
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class Collection:
    """A collection of MongoDB whose index names some fields as filters."""

    def __init__(self, filters=("metadata.unit", "metadata.ref_doc_id", "unit", "even")) -> None:
        self.filters = filters
        self.rows: dict[object, dict] = {}
        self.name = "rows"
        client = SimpleNamespace(append_metadata=lambda info: None)
        self.database = SimpleNamespace(client=client)
        self.searches: list[dict] = []

    def insert_many(self, rows, **_):
        self.rows.update({row["_id"]: copy.deepcopy(row) for row in rows})
        return SimpleNamespace(inserted_ids=[row["_id"] for row in rows])

    def bulk_write(self, requests, **_):
        for one in requests:
            self.rows[one._filter["_id"]] = {**copy.deepcopy(one._doc), **one._filter}
        return SimpleNamespace(upserted_ids={}, acknowledged=True)

    def delete_many(self, filter, **_):
        for id_ in [id_ for id_, row in self.rows.items() if self.passes(filter, row)]:
            del self.rows[id_]
        return SimpleNamespace(acknowledged=True)

    def count_documents(self, _):
        return len(self.rows)

    def passes(self, condition, row) -> bool:
        for key, wanted in condition.items():
            if key == "$and":
                ok = all(self.passes(one, row) for one in wanted)
            elif key == "$or":
                ok = any(self.passes(one, row) for one in wanted)
            else:
                ((operator, value),) = (
                    wanted.items() if isinstance(wanted, dict) else [("$eq", wanted)]
                )
                given = at(row, key)
                ok = {
                    "$in": lambda g, v: g in v,
                    "$nin": lambda g, v: g not in v,
                    "$eq": lambda g, v: g == v,
                }[operator](given, value)
            if not ok:
                return False
        return True

    def fields(self, condition):
        for key, wanted in condition.items():
            if key in ("$and", "$or"):
                for one in wanted:
                    yield from self.fields(one)
            else:
                yield key

    def aggregate(self, pipeline):
        from pymongo.errors import OperationFailure

        search = pipeline[0]["$vectorSearch"]
        self.searches.append(search)
        condition = search.get("filter") or {}
        if missing := [one for one in self.fields(condition) if one not in self.filters]:
            raise OperationFailure(f"Path '{missing[0]}' needs to be indexed as filter", 8)
        if not search["limit"] <= search["numCandidates"] <= MOST:
            raise OperationFailure("numCandidates must be from limit to 10000", 8)
        scored = [
            (cosine(row[search["path"]], search["queryVector"]), row)
            for row in self.rows.values()
            if self.passes(condition, row)
        ]
        scored.sort(key=lambda one: -one[0])
        found = [{**copy.deepcopy(row), "score": score} for score, row in scored]
        for row in found:
            row.pop(search["path"])
        return iter(found[: search["limit"]])


class AsyncCollection:
    """The same rows by async calls."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self.name = collection.name

    async def aggregate(self, pipeline):
        async def rows():
            for row in self._collection.aggregate(pipeline):
                yield row

        return rows()


class PineconeIndex:
    """An index of Pinecone."""

    config = SimpleNamespace(host="host", api_key="key")

    def __init__(self) -> None:
        self.rows: dict[str, dict] = {}
        self.queries: list[dict] = []

    def upsert(self, vectors, **kwargs):
        names = ("id", "values", "metadata")
        for given in vectors:
            row = given if isinstance(given, dict) else dict(zip(names, given, strict=True))
            self.rows[row["id"]] = copy.deepcopy(row)
        return SimpleNamespace(get=lambda: None)

    def delete(self, ids=(), **_):
        for id_ in [id_ for id_ in self.rows if id_.partition("#")[2] in ids or id_ in ids]:
            del self.rows[id_]

    def query(self, vector, top_k, filter=None, include_values=False, **kwargs):
        if not 1 <= top_k <= MOST:
            raise ValueError("top_k must be from 1 to 10000")
        self.queries.append({"top_k": top_k, "filter": filter, "values": include_values})
        passes = Collection().passes
        scored = [
            (cosine(row["values"], vector), id_, row)
            for id_, row in self.rows.items()
            if passes(filter or {}, row["metadata"])
        ]
        scored.sort(key=lambda one: -one[0])
        matches = [
            Match(
                id=id_,
                score=score,
                metadata=copy.deepcopy(row["metadata"]),
                values=row["values"] if include_values else [],
            )
            for score, id_, row in scored[:top_k]
        ]
        return Match(matches=matches)


class Match(SimpleNamespace):
    """A value whose attributes are keys, too."""

    def __getitem__(self, name):
        return getattr(self, name)

    def get(self, name):
        return getattr(self, name, None)


class Objects:
    """A collection of Weaviate, which is also the batch that fills it."""

    def __init__(self) -> None:
        self.rows: dict[str, SimpleNamespace] = {}
        self.query = self.data = self

    def passes(self, filters, one) -> bool:
        if filters is None:
            return True
        operator = str(filters.operator.value)
        if operator in ("And", "Or"):
            each = [self.passes(part, one) for part in filters.filters]
            return all(each) if operator == "And" else any(each)
        target, value = filters.target, filters.value
        if target == "_id":
            return one.uuid in [str(part) for part in value]
        given = one.properties.get(target)
        if operator == "ContainsAny" and isinstance(given, str):
            # A text is compared word by word, in lower case.
            return any(words(part) and words(part) <= words(given) for part in value)
        return given in value if operator == "ContainsAny" else given == value

    def found(self, scored):
        objects = [
            SimpleNamespace(
                uuid=one.uuid,
                properties=copy.deepcopy(one.properties),
                vector={},
                metadata=SimpleNamespace(score=score),
            )
            for score, one in scored
        ]
        return SimpleNamespace(objects=objects)

    def hybrid(self, query, vector, limit, filters=None, **_):
        assert limit <= MOST
        passing = [one for one in self.rows.values() if self.passes(filters, one)]
        scored = sorted(((cosine(one.vector, vector), one) for one in passing), key=lambda x: -x[0])
        return self.found(scored[:limit])

    def delete_many(self, where, **_):
        for id_ in [id_ for id_, one in self.rows.items() if self.passes(where, one)]:
            del self.rows[id_]

    def add_object(self, *, properties, uuid, vector, **_):
        # Weaviate knows no integers where it makes the schema itself.
        own = {k: float(v) if isinstance(v, int) else v for k, v in properties.items()}
        self.rows[str(uuid)] = SimpleNamespace(properties=own, uuid=str(uuid), vector=vector)

    @property
    def config(self):
        tenancy = SimpleNamespace(enabled=False)
        about = SimpleNamespace(properties=[], multi_tenancy_config=tenancy)
        return SimpleNamespace(get=lambda *args, **kwargs: about)


def weaviate_client():
    """Return a client of Weaviate that is not connected, and has one collection."""
    import weaviate
    from weaviate.connect import ConnectionParams

    client = weaviate.WeaviateClient(
        ConnectionParams.from_params("127.0.0.1", 1, False, "127.0.0.1", 2, False),
        skip_init_checks=True,
    )
    collection = Objects()

    @contextmanager
    def dynamic():
        yield collection

    client.collections = SimpleNamespace(exists=lambda name: True, get=lambda name: collection)
    client.batch = SimpleNamespace(dynamic=dynamic, failed_objects=[])
    return client
