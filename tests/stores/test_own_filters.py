"""A user's own filters over PGVectorStore: values and keys are parameters, whatever they hold."""

import pytest

from longrag.errors import InvalidParameterError
from tests.stores.made import llama_index_pgvector
from tests.stores.test_stores import need

pytestmark = [
    pytest.mark.stores,
    pytest.mark.filterwarnings("ignore"),
]

INJECTION = "x' OR 1=1); DROP TABLE victim; COMMIT; SELECT 1 --"
ROWS = [
    {"unit": "O'Brien.md", "number": 1, "tags": ["a", "b"], "flag": True},
    {"unit": INJECTION, "number": 2, "tags": ["b"], "flag": False},
    {"unit": "/users/:id", "number": 2.5, "tags": ["c's"], "flag": True},
    {"unit": "1", "number": 10, "tags": []},
    {"unit": "doc0", "number": 20, "O'key": "there"},
]


@pytest.fixture(scope="module")
def index(servers):
    need("pgvector", 0)
    from llama_index.core import MockEmbedding, StorageContext, VectorStoreIndex
    from llama_index.core.schema import TextNode

    store = llama_index_pgvector(servers)
    context = StorageContext.from_defaults(vector_store=store)
    made = VectorStoreIndex([], storage_context=context, embed_model=MockEmbedding(16))
    made.insert_nodes([TextNode(text=f"text {n}", metadata=row) for n, row in enumerate(ROWS)])
    return made


def names(index, filters):
    from llama_index_longrag import MaxPRetriever

    retriever = MaxPRetriever(index=index, unit_key="unit", similarity_top_k=9, filters=filters)
    return {one.node.node_id for one in retriever.retrieve("text")}


CASES = {
    "quote": (("unit", "==", "O'Brien.md"), {0}),
    "injection": (("unit", "==", INJECTION), {1}),
    "not injection": (("unit", "!=", INJECTION), {0, 2, 3, 4}),
    "colon": (("unit", "==", "/users/:id"), {2}),
    "a text that reads as a number": (("unit", "==", "1"), {3}),
    "list": (("unit", "in", ["O'Brien.md", INJECTION]), {0, 1}),
    "not in": (("unit", "nin", ["O'Brien.md", INJECTION]), {2, 3, 4}),
    "key with a quote": (("O'key", "==", "there"), {4}),
    "empty": (("O'key", "is_empty", None), {0, 1, 2, 3}),
    "number": (("number", "==", 2.5), {2}),
    "greater": (("number", ">", 2), {2, 3, 4}),
    "greater, as a text": (("number", ">=", "2.5"), {2, 3, 4}),
    "less": (("number", "<", 2.5), {0, 1}),
    "part": (("unit", "text_match", "'B"), {0}),
    "part, any case": (("unit", "text_match_insensitive", "DROP table"), {1}),
    "contains": (("tags", "contains", "c's"), {2}),
    "any": (("tags", "any", ["a", "c's"]), {0, 2}),
    "all": (("tags", "all", ["a", "b"]), {0}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_filter_finds_what_it_says(index, servers, name):
    from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

    (key, operator, value), expected = CASES[name]
    filters = MetadataFilters(filters=[MetadataFilter(key=key, operator=operator, value=value)])
    assert names(index, filters) == {ROWS[n]["unit"] for n in expected}
    assert "victim" in servers.psql("\\dt victim")


@pytest.mark.parametrize(
    ("key", "operator", "value"),
    [
        ("number", "==", 2.5),
        ("number", ">", 2),
        ("number", "<=", 10),
        ("unit", "==", "doc0"),
        ("unit", "in", ["doc0", "1"]),
        ("unit", "nin", ["doc0"]),
        ("unit", "text_match", "doc"),
        ("tags", "contains", "b"),
        ("O", "is_empty", None),
    ],
)
def test_an_ordinary_filter_finds_what_the_class_finds(index, key, operator, value):
    from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

    filters = MetadataFilters(filters=[MetadataFilter(key=key, operator=operator, value=value)])
    stock = index.as_retriever(similarity_top_k=9, filters=filters).retrieve("text")
    assert names(index, filters) == {one.node.metadata["unit"] for one in stock}
    assert stock


def test_filters_are_joined_and_nested(index):
    from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

    quote = MetadataFilter(key="unit", value="O'Brien.md")
    big = MetadataFilter(key="number", operator=">", value=5)
    small = MetadataFilter(key="number", operator="<", value=15)
    nested = MetadataFilters(filters=[big, small])
    filters = MetadataFilters(filters=[quote, nested], condition="or")
    assert names(index, filters) == {"O'Brien.md", "1"}
    with pytest.raises(InvalidParameterError, match="must be one of AND and OR"):
        names(index, MetadataFilters(filters=[quote], condition="not"))
