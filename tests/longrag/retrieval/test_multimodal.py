"""What is near enough is returned from the store, all else is generated and says so."""

import io
import struct
import threading
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longrag.errors import EmbeddingError, GenerationError, InvalidParameterError
from longrag.retrieval import FoundMedia, MediaIndex, MediaItem

COLOURS = {"red": (220, 20, 20), "green": (20, 200, 40), "blue": (20, 40, 210), "红": (220, 20, 20)}
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def png(pixels):
    """Write an array of shape (height, width, 3) as a PNG image."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.astype(np.uint8))

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return SIGNATURE + b"".join(
        [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    )


def pixels_of(image):
    """Read what ``png`` wrote, from bytes or a path."""
    data = image if isinstance(image, bytes) else image.read_bytes()
    if not data.startswith(SIGNATURE):
        raise ValueError("not a PNG image")
    width, height = struct.unpack(">II", data[16:24])
    size = struct.unpack(">I", data[33:37])[0]
    rows = np.frombuffer(zlib.decompress(data[41 : 41 + size]), np.uint8)
    return rows.reshape(height, 1 + 3 * width)[:, 1:].reshape(height, width, 3)


class ColourEmbedder:
    """Embeds an image as its histogram over colours, and a text as the colours it names."""

    def __init__(self):
        self.embedded = []

    def embed_images(self, images):
        self.embedded.extend(images)
        return np.stack([self._histogram(pixels_of(image)) for image in images])

    def embed_texts(self, texts):
        self.embedded.extend(texts)
        named = [[COLOURS[name] for name in COLOURS if name in text] for text in texts]
        empty = np.zeros(64, np.float32)
        return np.stack(
            [self._histogram(np.array([colours])) if colours else empty for colours in named]
        )

    def _histogram(self, pixels):
        bins = (pixels.reshape(-1, 3) // 64).astype(np.int64) @ [16, 4, 1]
        return np.bincount(bins, minlength=64).astype(np.float32)


def flag(*names, size=12):
    """Draw a flag of vertical stripes."""
    stripes = np.repeat(np.array([COLOURS[name] for name in names]), size // len(names), axis=0)
    return png(np.tile(stripes, (size, 1, 1)))


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
