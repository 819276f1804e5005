"""From documents to a decoder: whose passages the keys are, and what is refused before a call."""

from __future__ import annotations

import pytest

from longrag.calls import run
from longrag.decoding.building import build_decoder
from longrag.errors import InvalidParameterError
from longrag.ingestion import sentence_keys
from longrag.ingestion.key_extraction import paragraphs
from longrag.types import Document
from tests.tiny_models import CharacterTokenizer, TableModel, random_table

TOKENIZER = CharacterTokenizer("\nabcdefghijklmnopqrstuvwxyz .AB<>[]#")
PAGES = [Document("one.md", "Aa bb. Bb cc.\n\nAa."), Document("two.md", "Bb.\n\nAa dd.")]


def flow(documents=PAGES, model=None, one_passage=(), **given):
    model = model or TableModel(TOKENIZER, random_table(TOKENIZER.vocab_size, 1))
    given = {"keys": "sentence", "with_title": False, "mode": "keys", "settings": {}, **given}
    return build_decoder(documents, language_model=model, one_passage=one_passage, **given)


def made(*given, **settings):
    return run(flow(*given, **settings), lambda request: None)


def passages(decoder):
    return {
        (source.doc_id, source.passage_id) for span in decoder.keys("a") for source in span.sources
    }


def test_the_keys_are_those_of_the_documents_and_stand_for_their_paragraphs():
    decoder = made(settings={"beam_size": 3, "max_new_tokens": 40})
    assert {span.text for span in decoder.keys("a")} == {key.text for key in sentence_keys(PAGES)}
    assert passages(decoder) == {(one.doc_id, one.id) for one in paragraphs(PAGES)}
    assert (decoder.settings["beam_size"], decoder.settings["max_new_tokens"]) == (3, 40)


def test_a_document_that_is_one_passage_is_the_passage_of_its_keys():
    own = {(one.doc_id, one.id) for one in paragraphs(PAGES) if one.doc_id == "two.md"}
    assert passages(made(one_passage={"one.md"})) == {("one.md", "one.md")} | own


def test_markers_are_those_of_index_and_decoder():
    decoder = made(settings={"markers": ("[", "]")})
    assert decoder.markers == ("[", "]")
    assert {span.text for span in decoder.keys("a")} == {key.text for key in sentence_keys(PAGES)}


def test_min_spans_are_allowed_where_there_are_keys_alone():
    assert made(settings={"min_spans": 1}).settings["min_spans"] == 1
    with pytest.raises(InvalidParameterError, match="min_spans must be 0"):
        made([], settings={"min_spans": 1})


@pytest.mark.parametrize(
    ("error", "match", "given"),
    [
        (InvalidParameterError, "beam_size", {"settings": {"beam_size": 0}}),
        (InvalidParameterError, "stop", {"settings": {"stop": 3}}),
        (InvalidParameterError, "markers", {"settings": {"markers": ("", ">>")}}),
        (InvalidParameterError, "mode", {"mode": "words"}),
        (InvalidParameterError, "language_model", {"model": "gpt"}),
        (TypeError, "beams", {"settings": {"beams": 1}}),
    ],
)
def test_settings_are_refused_before_the_flow_has_begun(error, match, given):
    with pytest.raises(error, match=match):
        flow(keys="proposition", **given)


def test_only_propositions_ask_a_model():
    asked = []

    def answer(request):
        asked.append(request)
        return '["Aa bb."]'

    decoder = run(flow(keys="proposition"), answer)
    assert len(asked) == len(paragraphs(PAGES))
    assert {span.text for span in decoder.keys("a")} == {"Aa bb."}
    for keys in ("title", "paragraph", "sentence"):
        run(flow(keys=keys), answer)
    assert len(asked) == len(paragraphs(PAGES))
