"""Several indexes over one storage: each retriever keeps to the nodes of its index."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import NodeWithScore

from llama_index_longrag import HybridRetriever, LongRAGIndex, MaxPRetriever
from tests.fakes.llama_index import HashEmbedding

QUESTION = "Which gate of Delft was built in 1530?"


def split(documents, size, storage=None) -> VectorStoreIndex:
    return VectorStoreIndex.from_documents(
        documents,
        storage_context=storage or StorageContext.from_defaults(),
        transformations=[SentenceSplitter(chunk_size=size, chunk_overlap=0)],
        embed_model=HashEmbedding(),
    )


def seen(found: list[NodeWithScore]) -> list[tuple[object, ...]]:
    keys = ("doc_ids", "exact", "complete", "short")
    return [(n.node.get_content(), n.score, *(n.node.metadata[key] for key in keys)) for n in found]


def retriever(index, k, **settings) -> MaxPRetriever:
    return MaxPRetriever(index=index, unit_key="ref_doc_id", similarity_top_k=k, **settings)


@pytest.mark.parametrize("k", [1, 2, 4, 9])
@pytest.mark.parametrize("sizes", [(60, 60), (40, 90)], ids=["one split", "two splits"])
@pytest.mark.parametrize("second", [slice(3, None), slice(2, 5)], ids=["apart", "overlapping"])
def test_indexes_in_one_storage_are_searched_as_if_each_were_alone(documents, k, sizes, second):
    parts = documents[:3], documents[second]
    storage = StorageContext.from_defaults()
    shared = [split(part, size, storage) for part, size in zip(parts, sizes, strict=True)]
    LongRAGIndex.from_documents(documents, storage_context=storage, embed_model=HashEmbedding())
    for index, part, size in zip(shared, parts, sizes, strict=True):
        alone = seen(retriever(split(part, size), k).retrieve(QUESTION))
        assert seen(retriever(index, k).retrieve(QUESTION)) == alone
        assert seen(asyncio.run(retriever(index, k).aretrieve(QUESTION))) == alone
        assert len(alone) == min(k, len(part))


def test_nodes_that_a_caller_names_are_those_of_the_index_alone(documents):
    storage = StorageContext.from_defaults()
    first, second = split(documents[:3], 60, storage), split(documents[3:], 60, storage)
    every = [*first.index_struct.nodes_dict.values(), *second.index_struct.nodes_dict.values()]
    found = retriever(second, 9, node_ids=every, on_short="ignore").retrieve(QUESTION)
    own = {document.id_ for document in documents[3:]}
    assert {doc_id for n in found for doc_id in n.node.metadata["doc_ids"]} == own


def test_keywords_beside_such_a_retriever_search_the_same_nodes(documents):
    storage = StorageContext.from_defaults()
    split(documents[:3], 60, storage)
    hybrid = HybridRetriever(
        retriever=retriever(split(documents[3:], 60, storage), 9), similarity_top_k=9
    )
    found = hybrid.retrieve(QUESTION)
    own = {document.id_ for document in documents[3:]}
    assert {doc_id for n in found for doc_id in n.node.metadata["doc_ids"]} == own
