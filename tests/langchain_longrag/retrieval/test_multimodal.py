"""Stored images and captions in LangChain: found by any embeddings, else made by any runnable."""

import asyncio
import base64
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from pydantic import Field, PrivateAttr

from langchain_longrag import MediaFinder
from longrag.errors import (
    EmbeddingError,
    GenerationError,
    IndexFormatError,
    InvalidParameterError,
)
from tests.images import ColourEmbedder, flag

THRESHOLDS = {"image_threshold": 0.9, "caption_threshold": 0.9}
both = pytest.mark.parametrize("how", ["sync", "async"])


class Colours(Embeddings):
    """Has the methods of OpenCLIP's embeddings, and like these none that is async."""

    def __init__(self):
        self.uris = []
        self.threads = set()

    def embed_documents(self, texts):
        raise AssertionError(texts)

    def embed_query(self, text):
        return ColourEmbedder().embed_texts([text])[0].tolist()

    def embed_image(self, uris):
        self.uris += uris
        self.threads.add(threading.get_ident())
        return ColourEmbedder().embed_images([Path(uri) for uri in uris]).tolist()


class AsyncColours(Colours):
    """Has async calls as well."""

    def __init__(self):
        super().__init__()
        self.awaited = []

    async def aembed_query(self, text):
        self.awaited.append("query")
        return self.embed_query(text)

    async def aembed_image(self, uris):
        self.awaited.append("image")
        return self.embed_image(uris)


class Seeing(BaseChatModel):
    """A chat model that answers with what it is given."""

    answer: AIMessage = Field(default_factory=lambda: AIMessage(" Blue. "))
    _asked: list = PrivateAttr(default_factory=list)

    @property
    def asked(self):
        return self._asked

    @property
    def _llm_type(self):
        return "seeing"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        self._asked.append(messages)
        return ChatResult(generations=[ChatGeneration(message=self.answer)])


def block(image):
    return {
        "type": "image",
        "base64": base64.b64encode(image).decode(),
        "mime_type": "image/png",
    }


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("red", "green", "blue", "green-blue"):
        (folder / f"{name}.png").write_bytes(flag(*name.split("-")))
    return folder


@pytest.fixture
def documents(pictures):
    return [
        Document("A red square.", id="r", metadata={"image": str(pictures / "red.png"), "page": 4}),
        Document("A green square.", id="g", metadata={"image": pictures / "green.png"}),
        Document("Half red, half blue.", id="rb", metadata={"image": flag("red", "blue")}),
        Document("", id="b", metadata={"image": block(flag("blue"))}),
    ]


def never(query):
    raise AssertionError(query)


def finder_of(documents, embedding=None, **settings):
    given = {"image_generator": never, "caption_generator": never, **THRESHOLDS, **settings}
    return MediaFinder.from_documents(documents, embedding or Colours(), **given)


async def asked(finder, query, how, config=None):
    return finder.invoke(query, config) if how == "sync" else await finder.ainvoke(query, config)


@both
async def test_a_text_finds_the_stored_image_that_is_near_enough(documents, pictures, how):
    embedding = AsyncColours()
    if how == "sync":
        finder = finder_of(documents, embedding)
    else:
        finder = await MediaFinder.afrom_documents(
            documents, embedding, image_generator=never, **THRESHOLDS
        )
    found = await asked(finder, "a red square", how)
    assert found == Document(
        "A red square.",
        id="r",
        metadata={
            "image": str(pictures / "red.png"),
            "page": 4,
            "generated": False,
            "similarity": 1.0,
        },
    )
    for query in ("red and blue", HumanMessage("red, blue"), {"type": "text", "text": "blue red"}):
        found = await asked(finder, query, how)
        assert (found.id, found.metadata["image"]) == ("rb", flag("red", "blue"))
    assert embedding.awaited == ([] if how == "sync" else ["image", *["query"] * 4])


@pytest.mark.parametrize(
    "as_block",
    [
        lambda path: {"type": "image", "url": str(path)},
        lambda path: {"type": "image", "url": path.as_uri()},
        lambda path: block(path.read_bytes()),
        lambda path: {"type": "image_url", "image_url": {"url": data_url(path)}},
        lambda path: {"type": "image", "url": data_url(path)},
        lambda path: {"type": "image_url", "image_url": data_url(path)},
        lambda path: {"type": "input_image", "image_url": data_url(path)},
        lambda path: {"type": "media", "mime_type": "image/png", "data": path.read_bytes()},
        lambda path: {"type": "media", "mime_type": "image/png", "data": data_url(path)[22:]},
        lambda path: HumanMessage(
            [
                {"type": "text", "text": "What is red?"},
                {"type": "media", "mime_type": "image/png", "data": data_url(path)[22:]},
            ]
        ),
        lambda path: {"type": "image", "source_type": "url", "url": str(path)},
        lambda path: HumanMessage([{"type": "text", "text": "What?"}, block(path.read_bytes())]),
    ],
)
@both
async def test_an_image_in_any_form_finds_the_stored_caption(documents, pictures, as_block, how):
    found = await asked(finder_of(documents), as_block(pictures / "green.png"), how)
    assert (found.page_content, found.id, found.metadata["similarity"]) == (
        "A green square.",
        "g",
        1.0,
    )
    assert found.metadata["image"] == str(pictures / "green.png")


def data_url(path):
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def test_images_are_given_to_embeddings_as_files_and_these_are_removed(documents, pictures):
    embedding = Colours()
    finder = finder_of(documents, embedding)
    finder.invoke(block(flag("green")))
    assert embedding.uris[:2] == [str(pictures / "red.png"), str(pictures / "green.png")]
    assert [Path(uri).exists() for uri in embedding.uris] == [True, True, False, False, False]


async def test_embeddings_without_async_calls_have_a_thread_of_their_own(documents):
    embedding = Colours()
    await MediaFinder.afrom_documents(documents, embedding, **THRESHOLDS)
    assert threading.get_ident() not in embedding.threads
    assert len(embedding.threads) == 1


def test_what_the_caller_does_to_documents_reaches_nothing(documents):
    finder = finder_of(documents)
    documents[0].metadata["page"] = 5
    finder.invoke("red").metadata["page"] = 6
    assert finder.invoke("red").metadata["page"] == 4


@pytest.mark.parametrize(
    "as_made",
    [
        str,
        Path,
        Path.read_bytes,
        lambda path: block(path.read_bytes()),
        lambda path: {"type": "image_url", "image_url": {"url": data_url(path)}},
        lambda path: AIMessage(["Here it is.", block(path.read_bytes())]),
    ],
)
@both
async def test_a_function_may_return_an_image_in_any_form(documents, pictures, as_made, how):
    texts = []

    def draw(text):
        texts.append(text)
        return as_made(pictures / "green-blue.png")

    found = await asked(finder_of(documents, image_generator=draw), "green and blue", how)
    image = found.metadata.pop("image")
    assert (image if isinstance(image, bytes) else Path(image).read_bytes()) == flag(
        "green", "blue"
    )
    assert (found.page_content, found.id, texts) == ("green and blue", None, ["green and blue"])
    assert found.metadata == {"generated": True, "similarity": pytest.approx(0.5**0.5, abs=1e-6)}


@both
async def test_a_chat_model_draws_and_describes(documents, pictures, how):
    artist = Seeing(answer=AIMessage([block(flag("green", "blue"))]))
    critic = Seeing()
    finder = finder_of(
        documents,
        image_generator=artist,
        caption_generator=critic.with_config(tags=["critic"]),
        caption_prompt="描述图片。",
    )
    found = await asked(finder, "green and blue", how)
    assert found.metadata["image"] == flag("green", "blue")
    assert [[message.text for message in messages] for messages in artist.asked] == [
        ["green and blue"]
    ]
    for image in (block(flag("blue")), {"type": "image", "url": str(pictures / "blue.png")}):
        found = await asked(finder, image, how)
        assert (found.page_content, found.metadata["generated"]) == ("Blue.", True)
    # A file is sent as what is in it, since no model can open it.
    prompt = HumanMessage([{"type": "text", "text": "描述图片。"}, block(flag("blue"))])
    assert critic.asked == [[prompt], [prompt]]


@both
async def test_functions_are_given_the_block_of_an_image(documents, how):
    blocks = []

    def describe(image):
        blocks.append(image)
        return "A photo."

    class Anywhere(Colours):
        def embed_image(self, uris):
            return [[1.0] + [0.0] * 63 for _ in uris]

    finder = finder_of(documents[:1], Anywhere(), caption_generator=describe, caption_threshold=1)
    finder._embedding.embed_image = lambda uris: [[0.0] * 63 + [1.0] for _ in uris]
    queries = [
        {"type": "image", "url": "https://example.org/a.png"},
        block(b"\xff\xd8\xff\xe0"),
        block(b"GIF89a"),
        block(b"????"),
    ]
    for query in queries:
        assert (await asked(finder, query, how)).page_content == "A photo."
    assert blocks[0] == {"type": "image", "url": "https://example.org/a.png"}
    assert [one["mime_type"] for one in blocks[1:]] == [
        "image/jpeg",
        "image/gif",
        "application/octet-stream",
    ]


async def test_functions_may_be_async(documents):
    async def draw(text):
        await asyncio.sleep(0)
        return flag("green", "blue")

    finder = finder_of(documents, image_generator=draw)
    found = await finder.ainvoke("green and blue")
    assert found.metadata["image"] == flag("green", "blue")
    with pytest.raises(TypeError, match="Cannot invoke a coroutine function synchronously"):
        finder.invoke("green and blue")


class Runs(BaseCallbackHandler):
    """Keeps the names, parents, tags and metadata of the runs it is told of."""

    def __init__(self):
        self.names = {}
        self.chains, self.models = [], []

    def on_chain_start(self, serialized, inputs, *, run_id, parent_run_id=None, **kwargs):
        self.names[run_id] = kwargs["name"]
        self.chains.append((kwargs["name"], self.names.get(parent_run_id)))

    def on_chat_model_start(self, serialized, messages, *, run_id, parent_run_id=None, **kwargs):
        self.models.append((self.names[parent_run_id], kwargs["tags"], kwargs["metadata"]["who"]))


@both
async def test_callbacks_and_config_reach_the_generator(documents, how):
    runs = Runs()
    chain = RunnablePassthrough() | finder_of(
        documents, caption_generator=Seeing(), image_generator=lambda text: flag("blue")
    )
    config = {"callbacks": [runs], "tags": ["mine"], "metadata": {"who": "me"}, "run_name": "top"}
    await asked(chain, block(flag("blue")), how, config)
    assert runs.models == [("MediaFinder", ["mine"], "me")]
    await asked(chain, "green and blue", how, config)
    assert ("MediaFinder", "top") in runs.chains
    # A function is a step of its own in traces.
    assert runs.chains[-1][1] == "MediaFinder"


async def test_batches_give_what_single_calls_give(documents):
    finder = finder_of(documents, image_generator=lambda text: text.encode())
    texts = ["red", "green", "red and blue", "green and blue", "nothing"]
    single = [finder.invoke(text) for text in texts]
    assert finder.batch(texts) == single
    assert await finder.abatch(texts) == single
    assert [document.metadata["generated"] for document in single] == [False] * 3 + [True] * 2


def test_it_composes_with_other_runnables(documents):
    chain = finder_of(documents) | RunnableLambda(lambda document: document.page_content)
    assert chain.invoke("red") == "A red square."


@both
async def test_what_was_made_is_kept_and_stays_marked(documents, tmp_path, how):
    finder = finder_of(
        documents,
        image_generator=lambda _: flag("green", "blue"),
        caption_generator=lambda _: "Blue.",
        keep=True,
    )
    assert (await asked(finder, "green and blue", how)).id == "generated-4"
    assert (await asked(finder, block(flag("blue")), how)).id == "generated-5"
    finder.save(tmp_path / "saved")
    loaded = MediaFinder.load(
        tmp_path / "saved",
        Colours(),
        image_generator=never,
        caption_generator=never,
        **THRESHOLDS,
    )
    for kept in (finder, loaded):
        again = await asked(kept, "blue, green", how)
        assert (again.id, again.page_content) == ("generated-4", "green and blue")
        assert (again.metadata["generated"], again.metadata["similarity"]) == (True, 1.0)
        caption = await asked(kept, block(flag("blue")), how)
        assert (caption.id, caption.page_content, caption.metadata["generated"]) == (
            "generated-5",
            "Blue.",
            True,
        )


@both
async def test_a_saved_finder_answers_the_same_without_embedding_again(documents, tmp_path, how):
    finder = finder_of(documents)
    finder.save(tmp_path / "saved")
    embedding = Colours()
    loaded = MediaFinder.load(
        tmp_path / "saved", embedding, image_generator=never, caption_generator=never, **THRESHOLDS
    )
    for query in ("red", "green", "red and blue", "blue"):
        assert await asked(loaded, query, how) == finder.invoke(query)
    assert embedding.uris == []
    image = flag("green", "blue")
    await loaded.aadd_documents([Document("Both.", id="n", metadata={"image": image})])
    assert (await asked(loaded, block(image), how)).page_content == "Both."


def test_what_cannot_be_saved_or_read_is_refused(documents, tmp_path):
    class Narrow(Colours):
        def embed_query(self, text):
            return [1.0, 0.0]

    finder_of(documents).save(tmp_path / "saved")
    narrow = MediaFinder.load(tmp_path / "saved", Narrow(), image_generator=never, **THRESHOLDS)
    with pytest.raises(EmbeddingError, match="2 values each, where 64 are expected"):
        narrow.invoke("red")
    odd = finder_of([Document("x", metadata={"image": flag("red"), "odd": object()})])
    with pytest.raises(InvalidParameterError, match="JSON values"):
        odd.save(tmp_path / "odd")
    assert not (tmp_path / "odd").exists()
    (tmp_path / "saved" / "manifest.json").unlink()
    with pytest.raises(IndexFormatError, match="There is no saved index"):
        MediaFinder.load(tmp_path / "saved", Colours(), **THRESHOLDS)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "returned None, which is no image"),
        ("", "returned '', which is no image"),
        (7, "returned 7, which is no image"),
        (AIMessage("I cannot draw."), "I cannot draw.', .*which is no image"),
    ],
)
@both
async def test_a_generator_that_draws_nothing_is_an_error(documents, made, message, how):
    finder = finder_of(documents, image_generator=lambda _: made, keep=True)
    with pytest.raises(GenerationError, match=message):
        await asked(finder, "green and blue", how)
    assert len(finder._store) == 4


@both
async def test_a_generator_that_describes_nothing_is_an_error(documents, how):
    for silent in (Seeing(answer=AIMessage(" ")), lambda image: None, lambda image: b"Blue."):
        with pytest.raises(GenerationError, match="which is no caption"):
            await asked(finder_of(documents, caption_generator=silent), block(flag("blue")), how)


@both
async def test_errors_of_models_and_files_are_raised(documents, pictures, how):
    def failing(query):
        raise TimeoutError("no generator")

    finder = finder_of(documents, image_generator=failing)
    with pytest.raises(TimeoutError, match="no generator"):
        await asked(finder, "green and blue", how)
    missing = str(pictures / "missing.png")
    with pytest.raises(FileNotFoundError, match=r"missing\.png"):
        await asked(finder, {"type": "image", "url": missing}, how)
    with pytest.raises(FileNotFoundError, match=r"missing\.png"):
        finder.add_documents([Document("x", metadata={"image": missing})])
    assert len(finder._store) == 4


@both
async def test_an_empty_finder_generates_and_embeds_nothing(how):
    finder = finder_of([], image_generator=lambda text: b"x")
    found = await asked(finder, "red", how)
    assert (found.metadata["generated"], found.metadata["similarity"]) == (True, None)
    assert finder._embedding.uris == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"image_threshold": 1.5}, "image_threshold must be a cosine"),
        ({"caption_threshold": float("nan")}, "caption_threshold must be a cosine"),
        ({"image_generator": "draw"}, "image_generator must be a runnable or a function"),
        ({"caption_generator": 3}, "caption_generator must be a runnable or a function"),
        ({"embedding": object()}, "embedding must be an object with embed_query and embed_image"),
    ],
)
def test_settings_are_checked(changed, message):
    given = {"embedding": Colours(), **THRESHOLDS, **changed}
    with pytest.raises(InvalidParameterError, match=message):
        MediaFinder(**given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([Document("x", metadata={})], r"metadata\['image'\] must be a path, a URL, bytes"),
        ([Document("x", metadata={"image": 3})], r"metadata\['image'\] must be"),
        ([Document("x", metadata={"image": ""})], r"metadata\['image'\] must be"),
        (
            [Document("x", metadata={"image": {"type": "text", "text": "x"}})],
            r"metadata\['image'\] must be",
        ),
        (
            [Document("x", id="r", metadata={"image": "x.png"})] * 2,
            r"items\[1\].id must be an id that no other item has",
        ),
    ],
)
async def test_a_document_that_is_refused_leaves_the_finder_as_it_was(given, message):
    finder = finder_of([])
    with pytest.raises(InvalidParameterError, match=message):
        finder.add_documents(given)
    with pytest.raises(InvalidParameterError, match=message):
        await finder.aadd_documents(given)
    assert len(finder._store) == 0


@pytest.mark.parametrize("written", [lambda path: path.as_uri(), data_url])
def test_an_image_of_a_document_may_be_a_url_of_a_file_or_of_its_data(pictures, written):
    document = Document("Green.", metadata={"image": written(pictures / "green.png")})
    finder = finder_of([document])
    assert finder.invoke("green").page_content == "Green."
    assert finder.invoke(block(flag("green"))).page_content == "Green."


def test_images_may_stand_under_another_key():
    finder = finder_of([Document("x", metadata={"photo": flag("red")})], image_key="photo")
    assert finder.invoke("red").metadata["photo"] == flag("red")


@both
async def test_an_input_that_cannot_be_answered_is_refused(documents, how):
    two = HumanMessage([block(flag("red")), block(flag("blue"))])
    text = {"type": "text", "text": "red"}
    for query, message in (
        (" ", "input must be a text that is not blank"),
        (None, "input must be a text"),
        ({}, "input must be a text"),
        ({"input": "red"}, "input must be a text"),
        (HumanMessage([text, {"inline_data": {"data": "aGk="}}]), "input must be a text"),
        (HumanMessage([text, {"type": "file", "file_id": "f"}]), "input must be a text"),
        (two, "Ask with one image or a text, got 2 images"),
        ({"type": "image", "file_id": "f"}, "Give an image by its url or in base64"),
        ({"type": "image", "base64": "?", "mime_type": "image/png"}, "an image in base64"),
    ):
        with pytest.raises(InvalidParameterError, match=message):
            await asked(finder_of(documents), query, how)
    finder = MediaFinder(Colours(), **THRESHOLDS)
    for query, message in (("red", "image_generator"), (block(b"x"), "caption_generator")):
        with pytest.raises(InvalidParameterError, match=f"{message} must be a generator, got None"):
            await asked(finder, query, how)


def test_documents_without_ids_may_be_added_by_several_threads():
    finder = finder_of([])

    def add(thread):
        for number in range(10):
            image = flag(*("red", "green", "blue")[: 1 + number % 3])
            finder.add_documents([Document(f"{thread} {number}", metadata={"image": image})] * 2)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    ids = [item.id for item in finder._store.items]
    assert len(ids) == len(set(ids)) == 80
