"""Results show a model their metadata by the templates of their documents."""

from __future__ import annotations

import pytest
from llama_index.core.schema import MetadataMode

from llama_index_longrag import TwoTurnSynthesizer
from llama_index_longrag.bridge.nodes import to_retrieved
from tests.fakes.llama_index import ScriptedLLM, tokenizer
from tests.llama_index_longrag.retrieval.test_result_sources import QUESTION, SOURCES

SHOWN = "SOURCE [country=NL; region=west]\n"


@pytest.fixture
def templated(documents):
    for document in documents:
        document.metadata = {"country": "NL", "region": "west"}
        document.excluded_llm_metadata_keys = []
        document.text_template = "SOURCE [{metadata_str}]\n{content}\nEND"
        document.metadata_template = "{key}={value}"
        document.metadata_separator = "; "
    return documents


def shown(found):
    return [one.node.get_content(MetadataMode.LLM) for one in found]


@pytest.mark.parametrize("max_tokens", [60, 4096])
@pytest.mark.parametrize("name", SOURCES)
def test_metadata_is_shown_as_the_documents_show_it(templated, name, max_tokens):
    found = SOURCES[name](templated, max_tokens=max_tokens).retrieve(QUESTION)
    assert shown(found) == [f"{SHOWN}{one.node.text}\nEND" for one in found]


def test_templates_on_which_documents_do_not_agree_are_those_of_the_framework(templated):
    for document in templated[1:]:
        document.text_template = "<{metadata_str}>{content}"
        document.metadata_separator = ", "
    found = SOURCES["maxp"](templated, max_tokens=4096).retrieve(QUESTION)
    several = [one.node for one in found if len(one.node.metadata["doc_ids"]) > 1]
    own = [one for one in several if "utrecht.md" in one.metadata["doc_ids"]]
    assert own
    for node in own:
        expected = f"country=NL\nregion=west\n\n{node.text}".strip()
        assert node.get_content(MetadataMode.LLM) == expected


def test_the_two_turn_reader_shows_each_document_by_its_template(templated):
    found = SOURCES["maxp"](templated, max_tokens=4096).retrieve(QUESTION)
    llm = ScriptedLLM("1530")
    synthesizer = TwoTurnSynthesizer(llm, one_turn_max_tokens=10**6, tokenizer=tokenizer)
    synthesizer.synthesize(QUESTION, found)
    (prompt,) = llm.prompts
    for document in templated:
        assert f"{SHOWN}{document.text}\nEND" in prompt


def test_a_converted_result_keeps_its_places_after_what_a_template_puts_before_it(templated):
    (first, *_) = SOURCES["maxp"](templated, max_tokens=4096).retrieve(QUESTION)
    unit = to_retrieved(first).unit
    assert unit.text == f"{SHOWN}{first.node.text}"
    texts = {document.id_: document.text for document in templated}
    for member in unit.members:
        assert unit.text[member.start : member.end] in texts[member.doc_id]
