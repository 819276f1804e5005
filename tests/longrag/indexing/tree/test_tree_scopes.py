"""One tree for each value of a metadata key."""

from dataclasses import replace

import pytest

from tests.longrag.indexing.tree.test_tree_builder import CORPUS, Model, built, same

TENANTS = ["red", "blue", True, 1]
DOCUMENTS = [
    replace(document, metadata={"tenant": TENANTS[number % len(TENANTS)]})
    for number, document in enumerate(CORPUS)
]


def of(documents, tenant):
    return [d for d in documents if d.metadata["tenant"] is tenant]


def nodes_above(tree, documents):
    ids = {document.id for document in documents}
    return {id_: node for id_, node in tree.nodes.items() if ids.issuperset(node.doc_ids)}


@pytest.mark.parametrize("clusterer", ["stable", "fast", "contiguous"])
def test_each_value_has_the_tree_of_its_documents_alone(clusterer):
    tree = built(DOCUMENTS, scope="tenant", clusterer=clusterer)
    parts = [of(DOCUMENTS, tenant) for tenant in TENANTS]
    assert sum(len(nodes_above(tree, part)) for part in parts) == len(tree.nodes)
    for part in parts:
        alone = built(part, clusterer=clusterer)
        assert nodes_above(tree, part) == dict(alone.nodes)
        assert any(len(node.doc_ids) > 1 for node in alone.nodes.values())


@pytest.mark.parametrize("clusterer", ["stable", "fast"])
def test_a_change_is_one_build_and_pays_for_its_own_trees_alone(clusterer):
    before = built(DOCUMENTS, scope="tenant", clusterer=clusterer)
    moved = [replace(DOCUMENTS[0], metadata={"tenant": "blue"}), *DOCUMENTS[1:-1]]
    model = Model()
    after = built(moved, model, before=before, scope="tenant", clusterer=clusterer)
    assert same(after, built(moved, scope="tenant", clusterer=clusterer))
    kept = [d.title for d in of(DOCUMENTS, True)]
    assert model.prompts
    assert not any(title in prompt for title in kept for prompt in model.prompts)


def test_documents_without_a_value_have_a_tree_together():
    bare = [replace(d, metadata={}) for d in DOCUMENTS[:2]]
    listed = [replace(d, metadata={"tenant": ["red", "blue"]}) for d in DOCUMENTS[2:4]]
    documents = [*bare, *listed, *DOCUMENTS[4:]]
    tree = built(documents, scope="tenant")
    alone = built([*bare, *listed])
    assert nodes_above(tree, [*bare, *listed]) == dict(alone.nodes)
