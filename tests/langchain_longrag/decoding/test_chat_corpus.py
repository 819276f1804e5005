"""What ChatRiches is built over: models, indexes, documents and propositions."""

from __future__ import annotations

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel, FakeListLLM

from langchain_longrag import ChatRiches
from longrag.decoding.decoder import RichesDecoder
from longrag.errors import (
    InvalidDocumentError,
    InvalidParameterError,
    TokenizerError,
)
from longrag.indexing import KeyIndex
from longrag.journal import Journal
from longrag.models.tokenizer import MARKERS
from tests.fakes.langchain import replying
from tests.langchain_longrag.decoding.chatting import QUESTION, TEMPLATE, WHOLE, chat, cited
from tests.langchain_longrag.reading import FACTS, PAGES, quoting, writing
from tests.tiny_models import CharacterTokenizer


@pytest.mark.parametrize("model", [FakeListChatModel(responses=["x"]), FakeListLLM(responses=["x"]),
                                   "gpt", None])  # fmt: skip
async def test_a_model_that_cannot_be_constrained_is_refused(model):
    with pytest.raises(InvalidParameterError, match=r"TransformersLanguageModel .* vLLM"):
        ChatRiches.from_documents(PAGES, language_model=model)
    with pytest.raises(InvalidParameterError, match=r"TransformersLanguageModel .* vLLM"):
        await ChatRiches.afrom_documents(PAGES, language_model=model)


def test_an_index_of_another_tokenizer_is_refused():
    alphabet = "".join(sorted(set("".join(FACTS.values()) + "<>")))
    index = KeyIndex.from_keys(["The mill grinds rye."], tokenizer=CharacterTokenizer(alphabet))
    with pytest.raises(TokenizerError, match="tokenizer"):
        RichesDecoder(writing(quoting), index)


def test_documents_of_one_id_are_refused():
    with pytest.raises(InvalidDocumentError, match="mill"):
        chat(documents=[PAGES[0], PAGES[0]])
    with pytest.raises(InvalidDocumentError, match="mill"):
        ChatRiches(decoder=chat().decoder, documents=[PAGES[0], PAGES[0]])


@pytest.mark.parametrize("documents", [[], [Document(" \n", id="blank")]])
async def test_nothing_can_be_quoted_from_an_empty_corpus(documents):
    def script(question):
        return " nothing is known\nanswer: none"

    free = chat(script, documents, require_quote=False)
    assert free.invoke(QUESTION).text == " nothing is known\nanswer: none"
    model = chat(script, documents)
    assert model.invoke(QUESTION).text == model.empty_response
    assert cited(await model.ainvoke(QUESTION)) == []
    quoting_ = chat(documents=documents).invoke(QUESTION)
    assert cited(quoting_) == []


def propositions(prompt):
    """State the first sentence of the passage in other words."""
    sentence = prompt.rpartition("<passage")[2].partition(">")[2].strip().partition(".")[0]
    return f'["It is said: {sentence}."]'


async def test_propositions_are_written_by_any_model_and_cite_their_passage(tmp_path):
    def script(question):
        return " keyword: fact << It is said: The weir was built in 1312. >>\nanswer: 1312"

    for journal in (None, tmp_path / "journal"):
        llm = replying(propositions)
        given = {"keys": "proposition", "llm": llm, "journal": journal}
        model = chat(script, **given)
        (found,) = cited(model.invoke(QUESTION))
        assert found == ("It is said: The weir was built in 1312.", FACTS["weir"], "weir")
        assert len(llm.prompts) == 4
        built = await ChatRiches.afrom_documents(
            PAGES, language_model=writing(script), prompt=TEMPLATE, beam_size=2, **given
        )
        assert cited(await built.ainvoke(QUESTION)) == [found]
        # What is in the journal is not paid for again.
        assert len(llm.prompts) == (8 if journal is None else 4)


def test_a_journal_of_the_callers_own_stays_open(tmp_path):
    with Journal(tmp_path / "journal") as journal:
        chat(keys="proposition", llm=replying(propositions), journal=journal)
        llm = replying(propositions)
        chat(keys="proposition", llm=llm, journal=journal)
        assert llm.prompts == []


async def test_what_is_not_allowed_is_refused_before_anything_is_paid_for():
    llm = replying(propositions)
    for wrong in ({"beam_size": 0}, {"search": "best"}, {"markers": ("", ">>")}):
        with pytest.raises(InvalidParameterError):
            chat(keys="proposition", llm=llm, **wrong)
    with pytest.raises(TypeError):
        chat(keys="proposition", llm=llm, beams=1)
    assert llm.prompts == []


async def test_what_the_writing_model_raises_is_raised(tmp_path):
    llm = replying(lambda _: OSError("down"))
    with pytest.raises(OSError, match="down"):
        chat(keys="proposition", llm=llm, journal=tmp_path / "journal")
    with pytest.raises(OSError, match="down"):
        await ChatRiches.afrom_documents(
            PAGES, language_model=writing(quoting), keys="proposition", llm=llm
        )


@pytest.mark.parametrize(("mode", "markers"), [("keys", ("[[", "]]")), ("substring", MARKERS)])
def test_modes_and_markers_are_the_decoders(mode, markers):
    def script(question):
        return WHOLE.replace("<<", markers[0]).replace(" >>", f" {markers[1]}")

    message = chat(script, mode=mode, markers=markers).invoke(QUESTION)
    assert message.text == script("")
    assert cited(message) == [("The mill burned down in 1684.",) * 2 + ("mill",)]
    assert message.response_metadata["answer"] == "1684"


def test_titles_before_sentences_are_part_of_the_quote_and_not_of_the_source():
    def script(question):
        return " keyword: fact << Mill. The mill burned down in 1684. >>\nanswer: 1684"

    (found,) = cited(chat(script, with_title=True).invoke(QUESTION))
    assert found == ("Mill. The mill burned down in 1684.", "The mill burned down in 1684.", "mill")


def test_the_callers_documents_are_left_as_they_were():
    before = [page.model_dump() for page in PAGES]
    chat().invoke(QUESTION)
    assert [page.model_dump() for page in PAGES] == before
