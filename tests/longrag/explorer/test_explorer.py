"""The explorer's page holds its data as data: hostile text is shown, and nothing of it runs."""

import base64
import json
import re
from hashlib import sha256

import pytest

from longrag.calls import run
from longrag.errors import InvalidParameterError
from longrag.explorer import explore
from longrag.explorer.page import is_page
from longrag.indexing import ExtractiveSummarizer, TreeBuilder, TreeSettings
from longrag.indices import CorpusIndex
from longrag.indices.tree import TreeIndex
from longrag.models import LsaEmbedder
from longrag.types import Document
from tests.fakes import HashEmbedder
from tests.longrag.explorer.pages import HOSTILE, Elements

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "device_scale_factor": 3}


def corpus(texts, **settings):
    documents = [
        Document(f"{number}-{text[:20]}", text, f"T {text}", {"first_line": 1})
        for number, text in enumerate(texts)
    ]
    embed = HashEmbedder()

    def answer(request):
        return embed(request.texts, request.role)

    units = CorpusIndex()
    run(units.change(upsert=documents), answer)
    tree = TreeIndex(
        TreeBuilder(summarizer=ExtractiveSummarizer(), tree=TreeSettings(chunk_size=20))
    )
    run(tree.change(upsert=documents), answer)
    return run(explore(units=units, tree=tree, **settings), answer), units, tree


@pytest.fixture(scope="module")
def hostile():
    return corpus(HOSTILE, questions=HOSTILE[:2], title=HOSTILE[0])


def test_the_page_has_the_elements_of_a_harmless_one(hostile):
    harmless, _, _ = corpus(["The pier is long."], questions=["Why?"])
    expected = [tag for tag, _ in Elements(harmless.html).tags]
    found = Elements(hostile[0].html)
    assert [tag for tag, _ in found.tags] == expected
    assert expected == ["html", "head", "meta", "meta", "meta", "meta", "title", "style", "body",
                        "noscript", "script", "script"]  # fmt: skip
    names = {name for _, attributes in found.tags for name in attributes}
    assert names == {"lang", "charset", "http-equiv", "content", "name", "type", "id"}


def test_only_the_one_script_is_allowed_by_its_hash(hostile):
    page = Elements(hostile[0].html)
    (policy,) = (
        attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes
    )
    style, data, script = page.texts
    hashes = [
        f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"
        for text in (script, style)
    ]
    assert policy == (
        f"default-src 'none'; script-src {hashes[0]}; style-src {hashes[1]}; "
        "base-uri 'none'; form-action 'none'"
    )
    assert not re.search("[<>&\u2028\u2029]", data)
    assert hostile[0].html.isascii()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|Function\(",
                         script)  # fmt: skip
    assert "//" not in re.sub(r"//.*|http://www\.w3\.org/2000/svg", "", script)


def test_the_data_are_the_index(hostile):
    explorer, units, tree = hostile
    data = json.loads(Elements(explorer.html).texts[1])
    texts = [one["text"] for one in data["documents"]]
    assert sorted(texts) == sorted(HOSTILE)
    assert data["title"] == HOSTILE[0]
    assert [way["question"] for way in data["ways"]] == HOSTILE[:2]

    def cut(doc, start, end):
        wide = texts[doc].encode("utf-16-le", "surrogatepass")
        return wide[2 * start : 2 * end].decode("utf-16-le", "surrogatepass")

    chunks = [cut(*one) for unit in data["units"] for one in unit["chunks"]]
    assert sorted(chunks) == sorted(chunk.text for chunk in units.index.chunks)
    nodes = [
        node["text"] if "text" in node else cut(node["docs"][0], *node["span"])
        for node in data["tree"]
    ]
    assert nodes == [node.text for node in tree.tree.nodes.values()]


def test_a_way_has_the_scores_and_the_budget():
    texts = ["The pier is long. " * 30, "Pears ripen in October. " * 30, "Oak beams. " * 30]
    explorer, units, tree = corpus(texts, questions=["Pears ripen in October."], token_budget=100)
    (way,) = json.loads(Elements(explorer.html).texts[1])["ways"]
    assert way["budget"] == 100
    best, *others = way["units"]
    assert units.index.units[best["unit"]].doc_ids[0].startswith("1-")
    assert best["score"] == max(best["chunks"])
    assert all(one["score"] <= best["score"] for one in others)
    assert 0 < sum(one["read"] for one in way["units"]) <= 100
    assert not best["whole"]
    sizes = [node.tokens for node in tree.tree.nodes.values()]
    assert sum(sizes[row] for row in way["taken"]) <= 100
    assert way["nodes"][way["taken"][0]] == max(way["nodes"])


def test_a_way_has_the_evidence_with_the_hop_that_led_to_it():
    texts = {
        "bread.md": "Bread is baked at dawn.",
        "rig.md": "The ship Corvina was built by Zoe Lind. It has three masts.",
        "zoe.md": "Zoe Lind kept bees at Torrow.",
        "mill.md": "The mill is old. See the [weir](weir.md).",
        "weir.md": "Stones were brought here in 1312.",
        "yard.md": "A builder may live where his ship lies.",
    }
    documents = [Document(name, text, name[:-3]) for name, text in texts.items()]
    units, embed = CorpusIndex(), LsaEmbedder(list(texts.values()))
    run(units.change(upsert=documents), lambda request: embed(request.texts, request.role))

    def found(question, **settings):
        flow = explore(units=units, questions=[question], **settings)
        page = run(flow, lambda request: embed(request.texts, request.role))
        data = json.loads(Elements(page.html).texts[1])
        names = [one["id"] for one in data["documents"]]
        return {
            names[one["place"][0]]: (one, one.get("from") and names[one["from"][0]])
            for one in data["ways"][0]["evidence"]
        }

    ship = found("Where did the builder of the ship Corvina live?", token_budget=34)
    hop, begin = ship["zoe.md"]
    assert (ship["rig.md"][0]["via"], hop["via"], begin) == ("question", "names", "rig.md")
    assert {"Zoe", "Lind", "Zoe Lind"} <= set(hop["names"])
    assert hop["score"] > hop["direct"]
    mill = found("Who owns the old mill?", token_budget=26)
    assert (mill["weir.md"][0]["via"], mill["weir.md"][1]) == ("link", "mill.md")
    assert mill["weir.md"][0]["names"] == []
    assert sum(one["tokens"] for one, _ in mill.values()) <= 26


def test_a_notebook_shows_the_page_in_a_frame_that_is_kept_apart(hostile):
    shown = Elements(hostile[0]._repr_html_())
    ((tag, attributes),) = shown.tags
    assert (tag, attributes["sandbox"]) == ("iframe", "allow-scripts")
    assert attributes["srcdoc"] == hostile[0].html


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Pass units, a tree or both"),
        ({"units": CorpusIndex(), "questions": "Why?"}, "questions must be"),
        ({"units": CorpusIndex(), "questions": [" "]}, "questions must be"),
        ({"units": CorpusIndex(), "token_budget": 0}, "token_budget must be"),
        ({"units": CorpusIndex(), "k": 0}, "k must be"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(InvalidParameterError, match=message):
        run(explore(**arguments), HashEmbedder())


def test_a_page_that_cannot_be_written_is_a_typed_error(hostile, tmp_path):
    with pytest.raises(InvalidParameterError, match="path must be"):
        hostile[0].save(tmp_path)
    page = hostile[0].save(tmp_path / "page.html")
    assert page.stat().st_mode & 0o777 == 0o600
    assert page.read_text("ascii") == hostile[0].html


def test_nothing_of_the_corpus_runs_in_a_browser(hostile, show):
    explorer, units, tree = hostile
    page = show(explorer)
    shown = set()
    for number in range(len(tree.tree.nodes)):
        page.evaluate(f"location.hash = '#tree/{number}'")
        page.wait_for_function(f"state.node === {number}")
        shown.add(page.inner_text("aside .text"))
    for number in range(len(units.index.units)):
        page.evaluate(f"location.hash = '#units/{number}'")
        page.wait_for_function(f"state.unit === {number}")
        page.click("aside .list button")
    page.click("#tab-question")
    for passage in page.query_selector_all("[data-via]"):
        passage.click()
        shown.add(page.inner_text("aside .text"))
    assert any("window.ran = 1" in text for text in shown)
    assert any("onerror" in text for text in shown)
    assert page.evaluate("typeof window.ran") == "undefined"
    assert page.evaluate("document.querySelectorAll('iframe, img, a').length") == 0
    assert page.evaluate("document.scripts.length") == 2
    assert page.title() == HOSTILE[0]


def test_the_policy_refuses_other_scripts(hostile, show):
    page = show(hostile[0])
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'),"
        "{textContent: 'window.ran = 9'}))"
    )
    assert page.evaluate("typeof window.ran") == "undefined"


def test_the_tree_is_walked_by_keys(show):
    explorer, _, tree = corpus([f"Page {n} tells of thing {n}. " * 9 for n in range(12)])
    page = show(explorer)
    page.focus("canvas")
    for key in ("ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    row = page.evaluate("state.node")
    root = tree.tree.nodes[tree.tree.roots[0]]
    assert row == tree.tree.row[root.children[0]]
    page.keyboard.press("ArrowRight")
    assert page.evaluate("state.node") == tree.tree.row[root.children[1]]
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == f"#tree/{page.evaluate('state.node')}"
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("state.node") == tree.tree.row[root.id]
    page.focus("#tab-tree")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("state.tab") == "units"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_the_screen_and_follows_its_colours(hostile, show, scheme, width):
    page = show(
        hostile[0], "#tree/0", color_scheme=scheme, viewport={"width": width, "height": 800}
    )
    for tab in ("tree", "units", "question"):
        page.click(f"#tab-{tab}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", back))) < 200) == (scheme == "dark")


def test_a_question_is_what_is_seen_first_and_fits_a_phone(show):
    long = "The harbour was built by Anna and is told of at length. " * 2_000
    texts = [f"{long} [b]({'x' * 300})", *[f"Page {n} of ships." for n in range(30)]]
    page = show(corpus(texts, questions=["Who built the harbour?", "y" * 400])[0], **PHONE)
    assert page.evaluate("state.tab") == "question"
    assert page.evaluate("Math.max(...units.map((unit) => unit.chunks.length))") > 100
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.evaluate("state.way = 1; open('question')")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.click("#tab-units")
    page.reload()
    assert page.evaluate("state.tab") == "units"


def test_without_a_question_the_tree_is_seen_first(show):
    assert show(corpus(["One."])[0]).evaluate("state.tab") == "tree"


def test_a_unit_is_named_by_the_page_that_was_found_in_it(show):
    documents = [
        Document("a.md", "Apples are red. See [b](b.md).", "Apples"),
        Document("b.md", "The bell was cast in bronze in 1312.", "The bell"),
    ]
    embedder = LsaEmbedder([document.text for document in documents])
    units = CorpusIndex()
    question = "When was the bell cast in bronze?"

    def answer(request):
        return embedder(request.texts, request.role)

    run(units.change(upsert=documents), answer)
    page = show(run(explore(units=units, questions=[question]), answer))
    assert "The bell, Apples" in page.inner_text("section .way >> nth=0")
    assert page.inner_text("aside h2") == "The bell, Apples"


def test_a_page_is_known_from_other_files(hostile, tmp_path):
    page = hostile[0].save(tmp_path / "page.html")
    assert is_page(page)
    (tmp_path / "other.html").write_text('<!doctype html>\n<html lang="en">\n<p>My page</p>')
    for name in ("other.html", "none.html", "."):
        assert not is_page(tmp_path / name)


def test_many_nodes_are_drawn_by_few_elements(show):
    texts = [f"Page {n} tells of {n * 7} and {n * 13}. " * 60 for n in range(400)]
    explorer, _, tree = corpus(texts)
    assert len(tree.tree) > 10_000
    page = show(explorer)
    assert page.evaluate("boxes.length") < 6_000
    page.click("#tab-units")
    assert page.evaluate("document.querySelectorAll('*').length") < 400
