"""Answers that cite, in each provider's wire format, and what becomes of each citation."""

from tests.citing_server import anthropic, gemini, openai

MILL = "The mill at the weir burned down in 1648.\n\nIt was built again by Anna Berg in a year."
CITY = "Port Alder was founded in 1742 by a captain. 磨坊在一七四二年春天被大火烧毁了。"
TEXTS = {"mill.md": MILL, "city.md": CITY}
TITLES = {"mill.md": "The mill", "city.md": "The city"}
URLS = {"mill.md": "https://town.example/mill", "city.md": "https://town.example/city"}

BURNED = "The mill at the weir burned down in 1648."
FOUNDED = "Port Alder was founded in 1742"
HAN = "磨坊在一七四二年春天被大火烧毁了"


def char(cited, index, title=None):
    return {"type": "char_location", "cited_text": cited, "document_index": index, "file_id": None,
            "document_title": title, "start_char_index": 0, "end_char_index": 9}  # fmt: skip


def page(cited, index):
    return {"type": "page_location", "cited_text": cited, "document_index": index, "file_id": None,
            "document_title": None, "start_page_number": 1, "end_page_number": 2}  # fmt: skip


def blocks(cited, index, title):
    return {"type": "content_block_location", "cited_text": cited, "document_index": index,
            "document_title": title, "file_id": None, "start_block_index": 0,
            "end_block_index": 2}  # fmt: skip


def search(cited, index, source, title):
    return {"type": "search_result_location", "cited_text": cited, "search_result_index": index,
            "source": source, "title": title, "start_block_index": 0,
            "end_block_index": 1}  # fmt: skip


def web(cited, url):
    return {"type": "web_search_result_location", "cited_text": cited, "url": url, "title": "News",
            "encrypted_index": "e"}  # fmt: skip


ANTHROPIC = anthropic(
    ("🔥 磨坊 first: ", []),
    ("it burned", [char(BURNED, 0, "The mill"), char(BURNED, 0)]),
    (" and ", []),
    ("the number", [char(BURNED.replace("1648", "1684"), 0, "The mill")]),
    ("the name", [char("It was built again by Anna Borg in a year.", 0, "The mill")]),
    ("the place", [char(FOUNDED, 0, "The mill"), search(FOUNDED, 0, URLS["city.md"], "A page")]),
    ("from nowhere", [char("Nobody was ever asked about the harbour tax.", 1, "The city")]),
    ("漢", [char(HAN, 1), char("", 1), page("   \n", 1)]),
    ("joined", [blocks(MILL.replace("\n\n", ""), 0, "The mill")]),
    ("a page of the web", [web(FOUNDED, "https://news.example/1"), web(FOUNDED, URLS["city.md"])]),
    ("cut", [char("built again by Anna Berg", 7)]),
)
# For each citation that is looked up: what of the answer it covers, the status and the document.
ANTHROPIC_FOUND = [
    ("citation", "it burned", "verbatim", "mill.md"),
    ("citation", "it burned", "verbatim", "mill.md"),
    ("citation", "the number", "altered", None),
    ("citation", "the name", "altered", None),
    ("citation", "the place", "misattributed", "city.md"),
    ("citation", "the place", "verbatim", "city.md"),
    ("citation", "from nowhere", "not_found", None),
    ("citation", "漢", "verbatim", "city.md"),
    ("citation", "joined", "verbatim", "mill.md"),
    ("citation", "a page of the web", "misattributed", "city.md"),
    ("citation", "a page of the web", "verbatim", "city.md"),
    ("citation", "cut", "misattributed", "mill.md"),
]
ANTHROPIC_UNKNOWN = ["https://news.example/1", ""]

_SAID = (
    f"🔥 磨坊: {BURNED} ([town.example](https://town.example/mill?utm_source=openai)) Then"
    f" {HAN}。 [Port Alder was founded in 1724](https://town.example/city) 【3†source】 Yes."
)


def covering(words, url, title, text=_SAID):
    start = text.index(words)
    return {"type": "url_citation", "start_index": start, "end_index": start + len(words),
            "url": url, "title": title}  # fmt: skip


_LINK = _SAID[_SAID.index("([town") : _SAID.index(" Then")]
_CLAIM = _SAID[_SAID.index("[Port") : _SAID.index(" 【")]
OPENAI = openai(
    (
        _SAID,
        [
            covering(BURNED, "https://town.example/mill?utm_source=openai", "The mill"),
            covering(_LINK, "https://town.example/mill?utm_source=openai", "The mill"),
            covering(HAN, "https://town.example/mill", "The mill"),
            covering(_CLAIM, "https://town.example/city", "The city"),
            {"type": "file_citation", "index": 5, "file_id": "file-1", "filename": "mill.md"},
            {"type": "file_citation", "index": 5, "file_id": "file-2", "filename": "none.pdf"},
            covering("Yes.", "https://town.example/city", "The city"),
            covering(BURNED, "https://news.example/1", "News"),
            {"type": "container_file_citation", "container_id": "c", "file_id": "f",
             "filename": "city.md", "start_index": 0, "end_index": 9_999},
            {"type": "file_path", "file_id": "f", "index": 0},
        ],
    ),
    (FOUNDED, [covering(FOUNDED, "https://town.example/city", "x", FOUNDED)]),
)  # fmt: skip
OPENAI_FOUND = [
    ("segment", BURNED, "verbatim", "mill.md"),
    ("segment", HAN, "misattributed", "city.md"),
    ("segment", _CLAIM, "altered", None),
    ("segment", BURNED, "misattributed", "mill.md"),
    ("segment", FOUNDED, "verbatim", "city.md"),
]
OPENAI_SKIPPED = [_LINK, _SAID, _SAID, "Yes.", _SAID, _SAID]
OPENAI_UNKNOWN = ["file-2", "https://news.example/1", "f"]

_FIRST = f"🔥 磨坊 é: {BURNED} {HAN}。\n"
_SECOND = "Port Alder was founded in 1799 by a captain. It rained. It rained on every day of it."


def support(words, part, *chunks, shift=0, text=None):
    within = (_FIRST, _SECOND)[part]
    start = len(within[: within.index(words)].encode()) + shift
    segment = {"startIndex": start, "endIndex": start + len(words.encode()), "text": words}
    if part:
        segment["partIndex"] = part
    if text is not None:
        segment["text"] = text
    return {"segment": segment, "groundingChunkIndices": list(chunks)}


GEMINI = gemini(
    _FIRST,
    _SECOND,
    grounding={
        "webSearchQueries": ["mill"],
        "groundingChunks": [
            {"web": {"uri": "https://town.example/mill", "title": "town.example"}},
            {"retrievedContext": {"title": "The city", "text": CITY}},
            {"web": {"uri": "https://search.example/redirect/1", "title": "news.example"}},
        ],
        "groundingSupports": [
            support(BURNED, 0, 0),
            support(BURNED, 0, 2, 0, 99),  # any of several sources may have it
            support(HAN, 0, 1),
            support(HAN, 0, 1, shift=1),  # the bytes begin inside a character
            support(HAN, 0, 0),
            support("Port Alder was founded in 1799", 1, 1),
            support("It rained on every day of it.", 1, 2),
            support("It rained.", 1, 2),
            {"segment": {"startIndex": 5, "endIndex": 99_999, "text": "words that nobody said"},
             "groundingChunkIndices": [0]},
        ],
    },
)  # fmt: skip
GEMINI_FOUND = [
    ("segment", BURNED, "verbatim", "mill.md"),
    ("segment", BURNED, "verbatim", "mill.md"),
    ("segment", HAN, "verbatim", "city.md"),
    ("segment", HAN, "verbatim", "city.md"),
    ("segment", HAN, "misattributed", "city.md"),
    ("segment", "Port Alder was founded in 1799", "altered", None),
    ("segment", "It rained on every day of it.", "not_found", None),
]
GEMINI_UNKNOWN = ["https://search.example/redirect/1"] * 2


def rows(checked, answer):
    """Return what the tables above say of each citation that was looked up."""
    return [
        (
            written.kind,
            answer[written.start : written.end],
            found.status,
            found.sources[0].doc_id if found.sources else None,
        )
        for written, found in checked.quotes
    ]


def check_shown(checked):
    """Check that what may be shown of a citation is its words, as the source writes them."""
    for written, found in checked.quotes:
        assert found.accepted == (found.status in ("verbatim", "misattributed"))
        for one in found.sources:
            own = TEXTS[one.doc_id][one.start : one.end]
            assert "".join(own.split()) in "".join(written.text.split())
