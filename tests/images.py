"""Real images made by the tests, and an embedder that sees their colours."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np

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
    """Read what ``png`` wrote, from bytes, a file in memory or a path."""
    if isinstance(image, io.BytesIO):
        image = image.read()
    data = image if isinstance(image, bytes) else Path(image).read_bytes()
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
