"""Index nodes among the results: what they stand for is retrieved, as by a stock retriever."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.retrievers import RecursiveRetriever
from llama_index.core.schema import (
    ImageNode,
    IndexNode,
    NodeRelationship,
    RelatedNodeInfo,
    TextNode,
)

from llama_index_longrag import HybridRetriever, LongRAGIndex, MaxPRetriever
from tests.fakes.llama_index import HashEmbedding, tokenizer

PAGES = [
    Document(id_="mill", text="The mill grinds rye by the river."),
    Document(id_="clock", text="The clock strikes at noon and at midnight."),
]
ABOUT = "The weir of the town holds back the river in 1312."
TARGET = "A table of levels behind the weir."


def target():
    return VectorStoreIndex(
        [TextNode(id_="t", text=TARGET)], embed_model=HashEmbedding()
    ).as_retriever()


def references():
    return [IndexNode(id_="ref", text=ABOUT, index_id="weir", obj=target())]


def whole_nodes():
    return [TextNode(id_=f"n {p.id_}", text=p.text, metadata={"unit_id": p.id_}) for p in PAGES]


def stock(kind, mode=None, **settings):
    index = kind(whole_nodes(), objects=references(), embed_model=HashEmbedding(), **settings)
    return index.as_retriever(**({"retriever_mode": mode} if mode else {}), similarity_top_k=3)


def over_store():
    index = VectorStoreIndex(whole_nodes(), objects=references(), embed_model=HashEmbedding())
    return MaxPRetriever(index=index, similarity_top_k=3)


def long_units(mode):
    return lambda: stock(LongRAGIndex, mode, tokenizer=tokenizer)


RETRIEVERS = {
    "stock": lambda: stock(VectorStoreIndex),
    "a store": over_store,
    "nodes": lambda: MaxPRetriever(
        nodes=[*whole_nodes(), *references()], embed_model=HashEmbedding(), similarity_top_k=3
    ),
    "order": long_units("order"),
    "maxp": long_units("maxp"),
    "evidence": long_units("evidence"),
    "hybrid": lambda: HybridRetriever(retriever=long_units("maxp")(), similarity_top_k=3),
}


@pytest.mark.parametrize("name", RETRIEVERS)
def test_what_a_reference_stands_for_takes_its_place_once(name):
    retriever = RETRIEVERS[name]()
    for found in (retriever.retrieve(ABOUT), asyncio.run(retriever.aretrieve(ABOUT))):
        texts = [n.node.get_content() for n in found]
        assert texts[0] == TARGET
        assert texts.count(TARGET) == 1
        assert not any(ABOUT in text for text in texts)
        assert any("mill" in text for text in texts)


@pytest.mark.parametrize("mode", ["order", "maxp", "evidence"])
def test_recursive_retrieval_enters_the_retriever_that_a_reference_names(mode):
    index = LongRAGIndex(
        [*whole_nodes(), IndexNode(id_="ref", text=ABOUT, index_id="weir")],
        embed_model=HashEmbedding(),
        tokenizer=tokenizer,
    )
    root = index.as_retriever(retriever_mode=mode, similarity_top_k=1)
    (plain,) = root.retrieve(ABOUT)
    assert (plain.node.index_id, plain.node.ref_doc_id) == ("weir", "ref")
    recursive = RecursiveRetriever("root", retriever_dict={"root": root, "weir": target()})
    assert [n.node.get_content() for n in recursive.retrieve(ABOUT)] == [TARGET]


def test_a_long_reference_asks_its_object_once_for_all_its_passages():
    asked = []

    class Counting(MaxPRetriever):
        def _retrieve(self, query_bundle):
            asked.append(query_bundle.query_str)
            return super()._retrieve(query_bundle)

    inner = Counting(
        nodes=[TextNode(id_="t", text=TARGET, metadata={"unit_id": "t"})],
        embed_model=HashEmbedding(),
    )
    text = " ".join(f"The weir of the town held in {year}." for year in range(1300, 1340))
    index = LongRAGIndex(
        objects=[IndexNode(id_="ref", text=text, index_id="weir", obj=inner)],
        embed_model=HashEmbedding(),
        chunk_size=20,
        tokenizer=tokenizer,
    )
    found = index.as_retriever(retriever_mode="evidence").retrieve("When did the weir hold?")
    assert [n.node.get_content() for n in found] == [TARGET]
    assert asked == ["When did the weir hold?"]


def of_documents(nodes, *, stored=True):
    """Make a retriever whose units are the source documents of nodes."""
    settings = {"unit_key": "ref_doc_id", "similarity_top_k": 4}
    if not stored:
        return MaxPRetriever(nodes=nodes, embed_model=HashEmbedding(), **settings)
    return MaxPRetriever(index=VectorStoreIndex(nodes, embed_model=HashEmbedding()), **settings)


def made_from(doc_id):
    return {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc_id)}


@pytest.mark.parametrize("stored", [True, False])
def test_every_reference_made_from_one_document_is_followed(stored):
    source = made_from("town")
    halls = ["The weir holds back the river.", "The hall has nine windows."]
    nodes = [TextNode(id_=f"n{i}", text=text, relationships=source) for i, text in enumerate(halls)]
    nodes += [
        IndexNode(id_=name, text=f"A table of {name}.", index_id=name, relationships=source)
        for name in ("levels", "windows")
    ]
    root = of_documents(nodes, stored=stored)
    found = {n.node.node_id: n.node for n in root.retrieve("A table of levels.")}
    assert found.keys() == {"town", "levels", "windows"}
    assert [found[name].index_id for name in ("levels", "windows")] == ["levels", "windows"]
    # The unit of the town holds the two halls, and not the tables, which are units themselves.
    assert [text for text in halls if text in found["town"].get_content()] == halls
    assert "table" not in found["town"].get_content()
    inner = {name: of_documents([TextNode(id_=f"in {name}", text=TARGET)]) for name in found}
    recursive = RecursiveRetriever(
        "root", retriever_dict={"root": root, "levels": inner["levels"]}, node_dict={}
    )
    with pytest.raises(ValueError, match="windows"):
        recursive.retrieve("A table of windows.")
    recursive = RecursiveRetriever("root", retriever_dict={"root": root, **inner})
    texts = [n.node.get_content() for n in recursive.retrieve("A table of levels.")]
    assert texts.count(TARGET) == 2


@pytest.mark.parametrize("stored", [True, False])
def test_a_node_without_a_source_is_a_document_by_itself(stored):
    nodes = [
        TextNode(id_="alone", text="The mill grinds rye."),
        TextNode(id_="half", text="The clock strikes at noon.", relationships=made_from("clock")),
        TextNode(id_="other", text="And at midnight.", relationships=made_from("clock")),
    ]
    retriever = of_documents(nodes, stored=stored)
    for question in ("mill", "noon"):
        found = retriever.retrieve(question)
        assert {n.node.node_id for n in found} == {"alone", "clock"}
        assert [n.metadata["complete"] for n in found] == [True, True]
    (mill,) = [n for n in found if n.node.node_id == "alone"]
    assert mill.node.get_content() == "The mill grinds rye."


def test_an_image_stays_an_image():
    image = ImageNode(id_="photo", text="A photo of the mill.", image="aGVsbG8=")
    named = ImageNode(
        id_="plan", text="A plan of the weir.", image_url="x:plan", relationships=made_from("w")
    )
    found = of_documents([image, named, TextNode(id_="t", text="The clock.")]).retrieve("mill")
    by_id = {n.node.node_id: n.node for n in found}
    assert {id_: type(node).__name__ for id_, node in by_id.items()} == {
        "photo": "ImageNode",
        "w": "ImageNode",
        "t": "RetrievedUnitNode",
    }
    assert (by_id["photo"].image, by_id["w"].image_url) == ("aGVsbG8=", "x:plan")
    assert by_id["photo"].embedding is None
    index = LongRAGIndex([image], embed_model=HashEmbedding(), tokenizer=tokenizer)
    (unit,) = index.as_retriever(retriever_mode="maxp").retrieve("mill")
    assert (type(unit.node), unit.node.image) == (ImageNode, "aGVsbG8=")
