"""Deduplication of retrieved nodes."""

import pytest
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from llama_index_longrag import DeduplicatePostprocessor
from longrag.errors import InvalidParameterError

TEXTS = ("The mill at Oberau burned down.", "At Oberau a mill burned.", "Three rivers meet.")


async def test_repeating_nodes_come_last_with_their_scores_and_fall_out_first():
    nodes = [
        NodeWithScore(node=TextNode(id_=f"n{n}", text=text, metadata={"page": "mill"}), score=1 - n)
        for n, text in enumerate(TEXTS)
    ]
    for settings, read in (({}, "n0 n2 n1"), ({"top_n": 2}, "n0 n2"), ({"redundancy": 1}, None)):
        postprocessor = DeduplicatePostprocessor(**settings)
        found = postprocessor.postprocess_nodes(nodes)
        assert [each.node.node_id for each in found] == (read or "n0 n1 n2").split()
        assert await postprocessor.apostprocess_nodes(nodes, QueryBundle("any")) == found
        assert all(each.score == 1 - int(each.node.node_id[1]) for each in found)


def test_settings_are_checked_and_written():
    written = DeduplicatePostprocessor(redundancy=0.3, top_n=4).to_dict()
    read = DeduplicatePostprocessor.from_dict(written)
    assert (read.redundancy, read.top_n) == (0.3, 4)
    with pytest.raises(InvalidParameterError, match="redundancy"):
        DeduplicatePostprocessor(redundancy=2)
    with pytest.raises(InvalidParameterError, match="top_n"):
        DeduplicatePostprocessor(top_n=0)
