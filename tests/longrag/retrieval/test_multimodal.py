"""What is near enough is returned from the store, all else is generated and says so."""

import asyncio
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrag.errors import (
    EmbeddingError,
    GenerationError,
    IndexFormatError,
    InvalidParameterError,
)
from longrag.indexing import storage
from longrag.indexing.storage import save_arrays
from longrag.retrieval import FoundMedia, MediaIndex, MediaItem
from tests.images import COLOURS, ColourEmbedder, flag


def items():
    return [
        MediaItem("r", flag("red"), "A red square.", metadata={"source": "page 4"}),
        MediaItem("g", flag("green"), "A green square."),
        MediaItem("rb", flag("red", "blue"), "Half red, half blue."),
        MediaItem("b", flag("blue")),
    ]


def never(query):
    raise AssertionError(query)


def test_the_images_of_the_tests_are_real():
    image = pytest.importorskip("PIL.Image")
    drawn = image.open(io.BytesIO(flag("red", "green", "blue")))
    assert drawn.size == (12, 12)
    assert [drawn.getpixel((x, 5)) for x in (0, 5, 11)] == [*COLOURS.values()][:3]


def test_a_text_finds_the_stored_image_that_is_near_enough():
    index = MediaIndex(ColourEmbedder(), items())
    found = index.find_or_generate("a red square", wanted="image", threshold=0.9, generate=never)
    assert found == FoundMedia(flag("red"), generated=False, item=items()[0], similarity=1.0)
    assert found.item.metadata == {"source": "page 4"}
    both = index.find_or_generate("red and blue", wanted="image", threshold=0.9, generate=never)
    assert both.item.id == "rb"
    assert index.find("一面红旗", wanted="image", threshold=0.9).item.id == "r"


def test_an_image_finds_the_stored_caption_that_is_near_enough():
    index = MediaIndex(ColourEmbedder(), items())
    mostly_red = flag("red", "red", "red", "blue")
    found = index.find_or_generate(mostly_red, wanted="caption", threshold=0.9, generate=never)
    assert (found.value, found.generated, found.item.id) == ("A red square.", False, "r")
    assert found.similarity == pytest.approx(3 / np.sqrt(10), abs=1e-6)


def test_an_image_without_a_caption_has_none_to_give():
    index = MediaIndex(ColourEmbedder(), items())
    found = index.find_or_generate(
        flag("blue"), wanted="caption", threshold=0.9, generate=lambda image: "Blue."
    )
    assert (found.value, found.generated, found.item) == ("Blue.", True, None)
    assert found.similarity == pytest.approx(np.sqrt(0.5), abs=1e-6)
    assert index.find("blue", wanted="image", threshold=1.0).item.id == "b"


def test_what_is_not_near_enough_is_generated_and_marked():
    index = MediaIndex(ColourEmbedder(), items())
    asked = []

    def draw(text):
        asked.append(text)
        return flag("green", "blue")

    found = index.find_or_generate("green and blue", wanted="image", threshold=0.95, generate=draw)
    assert asked == ["green and blue"]
    assert (found.value, found.generated, found.item) == (flag("green", "blue"), True, None)
    assert found.similarity == pytest.approx(np.sqrt(0.5), abs=1e-6)
    assert len(index) == 4


def test_what_was_generated_can_be_kept_and_stays_marked():
    index = MediaIndex(ColourEmbedder(), items())
    made = index.find_or_generate(
        "green and blue",
        wanted="image",
        threshold=0.95,
        generate=lambda text: flag("green", "blue"),
        keep=True,
    )
    assert made.item == MediaItem(
        "generated-4", flag("green", "blue"), "green and blue", generated=True
    )
    again = index.find_or_generate("blue, green", wanted="image", threshold=0.95, generate=never)
    assert (again.item, again.generated, again.similarity) == (made.item, True, 1.0)
    caption = index.find(flag("green", "blue"), wanted="caption", threshold=0.95)
    assert (caption.value, caption.generated) == ("green and blue", True)


def test_a_generated_caption_can_be_kept_with_its_image():
    taken = MediaItem("generated-1", flag("green"), "Green.")
    index = MediaIndex(ColourEmbedder(), [taken])
    made = index.find_or_generate(
        flag("blue"), wanted="caption", threshold=0.5, generate=lambda image: " Blue. ", keep=True
    )
    assert made.item == MediaItem("generated-2", flag("blue"), "Blue.", generated=True)
    assert made.similarity == 0
    assert index.items == (taken, made.item)


def test_an_empty_index_generates_and_embeds_nothing():
    embedder = ColourEmbedder()
    index = MediaIndex(embedder)
    found = index.find_or_generate("red", wanted="image", threshold=-1, generate=lambda text: b"x")
    assert found == FoundMedia(b"x", generated=True, item=None, similarity=None)
    assert index.find(flag("red"), wanted="caption", threshold=-1) is None
    assert (embedder.embedded, len(index)) == ([], 0)


def test_a_similarity_of_exactly_the_threshold_is_enough():
    index = MediaIndex(ColourEmbedder(), items())
    _, similarity = index.nearest(flag("red", "red", "red", "blue"), wanted="caption")
    for threshold, hit in ((similarity, True), (similarity + 1e-6, False)):
        found = index.find(flag("red", "red", "red", "blue"), wanted="caption", threshold=threshold)
        assert (found is not None) == hit


def test_images_may_be_paths(tmp_path):
    path = tmp_path / "red.png"
    path.write_bytes(flag("red"))
    index = MediaIndex(ColourEmbedder(), [MediaItem("r", path, "Red.")])
    assert index.find("red", wanted="image", threshold=0.9).value == path
    assert index.find(path, wanted="caption", threshold=0.9).value == "Red."


def test_a_text_that_is_near_nothing_has_no_similarity():
    index = MediaIndex(ColourEmbedder(), items())
    item, similarity = index.nearest("nothing colourful", wanted="image")
    assert (item.id, similarity) == ("r", 0.0)


def test_many_items_can_be_added_to_a_few():
    index = MediaIndex(ColourEmbedder(), items()[:2])
    index.add([MediaItem(str(number), flag("red", "green")) for number in range(50)])
    index.add(items()[3:])
    assert index.find("blue", wanted="image", threshold=1).item.id == "b"
    assert index.find("red, green", wanted="image", threshold=1).item.id == "0"
    assert len(index) == 53


stripes = st.lists(st.sampled_from(["red", "green", "blue"]), min_size=1, max_size=4)


@given(st.lists(stripes, min_size=1, max_size=20), stripes, st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_the_nearest_is_that_of_all_pairs_however_items_came(drawn, query, batch):
    stored = [MediaItem(str(n), flag(*names), "x") for n, names in enumerate(drawn)]
    index = MediaIndex(ColourEmbedder())
    for start in range(0, len(stored), batch):
        index.add(stored[start : start + batch])
    vectors = ColourEmbedder().embed_images([flag(*query), *(it.image for it in stored)])
    unit = vectors / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    cosines = np.round(unit[1:] @ unit[0], 6)
    item, similarity = index.nearest(flag(*query), wanted="caption")
    assert similarity == pytest.approx(cosines.max(), abs=2e-6)
    assert item.id == str(next(n for n, c in enumerate(cosines) if c >= cosines.max() - 2e-6))
    assert index.items == tuple(stored)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (MediaItem("r", flag("red")), r"items\[1\].id must be the id of no other"),
        (MediaItem("n", flag("blue")), r"items\[1\].id must be"),
        (MediaItem("", flag("blue")), r"items\[1\].id must be a string that is not empty"),
        (MediaItem("x", None), r"items\[1\].image must be"),
        (MediaItem("x", flag("red"), None), r"items\[1\].caption must be a string"),
        ("red.png", r"items\[1\] must be a MediaItem, got 'str'"),
    ],
)
def test_an_item_that_is_refused_leaves_the_index_as_it_was(bad, message):
    index = MediaIndex(ColourEmbedder(), items())
    with pytest.raises(InvalidParameterError, match=message):
        index.add([MediaItem("n", flag("blue")), bad])
    assert index.items == tuple(items())
    index.add([MediaItem("n", flag("blue"))])
    assert len(index) == 5


def test_an_image_that_cannot_be_read_leaves_the_index_as_it_was():
    index = MediaIndex(ColourEmbedder(), items())
    with pytest.raises(ValueError, match="not a PNG image"):
        index.add([MediaItem("n", flag("blue")), MediaItem("x", b"GIF89a")])
    assert (len(index), index.find("blue", wanted="image", threshold=1).item.id) == (4, "b")


class Broken(ColourEmbedder):
    def __init__(self, spoil):
        super().__init__()
        self.spoil = spoil

    def embed_images(self, images):
        return self.spoil(super().embed_images(images))


def nan(vectors):
    vectors[-1, 3] = np.nan
    return vectors


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (nan, "need finite values"),
        (lambda v: v[:-1], "3 vectors for 4 images"),
        (lambda v: [["a"]] * len(v), "must be real numbers"),
    ],
)
def test_vectors_that_are_none_are_refused(spoil, message):
    with pytest.raises(EmbeddingError, match=message):
        MediaIndex(Broken(spoil), items())


def test_a_query_of_another_width_or_without_numbers_is_refused():
    index = MediaIndex(ColourEmbedder(), items())
    for vectors, message in (
        (np.ones((1, 3)), "64 are expected"),
        (np.full((1, 64), np.nan), "fin"),
    ):
        index._embedder.embed_texts = lambda texts, vectors=vectors: vectors
        with pytest.raises(EmbeddingError, match=message):
            index.find_or_generate("red", wanted="image", threshold=0, generate=never)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"wanted": "video"}, "wanted must be"),
        ({"threshold": 1.1}, "threshold must be a cosine"),
        ({"threshold": float("nan")}, "threshold must be"),
        ({"threshold": True}, "threshold must be"),
        ({"generate": None}, "generate must be a function"),
        ({"query": " "}, "query must be a text that is not blank"),
        ({"query": b"red"}, "query must be a text"),
    ],
)
def test_settings_are_checked(changed, message):
    index = MediaIndex(ColourEmbedder(), items())
    given = {"query": "red", "wanted": "image", "threshold": 0.5, "generate": never, **changed}
    with pytest.raises(InvalidParameterError, match=message):
        index.find_or_generate(given.pop("query"), **given)


@pytest.mark.parametrize(
    ("wanted", "query", "made", "message"),
    [
        ("image", "red", None, "returned None, which is no image"),
        ("caption", flag("red"), None, "which is no caption"),
        ("caption", flag("red"), "  ", "which is no caption"),
        ("caption", flag("red"), b"Red.", "which is no caption"),
    ],
)
def test_a_generator_that_gives_nothing_is_an_error_and_nothing_is_kept(
    wanted, query, made, message
):
    index = MediaIndex(ColourEmbedder())
    with pytest.raises(GenerationError, match=message):
        index.find_or_generate(
            query, wanted=wanted, threshold=0.5, generate=lambda _: made, keep=True
        )
    assert len(index) == 0


def test_the_generators_own_error_is_raised():
    def failing(query):
        raise TimeoutError("no generator")

    with pytest.raises(TimeoutError, match="no generator"):
        MediaIndex(ColourEmbedder()).find_or_generate(
            "red", wanted="image", threshold=0.5, generate=failing
        )


def test_finding_goes_on_while_items_are_added():
    index = MediaIndex(ColourEmbedder(), items())
    wrong = []

    def look():
        for _ in range(200):
            found = index.find("green", wanted="image", threshold=0.99)
            if found is None or found.item.id != "g":
                wrong.append(found)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(200):
        index.add([MediaItem(str(number), flag("blue"))])
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(index) == 204


class AsyncColours(ColourEmbedder):
    """Embeds with calls of its own where a loop runs, and never with the others there."""

    def __init__(self):
        super().__init__()
        self.how = []

    async def aembed_images(self, images):
        await asyncio.sleep(0)
        self.how.append("images")
        return super().embed_images(images)

    async def aembed_texts(self, texts):
        await asyncio.sleep(0)
        self.how.append("texts")
        return super().embed_texts(texts)


class ThreadColours(ColourEmbedder):
    """Has no async calls; remembers the threads it worked in."""

    def __init__(self):
        super().__init__()
        self.threads = set()

    def embed_images(self, images):
        self.threads.add(threading.get_ident())
        return super().embed_images(images)


QUERIES = [
    ("a red square", "image", 0.9),
    ("green and blue", "image", 0.95),
    (flag("red", "red", "red", "blue"), "caption", 0.9),
    (flag("blue"), "caption", 0.9),
]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("generator", ["sync", "async"])
async def test_async_calls_find_and_make_what_the_others_do(keep, generator):
    def make(query):
        return flag("green", "blue") if isinstance(query, str) else "Made."

    async def make_later(query):
        await asyncio.sleep(0)
        return make(query)

    index, other = MediaIndex(ColourEmbedder(), items()), MediaIndex(AsyncColours())
    await other.aadd(items())
    for query, wanted, threshold in QUERIES:
        settings_ = {"wanted": wanted, "threshold": threshold}
        assert await other.anearest(query, wanted=wanted) == index.nearest(query, wanted=wanted)
        assert await other.afind(query, **settings_) == index.find(query, **settings_)
        found = await other.afind_or_generate(
            query, **settings_, generate=make if generator == "sync" else make_later, keep=keep
        )
        assert found == index.find_or_generate(query, **settings_, generate=make, keep=keep)
    assert other.items == index.items
    assert len(other) == (6 if keep else 4)
    assert set(other._embedder.how) == {"texts", "images"}


async def test_what_is_not_async_has_a_thread_of_its_own():
    made_in = []

    def describe(image):
        made_in.append(threading.get_ident())
        return "Blue."

    embedder = ThreadColours()
    index = MediaIndex(embedder)
    await index.aadd(items())
    await index.afind_or_generate(flag("blue"), wanted="caption", threshold=0.9, generate=describe)
    assert threading.get_ident() not in {*made_in, *embedder.threads}
    assert len(made_in) == 1


async def test_an_object_whose_call_is_async_generates():
    class Draws:
        async def __call__(self, text):
            await asyncio.sleep(0)
            return flag("blue")

    found = await MediaIndex(ColourEmbedder()).afind_or_generate(
        "blue", wanted="image", threshold=0.9, generate=Draws()
    )
    assert found.value == flag("blue")


def test_an_async_generator_is_refused_where_nothing_awaits_it():
    async def draw(text):
        return flag("blue")

    with pytest.raises(InvalidParameterError, match="a function that is not async"):
        MediaIndex(ColourEmbedder()).find_or_generate(
            "blue", wanted="image", threshold=0.9, generate=draw
        )


async def test_a_generator_that_fails_or_gives_nothing_does_so_in_async_calls():
    async def failing(query):
        raise TimeoutError("no generator")

    index = MediaIndex(ColourEmbedder(), items())
    arguments = {"wanted": "image", "threshold": 0.99, "keep": True}
    with pytest.raises(TimeoutError, match="no generator"):
        await index.afind_or_generate("green and blue", generate=failing, **arguments)
    with pytest.raises(GenerationError, match="returned None"):
        await index.afind_or_generate("green and blue", generate=lambda text: None, **arguments)
    with pytest.raises(InvalidParameterError, match="threshold"):
        await index.afind("red", wanted="image", threshold=2)
    assert len(index) == 4


def test_an_image_that_is_none_or_blank_is_no_query():
    index = MediaIndex(ColourEmbedder(), items())
    for query in (None, " "):
        with pytest.raises(InvalidParameterError, match="query must be an image"):
            index.nearest(query, wanted="caption")


def test_a_kept_image_that_cannot_be_embedded_is_not_kept():
    index = MediaIndex(ColourEmbedder(), items())
    with pytest.raises(ValueError, match="not a PNG image"):
        index.find_or_generate(
            "green and blue", wanted="image", threshold=0.99, generate=lambda _: b"x", keep=True
        )
    assert index.items == tuple(items())


class Blank(ColourEmbedder):
    """Sees nothing in anything."""

    def embed_images(self, images):
        return np.zeros((len(images), 64))


def test_zero_vectors_are_similar_to_nothing_and_the_first_of_them_wins():
    index = MediaIndex(Blank(), items())
    item, similarity = index.nearest("red", wanted="image")
    assert (item.id, similarity) == ("r", 0.0)
    assert index.find(flag("green"), wanted="caption", threshold=1e-6) is None
    assert index.find(flag("green"), wanted="caption", threshold=0).item.id == "r"


def saved(tmp_path):
    index = MediaIndex(ColourEmbedder(), items())
    index.save(tmp_path / "media")
    return tmp_path / "media"


def test_a_saved_index_finds_the_same_without_embedding_again(tmp_path):
    (tmp_path / "red.png").write_bytes(flag("red"))
    stored = [
        *items(),
        MediaItem(
            "path", tmp_path / "red.png", "红旗 \ud800", metadata={"a": [1, None, {"b": 2.5}]}
        ),
        MediaItem("text", str(tmp_path / "red.png"), generated=True),
    ]
    index = MediaIndex(ColourEmbedder(), stored)
    index.save(tmp_path / "media")
    embedder = ColourEmbedder()
    for mmap in (True, False):
        loaded = MediaIndex.load(tmp_path / "media", embedder, mmap=mmap)
        assert loaded.items == tuple(stored)
        assert [type(item.image) for item in loaded.items] == [type(item.image) for item in stored]
        assert embedder.embedded == []
        np.testing.assert_array_equal(loaded._store._unit[:6], index._store._unit[:6])
    for query, wanted, threshold in QUERIES:
        asked = {"wanted": wanted, "threshold": threshold}
        assert loaded.find(query, **asked) == index.find(query, **asked)


def test_a_loaded_index_grows_and_can_be_saved_again(tmp_path):
    folder = saved(tmp_path)
    index = MediaIndex.load(folder, ColourEmbedder())
    with pytest.raises(InvalidParameterError, match="the id of no other"):
        index.add([MediaItem("r", flag("blue"))])
    index.add([MediaItem("gb", flag("green", "blue"), "Both.")])
    index.save(folder)
    again = MediaIndex.load(folder, ColourEmbedder())
    assert again.items == (*items(), MediaItem("gb", flag("green", "blue"), "Both."))
    assert again.find("green and blue", wanted="image", threshold=0.99).item.id == "gb"


def test_an_empty_index_can_be_saved_and_filled_later(tmp_path):
    MediaIndex(ColourEmbedder()).save(tmp_path / "media")
    index = MediaIndex.load(tmp_path / "media", ColourEmbedder())
    assert index.nearest("red", wanted="image") is None
    index.add(items())
    assert index.find("red", wanted="image", threshold=1).item.id == "r"


def test_equal_indexes_are_saved_as_equal_files(tmp_path):
    first, second = saved(tmp_path / "a"), saved(tmp_path / "b")
    files = [
        {file.name: file.read_bytes() for file in folder.iterdir()} for folder in (first, second)
    ]
    assert files[0] == files[1]
    assert len(files[0]) == 4


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (MediaItem("x", np.zeros((8, 8, 3))), "the image of item 'x' must be a path, a string or"),
        (MediaItem("x", bytearray(flag("red"))), "got 'bytearray'. Pass convert"),
        (MediaItem("x", b"", metadata={"when": {1, 2}}), "the metadata of item 'x' must be JSON"),
        (MediaItem("x", b"", metadata={"pair": (1, 2)}), "JSON values that are read as they were"),
        (MediaItem("x", b"", metadata={"nan": float("nan")}), "the metadata of item 'x'"),
        (MediaItem("x", b"", metadata={1: "one"}), "the metadata of item 'x'"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path, bad, message):
    class Anything(ColourEmbedder):
        def embed_images(self, images):
            return np.ones((len(images), 64))

    folder = saved(tmp_path)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    index = MediaIndex(Anything(), [*items(), bad])
    for path in (folder, tmp_path / "new"):
        with pytest.raises(InvalidParameterError, match=message):
            index.save(path)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert not (tmp_path / "new").exists()


def test_images_in_memory_are_saved_as_what_they_are_converted_to(tmp_path):
    image = pytest.importorskip("PIL.Image")

    class Pictures(ColourEmbedder):
        def embed_images(self, images):
            return super().embed_images([encoded(picture) for picture in images])

    def encoded(picture):
        # Pillow may filter the rows, which the embedder of these tests does not undo.
        return flag(next(n for n, c in COLOURS.items() if c == picture.getpixel((0, 0))))

    def decoded(data):
        return image.open(io.BytesIO(data)).convert("RGB")

    index = MediaIndex(Pictures(), [MediaItem("r", decoded(flag("red")), "Red.")])
    index.save(tmp_path / "m", convert=lambda item: replace(item, image=encoded(item.image)))
    loaded = MediaIndex.load(
        tmp_path / "m", Pictures(), convert=lambda item: replace(item, image=decoded(item.image))
    )
    found = loaded.find("red", wanted="image", threshold=0.9)
    assert found.value.getpixel((3, 3)) == COLOURS["red"]
    assert (found.item.id, found.item.caption) == ("r", "Red.")


async def test_an_embedder_of_another_width_is_refused_at_the_first_query(tmp_path):
    class Narrow(ColourEmbedder):
        def _histogram(self, pixels):
            return super()._histogram(pixels)[:32]

        def embed_texts(self, texts):
            return np.ones((len(texts), 32))

    index = MediaIndex.load(saved(tmp_path), Narrow())
    for query, wanted in (("red", "image"), (flag("red"), "caption")):
        with pytest.raises(EmbeddingError, match="have 32 values each, where 64 are expected"):
            index.nearest(query, wanted=wanted)
        with pytest.raises(EmbeddingError, match="Use one embedding model"):
            await index.anearest(query, wanted=wanted)
    with pytest.raises(EmbeddingError, match="32 values"):
        index.add([MediaItem("n", flag("red"))])
    assert len(index) == 4


def test_a_damaged_or_foreign_folder_is_refused(tmp_path):
    with pytest.raises(IndexFormatError, match="There is no saved index"):
        MediaIndex.load(tmp_path / "nothing", ColourEmbedder())
    folder = saved(tmp_path)
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        file.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
        with pytest.raises(IndexFormatError, match="damaged"):
            MediaIndex.load(folder, ColourEmbedder())
        file.unlink()
        with pytest.raises(IndexFormatError, match="missing"):
            MediaIndex.load(folder, ColourEmbedder())
        file.write_bytes(data)
    assert len(MediaIndex.load(folder, ColourEmbedder())) == 4
    save_arrays(tmp_path / "other", "maxp", 1, {}, {})
    for load_or_save in (
        lambda: MediaIndex.load(tmp_path / "other", ColourEmbedder()),
        lambda: MediaIndex(ColourEmbedder()).save(tmp_path / "other"),
    ):
        with pytest.raises(IndexFormatError, match="of kind 'maxp', not 'media'"):
            load_or_save()


ENTRY = {"id": "r", "caption": "Red.", "generated": False, "metadata": {}, "image": "bytes"}
WHOLE = {
    "vectors": np.ones((1, 2), np.float32),
    "images": np.frombuffer(b"abc", np.uint8),
    "image_ends": np.array([3]),
}


@pytest.mark.parametrize(
    ("arrays", "entries"),
    [
        ({}, []),
        ({}, [ENTRY, ENTRY]),
        ({}, [{**ENTRY, "id": ""}]),
        ({}, [{**ENTRY, "image": "object"}]),
        ({}, [{**ENTRY, "metadata": 3}]),
        ({}, ["r"]),
        ({"vectors": np.ones((2, 2), np.float32)}, [ENTRY]),
        ({"vectors": np.ones((1, 2))}, [ENTRY]),
        ({"vectors": np.ones(1, np.float32)}, [ENTRY]),
        ({"image_ends": np.array([2])}, [ENTRY]),
        ({"image_ends": np.array([5])}, [ENTRY]),
        ({"image_ends": np.array([4, 3]), "vectors": np.ones((2, 2), np.float32)}, [ENTRY] * 2),
        ({"images": np.frombuffer(b"\xff\xff\xff", np.uint8)}, [{**ENTRY, "image": "str"}]),
    ],
)
def test_a_folder_whose_parts_do_not_fit_together_is_refused(tmp_path, arrays, entries):
    save_arrays(tmp_path / "m", "media", 1, {**WHOLE, **arrays}, {"items": entries})
    with pytest.raises(IndexFormatError, match="do not make a MediaIndex"):
        MediaIndex.load(tmp_path / "m", ColourEmbedder())


def test_a_full_disk_leaves_the_index_that_was_saved_before(tmp_path, monkeypatch):
    folder = saved(tmp_path)
    index = MediaIndex.load(folder, ColourEmbedder())
    index.add([MediaItem("gb", flag("green", "blue"))])
    failed = 0
    for step in range(1, 50):
        calls = 0

        def full(file, step=step):
            nonlocal calls
            calls += 1
            if calls == step:
                raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(storage, "_sync_file", full)
            try:
                index.save(folder)
            except OSError:
                failed += 1
                assert MediaIndex.load(folder, ColourEmbedder()).items == tuple(items())
                continue
        break
    # Three arrays and the manifest.
    assert failed == 4
    assert len(MediaIndex.load(folder, ColourEmbedder())) == 5


captions = st.text(max_size=5)
images = st.one_of(st.binary(max_size=9), st.text(max_size=5), st.just(Path("a") / "b.png"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(captions, inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


@given(st.lists(st.tuples(images, captions, st.booleans(), st.dictionaries(captions, values))))
@settings(max_examples=40, deadline=None)
def test_what_is_saved_is_what_is_loaded(tmp_path_factory, given_):
    class Widths:
        def embed_images(self, images):
            return [[1.0, n] for n, _ in enumerate(images)]

    stored = [
        MediaItem(f"{n}", image, caption, generated=made, metadata=metadata)
        for n, (image, caption, made, metadata) in enumerate(given_)
    ]
    index = MediaIndex(Widths(), stored)
    folder = tmp_path_factory.mktemp("media") / "saved"
    index.save(folder)
    loaded = MediaIndex.load(folder, Widths())
    assert loaded.items == tuple(stored)
    np.testing.assert_array_equal(loaded._store._unit, index._store._unit[: len(stored)])


def test_several_threads_may_add_at_once(tmp_path):
    colours = ["red", "green", "blue"]

    def own(thread):
        return [flag(*(colours[(thread + n) % 3] for n in range(k + 1))) for k in range(4)]

    index = MediaIndex(ColourEmbedder())

    def add(thread):
        refused = 0
        for number, image in enumerate(own(thread)):
            for copy in range(10):
                index.add([MediaItem(f"{thread}-{number}-{copy}", image, f"{thread}-{number}")])
            try:
                index.add([MediaItem(f"shared-{number}", flag(colours[number % 3]))])
            except InvalidParameterError:
                refused += 1
            index.find_or_generate(
                "nothing", wanted="image", threshold=1, generate=lambda _: flag("blue"), keep=True
            )
        return refused

    with ThreadPoolExecutor(4) as pool:
        refused = sum(pool.map(add, range(4)))
    # Each of the four shared ids was stored by one thread and refused to three.
    assert refused == 12
    ids = [item.id for item in index.items]
    assert len(ids) == len(set(ids)) == 4 * 40 + 4 + 16
    expected = ColourEmbedder().embed_images([item.image for item in index.items])
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(index._store._unit[: len(ids)], unit, atol=1e-6)
    index.save(tmp_path / "media")
    assert MediaIndex.load(tmp_path / "media", ColourEmbedder()).items == index.items


def test_an_id_that_was_taken_while_the_image_was_embedded_is_refused():
    class Slow(ColourEmbedder):
        def embed_images(self, images):
            if not len(index):
                index._store.add([MediaItem("x", flag("red"))], super().embed_images(images))
            return super().embed_images(images)

    index = MediaIndex(Slow())
    with pytest.raises(InvalidParameterError, match="the id of no other"):
        index.add([MediaItem("x", flag("blue"))])
    assert index.items == (MediaItem("x", flag("red")),)
    assert len(index._store._ids) == 1


def test_generated_ids_pass_over_those_that_are_taken():
    index = MediaIndex(ColourEmbedder(), [MediaItem("generated-2", flag("red")), *items()[1:2]])
    ids = []
    for _ in range(2):
        made = index.find_or_generate(
            "nothing", wanted="image", threshold=1, generate=lambda _: flag("blue"), keep=True
        )
        ids.append(made.item.id)
    assert ids == ["generated-3", "generated-4"]
