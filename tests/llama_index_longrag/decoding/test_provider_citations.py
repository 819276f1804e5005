"""What providers cite, as their LlamaIndex packages deliver it, is looked up in the nodes."""

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CitationBlock,
    TextBlock,
    ThinkingBlock,
)
from llama_index.core.schema import Document, NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_longrag import check_citations
from longrag.errors import InvalidParameterError
from tests import citing_cases as cases
from tests.citing_server import CitingServer
from tests.openai_server import on_loopback

NODES = [
    Document(id_=id_, text=text, metadata={"title": cases.TITLES[id_], "url": cases.URLS[id_]})
    for id_, text in cases.TEXTS.items()
]
QUESTION = [ChatMessage("What happened?")]


def make_anthropic(url):
    package = pytest.importorskip("llama_index.llms.anthropic", reason="the package is missing")
    if not isinstance(pytest.importorskip("anthropic.types").MessageParam, type):
        pytest.skip("this version of Anthropic's client is not one that the package can use")
    return package.Anthropic(model="claude-opus-4-5", api_key="k", base_url=url, max_retries=0)


def make_openai(url):
    package = pytest.importorskip("llama_index.llms.openai", reason="the package is missing")
    base = f"{url}/v1"
    return package.OpenAIResponses(model="gpt-5", api_key="k", api_base=base, max_retries=0)


def make_gemini(url):
    package = pytest.importorskip("llama_index.llms.google_genai", reason="the package is missing")
    options = {"base_url": url}
    return package.GoogleGenAI(model="gemini-2.5-flash", api_key="k", http_options=options)


def told(llm):
    return llm.chat(QUESTION)


def streamed(llm):
    responses = list(llm.stream_chat(QUESTION))
    assert len(responses) > 9
    return responses[-1]


def told_async(llm):
    return asyncio.run(llm.achat(QUESTION))


def streamed_async(llm):
    async def read():
        async with aclosing(await llm.astream_chat(QUESTION)) as responses:
            return [one async for one in responses][-1]

    return asyncio.run(read())


WAYS = pytest.mark.parametrize("call", [told, streamed, told_async, streamed_async])


@on_loopback
@WAYS
def test_anthropic(call):
    with CitingServer(cases.ANTHROPIC) as server:
        response = call(make_anthropic(server.url))
    checked = check_citations(response, NODES)
    found, unknown = cases.ANTHROPIC_FOUND, cases.ANTHROPIC_UNKNOWN
    if call in (streamed, streamed_async):
        # The package tells of a stream what is cited, not where, and search results last.
        found = [(kind, "", *rest) for kind, _, *rest in found]
        found.append(found.pop(5))
    assert rows(checked, response) == found
    assert [one.text for one in checked.skipped] == [""] * 2
    assert [one.source for one in checked.unknown] == unknown
    cases.check_shown(checked)


@on_loopback
@WAYS
def test_openai(call):
    with CitingServer(cases.OPENAI) as server:
        response = call(make_openai(server.url))
    checked = check_citations(response, NODES)
    assert rows(checked, response) == cases.OPENAI_FOUND
    answer = response.message.content
    skipped = [answer[one.start : one.end] for one in checked.skipped]
    assert skipped == cases.OPENAI_SKIPPED
    assert [one.source for one in checked.unknown] == cases.OPENAI_UNKNOWN


@on_loopback
@pytest.mark.filterwarnings("ignore:Inheritance class:DeprecationWarning")
@WAYS
def test_gemini(call):
    with CitingServer(cases.GEMINI) as server:
        response = call(make_gemini(server.url))
    checked = check_citations(response, NODES)
    assert rows(checked, response) == cases.GEMINI_FOUND
    assert [one.source for one in checked.unknown] == cases.GEMINI_UNKNOWN
    cases.check_shown(checked)


def rows(checked, response):
    message = response if isinstance(response, ChatMessage) else response.message
    return cases.rows(checked, message.content or "")


def cite(text, source="", title="", place=0):
    return CitationBlock(
        cited_content=text, source=source, title=title,
        additional_location_info={"search_result_index": place},
    )  # fmt: skip


def test_a_message_alone_has_its_blocks_and_fields():
    blocks = [TextBlock(text="It burned."), cite(cases.BURNED, "mill.md", "A page")]
    message = ChatMessage(role="assistant", blocks=blocks)
    citation = cases.search(cases.BURNED, 0, "mill.md", "A page")
    message.additional_kwargs["citations"] = [citation]
    message.additional_kwargs["annotations"] = [
        cases.covering("It burned.", cases.URLS["mill.md"], "The mill", "It burned.")
    ]
    checked = check_citations(message, NODES)
    # The block says the same as what the fields have.
    assert rows(checked, message) == [("citation", "It burned.", "verbatim", "mill.md")]
    assert [one.text for one in checked.skipped] == ["It burned."]  # too few words


def test_of_several_parts_without_the_reply_none_is_covered():
    blocks = [TextBlock(text=cases.BURNED), ThinkingBlock(content="x"), TextBlock(text="And so.")]
    response = ChatResponse(message=ChatMessage(role="assistant", blocks=blocks))
    annotation = cases.covering(cases.BURNED, cases.URLS["mill.md"], "", cases.BURNED)
    response.additional_kwargs["annotations"] = [annotation]
    checked = check_citations(response, NODES)
    assert checked.quotes == ()
    assert [(one.start, one.end) for one in checked.skipped] == [(0, 0)]
    response.message.blocks = blocks[:2]
    found = rows(check_citations(response, NODES), response)
    assert found == [("segment", cases.BURNED, "verbatim", "mill.md")]


def test_chat_completions_keep_annotations_under_their_type():
    citation = cases.covering(cases.BURNED, cases.URLS["mill.md"], "", cases.BURNED)
    reply = {"content": cases.BURNED,
             "annotations": [{"type": "url_citation", "url_citation": citation}]}  # fmt: skip
    message = ChatMessage(role="assistant", content=cases.BURNED)
    response = ChatResponse(message=message, raw={"choices": [{"message": reply}]})
    found = rows(check_citations(response, NODES), response)
    assert found == [("segment", cases.BURNED, "verbatim", "mill.md")]


def test_nodes_of_a_document_are_its_stretches():
    start = cases.MILL.index("It was")
    node = TextNode(
        text=cases.MILL[start:], id_="n1", start_char_idx=start, end_char_idx=len(cases.MILL),
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="mill.md")},
    )  # fmt: skip
    for source in ("n1", "mill.md"):
        message = ChatMessage(role="assistant", blocks=[cite("built again by Anna Berg", source)])
        ((_, found),) = check_citations(message, [node]).quotes
        (place,) = found.sources
        assert (found.status, place.doc_id, place.passage_id) == ("verbatim", "mill.md", "n1")
        assert cases.MILL[place.start : place.end] == "built again by Anna Berg"


ODD = st.sampled_from([None, True, -1, 0, 10**30, 1.5, "", "x", "\ud800", [], {}, [None], object()])
KEYS = st.sampled_from(
    ["type", "text", "annotations", "citations", "cited_text", "start_index", "end_index", "title",
     "content", "output", "response", "choices", "message", "grounding_metadata", "segment",
     "grounding_supports", "grounding_chunks", "part_index", "extras", "value"]
)  # fmt: skip
SHAPES = st.recursive(
    ODD | st.sampled_from(["text", "url_citation", "citation", "non_standard_annotation"]),
    lambda inner: st.dictionaries(KEYS, inner, max_size=5) | st.lists(inner, max_size=3),
    max_leaves=15,
)


@given(SHAPES, st.dictionaries(KEYS, SHAPES, max_size=4), st.sampled_from(["", "磨坊 burned down"]))
def test_no_shape_breaks_the_check(raw, fields, text):
    message = ChatMessage(role="assistant", content=text)
    response = ChatResponse(message=message, raw=raw, additional_kwargs=fields)
    checked = check_citations(response, NODES)
    for written in [*(written for written, _ in checked.quotes), *checked.skipped]:
        assert 0 <= written.start <= written.end <= len(text)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("It burned.", NODES), "response"),
        ((ChatMessage("It burned."), [cases.MILL]), "nodes"),
        ((ChatMessage("It burned."), None), "nodes"),
    ],
)
def test_what_is_no_response_or_node_is_refused(arguments, name):
    with pytest.raises(InvalidParameterError, match=name):
        check_citations(*arguments)
