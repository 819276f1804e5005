"""A ``LongRAGIndex`` of LlamaIndex whose vectors are in a database of the user's choice."""

import numpy as np
import pytest

from tests.stores.made import LLAMA_INDEX, WIDTH, name
from tests.stores.test_faults import Postgres
from tests.stores.test_stores import need

pytestmark = [
    pytest.mark.stores,
    pytest.mark.allow_hosts(["127.0.0.1", "localhost", "::1"]),
    pytest.mark.filterwarnings("ignore"),
]

KINDS = [
    *("SimpleVectorStore", "Chroma embedded", "Chroma server", "Qdrant local", "pgvector"),
    *("pgvector HNSW", "LanceDB", "DuckDB", "Milvus Lite"),
]


def embedding():
    from llama_index.core.embeddings import BaseEmbedding

    class Seeded(BaseEmbedding):
        """A vector a text, of any length."""

        def _get_text_embedding(self, text):
            self.__dict__.setdefault("asked", []).append(text)
            rng = np.random.default_rng(list(text.encode()))
            return (rng.normal(size=WIDTH) * rng.uniform(0.1, 9)).tolist()

        _get_query_embedding = _get_text_embedding

        async def _aget_query_embedding(self, query):
            return self._get_query_embedding(query)

    return Seeded()


def page(number, text=None):
    from llama_index.core import Document

    text = text or f"Page {number} tells of the mill. " * 6 + f"[next](p{(number + 3) % 40})"
    return Document(id_=f"p{number}", text=text, metadata={"number": number, "it's": "o'clock"})


def found(index, question="the mill of page 7"):
    rows = index.as_retriever(similarity_top_k=50).retrieve(question)
    return {one.node.node_id: (one.score, one.node.get_content()) for one in rows}


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert all(one[id_][1] == other[id_][1] for id_ in one)
    assert [one[i][0] for i in one] == pytest.approx([other[i][0] for i in one], abs=2e-6)


def context_over(store, *, of=None):
    from llama_index.core import StorageContext

    kept = {} if of is None else {"docstore": of.docstore, "index_store": of.index_store}
    return StorageContext.from_defaults(vector_store=store, **kept)


def load(context):
    from llama_index.core import load_index_from_storage

    model = embedding()
    return load_index_from_storage(context, embed_model=model), model


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_live_in_a_store_of_the_users(kind, servers):
    need(kind, 0)
    from llama_index_longrag import LongRAGIndex

    own = {"chunk_size": 24, "max_tokens": 200}
    expected = LongRAGIndex.from_documents(map(page, range(40)), embed_model=embedding(), **own)
    store = LLAMA_INDEX[kind](servers)
    context = context_over(store)
    LongRAGIndex.from_documents(
        map(page, range(40)), embed_model=embedding(), storage_context=context, **own
    )
    index, model = load(context)
    assert model.__dict__.get("asked", []) == []
    assert_same(found(index), found(expected))
    for one in (index, expected):
        one.update_ref_doc(page(3, "The weir holds the river, and the mill is gone."))
        one.delete_ref_doc("p7")
        one.insert(page(41))
        one.refresh_ref_docs([page(5), page(6, "Rye and oats.")])
    assert_same(found(index), found(expected))
    again, model = load(context)
    assert model.__dict__.get("asked", []) == []
    assert_same(found(again), found(expected))
    # Rows that are not there are embedded again, and are then there.
    rows = again._rows
    lost = sorted(again._stored)[:3]
    rows._kind.delete_nodes(store, lost)
    assert len(rows.read(sorted(again._stored))) == len(again._stored) - 3
    third, model = load(context)
    assert 1 <= len(model.asked) <= 3
    assert_same(found(third), found(expected))
    third.insert(page(42))
    assert load(context)[1].__dict__.get("asked", []) == []


def test_faiss_is_refused_before_anything_is_paid(servers):
    need("FAISS flat", 0)
    from llama_index_longrag import LongRAGIndex
    from longrag.errors import InvalidParameterError

    model = embedding()
    with pytest.raises(InvalidParameterError, match="gives vectors back, got 'FaissVectorStore'"):
        LongRAGIndex.from_documents(
            [page(1)],
            embed_model=model,
            storage_context=context_over(LLAMA_INDEX["FAISS flat"](servers)),
        )
    assert "asked" not in model.__dict__


def test_an_index_whose_vectors_were_not_stored_when_the_server_died_is_loaded():
    need("pgvector", 0)
    from llama_index.vector_stores.postgres import PGVectorStore

    from llama_index_longrag import LongRAGIndex

    server = Postgres()
    try:

        def store():
            return PGVectorStore.from_params(
                connection_string=server.url("psycopg2"),
                async_connection_string=server.url("asyncpg"),
                embed_dim=WIDTH,
                table_name=table,
            )

        table = name()
        context = context_over(store())
        index = LongRAGIndex.from_documents(
            [page(n) for n in range(5)], embed_model=embedding(), storage_context=context
        )
        add = PGVectorStore.add

        def die(self, nodes, **kwargs):
            add(self, nodes[:1], **kwargs)
            server.kill()
            return add(self, nodes[1:], **kwargs)

        PGVectorStore.add = die
        try:
            with pytest.raises(Exception, match=r"(?i)clos|terminat|connect|refused|no such file"):
                index.refresh_ref_docs([page(2, "The weir. " * 90), page(9)])
        finally:
            PGVectorStore.add = add
        server.start()
        again, _ = load(context_over(store(), of=context))
        pages = {one.id_: one for one in [*map(page, [0, 1, 3, 4, 9]), page(2, "The weir. " * 90)]}
        assert sorted(again.ref_doc_info) == sorted(pages)
        expected = LongRAGIndex.from_documents(list(pages.values()), embed_model=embedding())
        assert_same(found(again), found(expected))
        again.refresh_ref_docs([page(2, "The weir. " * 90), page(9)])
        last, model = load(context_over(store(), of=context))
        assert model.__dict__.get("asked", []) == []
        assert_same(found(last), found(expected))
    finally:
        server.close()
