"""The corpus an engine is made from, its keys, and who writes its propositions."""

from __future__ import annotations

import pytest
from llama_index.core import Document, Settings
from llama_index.core.llms.mock import MockLLM
from llama_index.core.schema import NodeRelationship, QueryBundle, TextNode

from llama_index_longrag import ExtractiveLLM, RichesQueryEngine
from longrag.decoding import RichesDecoder
from longrag.errors import InvalidDocumentError, InvalidParameterError
from longrag.indexing import KeyIndex
from longrag.journal import Journal
from tests.fakes.llama_index import ScriptedLLM
from tests.llama_index_longrag.decoding.engines import MILL, WEIR, answering, make
from tests.llama_index_longrag.riches_stories import BURNED, TOLD, Scripted, documents


def test_nodes_come_back_as_they_were_given():
    related = {NodeRelationship.SOURCE: documents()[0].as_related_node_info()}
    text = f"{MILL}\n\nIt is a museum."
    nodes = [
        TextNode(text=text, id_="n1", metadata={"page": 3}, relationships=related),
        TextNode(text=WEIR, id_="n2"),
    ]
    engine = make(nodes=nodes)
    response = engine.query(BURNED)
    assert [n.node.node_id for n in response.source_nodes] == ["n1", "n2"]
    first = response.source_nodes[0].node
    assert (first.text, first.ref_doc_id, first.metadata["page"]) == (text, "mill.md", 3)
    (quote,) = first.metadata["quotes"]
    assert text[quote["start_char"] : quote["end_char"]] == quote["text"]
    found = engine.retrieve(QueryBundle(BURNED))
    assert [n.node.node_id for n in found] == ["n1", "n2"]
    assert "quotes" not in nodes[0].metadata


def test_a_decoder_of_one_s_own_needs_no_nodes_but_shows_them_where_it_can():
    model = Scripted({BURNED: TOLD})
    texts = ["It burned down in 1684.", WEIR]
    decoder = RichesDecoder(model, KeyIndex.from_keys(texts, tokenizer=model.tokenizer))
    bare = RichesQueryEngine(decoder).query(BURNED)
    assert bare.response == "1684"
    assert [(n.node.text, n.node.ref_doc_id) for n in bare.source_nodes] == [
        (texts[0], "0"),
        (texts[1], "1"),
    ]
    whole = Document(text=f"{texts[0]}\n\nIt is red.", id_="0")
    known = RichesQueryEngine(decoder, [whole]).query(BURNED)
    assert [n.node.text for n in known.source_nodes] == texts
    assert known.source_nodes[0].node.ref_doc_id == "0"


def test_a_quote_over_several_paragraphs_is_shown_with_the_whole_document():
    from longrag.types import Key

    model = Scripted({BURNED: " << One. Two. >>\nanswer: 3"})
    text = "One.\n\nTwo.\n\nThree."
    index = KeyIndex.from_keys([Key("One. Two.", "d", 0, 10)], tokenizer=model.tokenizer)
    engine = RichesQueryEngine(RichesDecoder(model, index), [Document(text=text, id_="d")])
    (found,) = engine.query(BURNED).source_nodes
    assert (found.node.text, found.node.ref_doc_id) == (text, "d")


@pytest.mark.parametrize("kind", ["sentence", "paragraph", "title"])
def test_keys_of_each_kind_lead_to_passages(kind):
    key = {"sentence": "It is a museum.", "paragraph": MILL, "title": "The mill, Today"}[kind]
    response = answering(f" << {key} >>\nanswer: x", keys=kind)
    (found,) = response.source_nodes
    assert found.node.text == (MILL if kind == "paragraph" else "It is a museum.")
    assert found.node.metadata["quotes"][0]["verbatim"] == (kind != "title")
    titled = f"The mill, Today. {'It is a museum.'}"
    if kind != "title":
        response = answering(f" << {titled} >>\nanswer: x", keys=kind, with_title=True)
        assert response.source_nodes[0].node.text == "It is a museum."


@pytest.mark.parametrize("mode", ["substring", "fm"])
def test_stretches_lead_to_their_characters(mode):
    response = answering(" << burned down in 1684. >>\nanswer: x", mode=mode, keys="paragraph")
    (found,) = response.source_nodes
    (quote,) = found.node.metadata["quotes"]
    assert documents()[0].text[quote["start_char"] : quote["end_char"]] == quote["text"]
    assert quote["text"] == "burned down in 1684."


def facts(prompt):
    return '["The mill burned down in 1684."]' if "1684" in prompt else "No."


def test_propositions_are_written_by_any_llm_and_paid_for_once(tmp_path):
    llm = ScriptedLLM(facts)
    output = " << The mill burned down in 1684. >>\nanswer: 1684"
    for _ in range(2):
        engine = make({BURNED: output}, keys="proposition", llm=llm, journal=tmp_path / "j.db")
        response = engine.query(BURNED)
        (found,) = response.source_nodes
        assert found.node.text == MILL
        assert found.node.metadata["quotes"][0]["verbatim"] is False
        assert (response.response, len(llm.prompts)) == ("1684", 3)
    with Journal(tmp_path / "k.db") as journal:
        make({}, keys="proposition", llm=llm, journal=journal, num_workers=1)
        assert len(journal) == 3
    assert len(llm.prompts) == 6


def test_what_is_not_allowed_is_refused_before_anything_is_paid_for():
    llm = ScriptedLLM(facts)
    wrong = ({"beam_size": 0}, {"search": "best"}, {"markers": ("", ">>")}, {"mode": "words"})
    for settings in wrong:
        with pytest.raises(InvalidParameterError, match=next(iter(settings))):
            make(keys="proposition", llm=llm, **settings)
    with pytest.raises(TypeError, match="beams"):
        make(keys="proposition", llm=llm, beams=1)
    assert llm.prompts == []


def test_propositions_need_a_model_and_nothing_else_does(monkeypatch, tmp_path):
    monkeypatch.setattr(Settings, "_llm", None)

    def missing(self):
        raise ImportError("no default model")

    monkeypatch.setattr(type(Settings), "llm", property(missing))
    assert make().query(BURNED).response == "1684"
    with pytest.raises(InvalidParameterError, match=r"llm must be an LLM, here or in Settings.llm"):
        make(keys="proposition")
    with pytest.raises(InvalidParameterError, match="asks a language model: omit llm"):
        make(llm=ExtractiveLLM())
    with pytest.raises(InvalidParameterError, match="asks a language model: omit journal"):
        make(journal=tmp_path / "j.db")


def test_what_cannot_be_used_is_refused():
    with pytest.raises(InvalidParameterError, match="hosted APIs and chat models do not tell"):
        make(model=MockLLM())
    with pytest.raises(InvalidParameterError, match="decoder must be a RichesDecoder"):
        RichesQueryEngine(MockLLM())
    with pytest.raises(InvalidParameterError, match='kind must be one of "title"'):
        make(keys="word")
    with pytest.raises(InvalidParameterError, match="similarity_top_k must be an integer"):
        make(similarity_top_k=0)
    with pytest.raises(InvalidParameterError, match="num_workers"):
        make(num_workers=0)
    with pytest.raises(TypeError, match="beam"):
        make(beam=3)
    with pytest.raises(InvalidDocumentError, match="same id"):
        make(nodes=[*documents(), *documents()])
    with pytest.raises(InvalidDocumentError, match="document 0 must be a LlamaIndex document"):
        make(nodes=["The mill grinds rye."])


@pytest.mark.parametrize("nodes", [[], [Document(text="", id_="a"), TextNode(text=" \n", id_="b")]])
async def test_nothing_to_quote_from_is_said_without_asking_the_model(nodes):
    model = Scripted({BURNED: TOLD})
    engine = make(model=model, nodes=nodes, empty_response="Nothing.")
    streaming = make(model=model, nodes=nodes, empty_response="Nothing.", streaming=True)
    asynchronous = await streaming.aquery(BURNED)
    found = [engine.query(BURNED), await engine.aquery(BURNED), streaming.query(BURNED)]
    assert [str(response) for response in found] == ["Nothing."] * 3
    assert (await asynchronous.get_response()).response == "Nothing."
    assert all(response.source_nodes == [] for response in [*found, asynchronous])
    assert engine.retrieve(QueryBundle(BURNED)) == []
    assert model.calls == 0
