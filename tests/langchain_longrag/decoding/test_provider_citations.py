"""What providers cite, as their LangChain packages deliver it, is looked up in the documents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.runnables import RunnableLambda

from langchain_longrag import check_citations, create_quote_chain
from longrag.errors import InvalidParameterError
from longrag.quoting import QuoteIndex
from longrag.types import Document as CoreDocument
from tests import citing_cases as cases
from tests.citing_server import CitingServer
from tests.openai_server import on_loopback

DOCUMENTS = [
    Document(text, id=id_, metadata={"title": cases.TITLES[id_], "url": cases.URLS[id_]})
    for id_, text in cases.TEXTS.items()
]
SHOWN = HumanMessage(
    [
        *(
            {"type": "document", "title": cases.TITLES[id_], "citations": {"enabled": True},
             "source": {"type": "text", "media_type": "text/plain", "data": text}}
            for id_, text in cases.TEXTS.items()
        ),
        {"type": "text", "text": "What happened?"},
    ]
)  # fmt: skip


def make_anthropic(url, **settings):
    package = pytest.importorskip("langchain_anthropic", reason="Anthropic's package is missing")
    name = "claude-opus-4-5"
    return package.ChatAnthropic(model=name, api_key="k", base_url=url, max_retries=0, **settings)


def make_openai(url, **settings):
    package = pytest.importorskip("langchain_openai", reason="OpenAI's package is missing")
    return package.ChatOpenAI(
        model="gpt-5", api_key="k", base_url=f"{url}/v1", use_responses_api=True, max_retries=0,
        **settings,
    )  # fmt: skip


def make_gemini(url, model="gemini-2.5-flash", **settings):
    package = pytest.importorskip("langchain_google_genai", reason="Gemini's package is missing")
    return package.ChatGoogleGenerativeAI(model=model, api_key="k", base_url=url, **settings)


def make_newer_gemini(url, **settings):
    return make_gemini(url, model="gemini-3-pro-preview", **settings)


def invoked(model):
    return model.invoke([SHOWN if "nthropic" in type(model).__name__ else HumanMessage("Well?")])


def streamed(model):
    question = [SHOWN if "nthropic" in type(model).__name__ else HumanMessage("Well?")]
    chunks = list(model.stream(question))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert len(chunks) > 9
    return whole


WAYS = pytest.mark.parametrize("call", [invoked, streamed])
VERSIONS = pytest.mark.parametrize("settings", [{}, {"output_version": "v1"}])


@on_loopback
@WAYS
@VERSIONS
def test_anthropic(call, settings):
    with CitingServer(cases.ANTHROPIC) as server:
        message = call(make_anthropic(server.url, **settings))
    checked = check_citations(message, DOCUMENTS)
    assert rows(checked, message) == cases.ANTHROPIC_FOUND
    assert [one.text for one in checked.skipped] == [""] * 2
    assert [one.source for one in checked.unknown] == cases.ANTHROPIC_UNKNOWN
    cases.check_shown(checked)


@on_loopback
@WAYS
@VERSIONS
def test_openai(call, settings):
    with CitingServer(cases.OPENAI) as server:
        message = call(make_openai(server.url, **settings))
    checked = check_citations(message, DOCUMENTS)
    assert rows(checked, message) == cases.OPENAI_FOUND
    skipped = [message.text[one.start : one.end] for one in checked.skipped]
    assert skipped == cases.OPENAI_SKIPPED
    assert [one.source for one in checked.unknown] == cases.OPENAI_UNKNOWN


@on_loopback
@WAYS
@VERSIONS
@pytest.mark.parametrize("make", [make_gemini, make_newer_gemini])
def test_gemini(make, call, settings):
    with CitingServer(cases.GEMINI) as server:
        message = call(make(server.url, **settings))
    checked = check_citations(message, DOCUMENTS)
    assert rows(checked, message) == cases.GEMINI_FOUND
    assert [one.source for one in checked.unknown] == cases.GEMINI_UNKNOWN
    cases.check_shown(checked)


def rows(checked, message):
    return cases.rows(checked, str(message.text))


def test_messages_as_the_packages_deliver_them():
    blocks = [
        {"type": "text", "text": "🔥 So: "},
        {"type": "text", "text": "burned", "citations": [cases.char(cases.BURNED, 0)]},
    ]
    message = AIMessage(blocks, response_metadata={"model_provider": "anthropic"})
    checked = check_citations(message, DOCUMENTS)
    assert rows(checked, message) == [("citation", "burned", "verbatim", "mill.md")]
    # A stream of text alone, in which a citation is a block without text.
    pieces = [AIMessageChunk("burned"), AIMessageChunk([{"citations": blocks[1]["citations"],
                                                         "type": "text", "index": 0}])]  # fmt: skip
    message = pieces[0] + pieces[1]
    message.response_metadata["model_provider"] = "anthropic"
    ((written, found),) = check_citations(message, DOCUMENTS).quotes
    assert (found.status, written.text) == ("verbatim", cases.BURNED)
    assert message.text[written.start : written.end] == ""


def test_geminis_own_places_in_blocks_are_bytes():
    said = f"🔥 磨坊 {cases.BURNED}"
    start = len("🔥 磨坊 ".encode())
    cited = {"type": "citation", "start_index": start, "end_index": start + len(cases.BURNED),
             "cited_text": cases.BURNED, "url": cases.URLS["mill.md"],
             "extras": {"google_ai_metadata": {}}}  # fmt: skip
    message = AIMessage([{"type": "text", "text": said, "annotations": [cited]}])
    expected = [("segment", cases.BURNED, "verbatim", "mill.md")]
    assert rows(check_citations(message, DOCUMENTS), message) == expected


def test_chunks_of_one_document_are_one_source():
    head, tail = cases.MILL.split("\n\n")
    chunks = [
        Document(head, metadata={"doc_id": "mill.md", "start_index": 0}),
        Document(tail, metadata={"doc_id": "mill.md", "start_index": len(head) + 2}),
    ]
    cited = {"type": "citation", "cited_text": "built again by Anna Berg", "title": "mill.md"}
    message = AIMessage([{"type": "text", "text": "It was.", "annotations": [cited]}])
    ((_, found),) = check_citations(message, chunks).quotes
    (source,) = found.sources
    assert found.status == "verbatim"
    assert cases.MILL[source.start : source.end] == "built again by Anna Berg"


def test_elsewhere_is_told_and_not_shown():
    index = QuoteIndex.from_documents([CoreDocument("far.md", "Seven ships were lost that year.")])
    cited = {"type": "citation", "cited_text": "Seven ships were lost that year", "title": "x"}
    message = AIMessage([{"type": "text", "text": "Lost.", "annotations": [cited]}])
    ((_, found),) = check_citations(message, DOCUMENTS, corpus=index).quotes
    assert (found.status, found.sources) == ("misattributed", ())
    assert found.nearest.doc_id == "far.md"
    ((_, found),) = check_citations(message, DOCUMENTS).quotes
    assert found.status == "not_found"


ODD = st.sampled_from([None, True, -1, 0, 3, 10**30, 1.5, "", "x", "\ud800", [], {}, [None]])
KEYS = st.sampled_from(
    ["type", "text", "annotations", "citations", "cited_text", "start_index", "end_index", "title",
     "url", "extras", "value", "document_index", "segment", "grounding_chunk_indices", "part_index",
     "grounding_chunks", "grounding_supports", "web"]
)  # fmt: skip
TYPES = st.sampled_from(
    ["text", "citation", "url_citation", "file_citation", "char_location",
     "non_standard_annotation"]
)  # fmt: skip
SHAPES = st.recursive(
    ODD | TYPES,
    lambda inner: st.dictionaries(KEYS, inner, max_size=5) | st.lists(inner, max_size=3),
    max_leaves=15,
)


@given(
    st.lists(SHAPES, max_size=3),
    st.dictionaries(KEYS, SHAPES, max_size=4),
    st.sampled_from(["anthropic", "openai", "google_genai"]),
)
def test_no_shape_breaks_the_check(annotations, grounding, provider):
    block = {"type": "text", "text": "磨坊 it burned down", "annotations": annotations,
             "citations": annotations}  # fmt: skip
    message = AIMessage(
        [block],
        response_metadata={"model_provider": provider, "grounding_metadata": grounding},
    )
    checked = check_citations(message, DOCUMENTS)
    for written in [*(written for written, _ in checked.quotes), *checked.skipped]:
        assert 0 <= written.start <= written.end <= len(message.text)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("It burned.", DOCUMENTS), "message"),
        ((HumanMessage("It burned."), DOCUMENTS), "message"),
        ((AIMessage("It burned."), [cases.MILL]), "documents"),
        ((AIMessage("It burned."), None), "documents"),
    ],
)
def test_what_is_no_message_or_document_is_refused(arguments, name):
    with pytest.raises(InvalidParameterError, match=name):
        check_citations(*arguments)
    with pytest.raises(InvalidParameterError, match="corpus"):
        check_citations(AIMessage("It burned."), DOCUMENTS, corpus=DOCUMENTS)


@pytest.mark.parametrize("changed", [False, True])
def test_what_a_quote_chain_cites_passes_the_same_check(changed):
    reply = f"<quote source='1'>{cases.BURNED}</quote>\nAnswer: In 1648."
    chain = create_quote_chain(
        RunnableLambda(lambda _: DOCUMENTS), FakeListChatModel(responses=[reply])
    )
    message = chain.invoke({"input": "When did the mill burn down?"})["message"]
    if changed:
        message.content[0]["annotations"][0]["cited_text"] = cases.BURNED.replace("1648", "1748")
    ((written, found),) = check_citations(message, DOCUMENTS).quotes
    assert message.text[written.start : written.end] == cases.BURNED.rstrip(".")
    assert found.status == ("altered" if changed else "verbatim")
