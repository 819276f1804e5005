"""Retrieval as generation: a stored image or caption where one is near enough, else a new one.

Best practices, §5.2 and Figure 4: what is stored is verified and cheap; what a model makes anew is
neither, and is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from longrag.errors import EmbeddingError, GenerationError, InvalidParameterError
from longrag.indexing.vectors import check_vectors, exact_inner_products, inner_products

Wanted: TypeAlias = Literal["image", "caption"]
"""What is asked for: an image for a text, or a caption for an image."""

_FIRST_ROWS: Final = 16
# More than the rounding of any product of unit vectors in float32.
_ROUNDING: Final = 1e-4


class ImageTextEmbedder(Protocol):
    """Embeds texts and images into one space, as CLIP does."""

    def embed_texts(self, texts: Sequence[str], /) -> ArrayLike:
        """Return vectors of shape (texts, width)."""

    def embed_images(self, images: Sequence[Any], /) -> ArrayLike:
        """Return vectors of shape (images, width)."""


@dataclass(frozen=True, slots=True)
class MediaItem:
    """An image with its caption, which may be empty.

    The image is whatever the embedder takes: a path, bytes, an object. ``generated`` tells that a
    model made the image or the caption. ``metadata`` is never changed; its values may be anything.
    """

    id: str
    image: Any = field(repr=False)
    caption: str = ""
    generated: bool = False
    metadata: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class FoundMedia:
    """An image or a caption, and where it comes from.

    ``generated`` tells that a model made it, for this query or for one before. ``item`` is the
    stored item it belongs to, None for one that was made now and not kept. ``similarity`` is the
    cosine of the query and the nearest stored item, None where nothing was stored: for a value made
    now, the one that was not enough.
    """

    value: Any = field(repr=False)
    generated: bool
    item: MediaItem | None
    similarity: float | None


class MediaIndex:
    """Images and captions to be returned in place of generated ones (best practices, §5.2).

    Items are compared by the cosines of their images' vectors, computed exactly over all of them;
    of equally similar ones the first added wins. Adding is for one thread at a time; finding may
    be done by several. Nothing is saved: images are whatever the caller has, and so is their store.

    Args:
        embedder: embeds texts and images into one space.
        items: what is stored from the beginning.

    Raises:
        InvalidParameterError: an item that is none, or has the id of another.
        EmbeddingError: vectors that are not finite, or not one for each image.
    """

    def __init__(self, embedder: ImageTextEmbedder, items: Sequence[MediaItem] = ()) -> None:
        self._embedder = embedder
        self._items: list[MediaItem] = []
        self._ids: set[str] = set()
        self._unit = np.empty((0, 0), np.float32)
        self.add(items)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> tuple[MediaItem, ...]:
        """The stored items, in the order in which they were added."""
        return tuple(self._items)

    def add(self, items: Sequence[MediaItem]) -> None:
        """Store items; all of them, or none where one of them is refused.

        Raises:
            InvalidParameterError: an item that is none, or has the id of another.
            EmbeddingError: vectors that are not finite, or not one for each image.
        """
        given = list(items)
        ids = set(self._ids)
        for place, item in enumerate(given):
            _check_item(f"items[{place}]", item)
            if item.id in ids:
                raise InvalidParameterError(f"items[{place}].id", item.id, "the id of no other")
            ids.add(item.id)
        if not given:
            return
        unit = self._embed([item.image for item in given], "image")
        stored = len(self._items)
        if stored + len(given) > len(self._unit):
            # Doubling makes items that come one at a time as cheap as many at once.
            rows = max(_FIRST_ROWS, 2 * stored, stored + len(given))
            grown = np.zeros((rows, unit.shape[1]), np.float32)
            if stored:
                grown[:stored] = self._unit[:stored]
            self._unit = grown
        self._unit[stored : stored + len(given)] = unit
        self._items.extend(given)
        self._ids = ids

    def nearest(self, query: Any, *, wanted: Wanted) -> tuple[MediaItem, float] | None:
        """Return the item nearest to the query, with its cosine; None where there is none.

        Args:
            query: a text where an image is wanted, an image where a caption is; items without a
                caption are then left out.
            wanted: "image" or "caption".

        Raises:
            InvalidParameterError: another ``wanted``, or a text that is blank.
            EmbeddingError: a vector that is not finite or not of the width of those stored.
        """
        if wanted not in ("image", "caption"):
            raise InvalidParameterError("wanted", wanted, '"image" or "caption"')
        if wanted == "image" and (not isinstance(query, str) or not query.strip()):
            raise InvalidParameterError("query", query, "a text that is not blank")
        stored = tuple(self._items)
        rows = np.array(
            [row for row, item in enumerate(stored) if wanted == "image" or item.caption.strip()],
            np.int64,
        )
        if not len(rows):
            return None
        asked = self._embed([query], "text" if wanted == "image" else "image")
        fast = inner_products(self._unit[: len(stored)], asked)[0][rows]
        near = rows[fast >= fast.max() - _ROUNDING]
        # Six decimals are what float32 vectors are worth.
        cosines = np.round(exact_inner_products(self._unit, near, asked[0]).astype(np.float64), 6)
        best = int(np.argmax(cosines))
        return stored[near[best]], float(np.clip(cosines[best], -1, 1))

    def find(self, query: Any, *, wanted: Wanted, threshold: float) -> FoundMedia | None:
        """Return the stored image or caption that is similar enough; None where none is.

        As ``find_or_generate`` without the generator, for callers who generate in their own way.

        Raises:
            InvalidParameterError: a setting, or a text that is blank.
            EmbeddingError: a vector that is not finite or not of the width of those stored.
        """
        _check_threshold(threshold)
        return _found(self.nearest(query, wanted=wanted), wanted, threshold)

    def find_or_generate(
        self,
        query: Any,
        *,
        wanted: Wanted,
        threshold: float,
        generate: Callable[[Any], Any],
        keep: bool = False,
    ) -> FoundMedia:
        """Return the nearest stored image or caption, or a generated one where none is near enough.

        Text to image: the query is compared with the stored images, and the generator draws it.
        Image to text: the query is compared with the stored images that have a caption, and the
        generator describes it (best practices, Figure 4). The two need thresholds of their own:
        with CLIP a fitting text and image have a cosine of about 0.3, two alike images 0.9.

        Args:
            query: a text where an image is wanted, an image where a caption is.
            wanted: "image" or "caption".
            threshold: the least cosine, from -1 to 1, at which the stored one is returned.
            generate: makes an image of a text or a caption of an image; called at most once.
            keep: whether to store what was made, with the query as its other half and marked as
                generated. The same query is then near to it, as far as the embedder thinks so.

        Returns:
            The image or caption and where it comes from.

        Raises:
            InvalidParameterError: a setting, or a text that is blank.
            EmbeddingError: a vector that is not finite or not of the width of those stored.
            GenerationError: the generator returned no image, or a caption that is blank or no text.
        """
        _check_threshold(threshold)
        if not callable(generate):
            raise InvalidParameterError("generate", generate, "a function of the query")
        nearest = self.nearest(query, wanted=wanted)
        found = _found(nearest, wanted, threshold)
        if found is not None:
            return found
        made = _made(generate(query), wanted)
        similarity = None if nearest is None else nearest[1]
        item = self._keep(query, made, wanted) if keep else None
        return FoundMedia(made, generated=True, item=item, similarity=similarity)

    def _keep(self, query: Any, made: Any, wanted: Wanted) -> MediaItem:
        number = len(self._items)
        while f"generated-{number}" in self._ids:
            number += 1
        item = MediaItem(f"generated-{number}", made, query, generated=True)
        if wanted == "caption":
            item = replace(item, image=query, caption=made)
        self.add([item])
        return item

    def _embed(self, inputs: list[Any], kind: Literal["text", "image"]) -> NDArray[np.float32]:
        """Return unit vectors; that of a zero vector is zero, which is similar to nothing."""
        embed = self._embedder.embed_texts if kind == "text" else self._embedder.embed_images
        width = self._unit.shape[1] or None
        vectors = check_vectors(embed(inputs), name=f"the vectors of the {kind}s", width=width)
        if len(vectors) != len(inputs):
            raise EmbeddingError(f"{len(vectors)} vectors for {len(inputs)} {kind}s")
        wide = vectors.astype(np.float64)
        lengths = np.linalg.norm(wide, axis=1, keepdims=True)
        unit: NDArray[np.float32] = (wide / np.where(lengths > 0, lengths, 1)).astype(np.float32)
        return unit


def _check_item(name: str, item: MediaItem) -> None:
    if not isinstance(item, MediaItem):
        raise InvalidParameterError(name, type(item).__name__, "a MediaItem")
    if not isinstance(item.id, str) or not item.id:
        raise InvalidParameterError(f"{name}.id", item.id, "a string that is not empty")
    if item.image is None:
        raise InvalidParameterError(f"{name}.image", None, "an image that the embedder takes")
    if not isinstance(item.caption, str):
        raise InvalidParameterError(f"{name}.caption", item.caption, "a string, empty for none")


def _check_threshold(threshold: float) -> None:
    number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if not number or not -1 <= threshold <= 1:
        raise InvalidParameterError("threshold", threshold, "a cosine from -1 to 1")


def _found(
    nearest: tuple[MediaItem, float] | None, wanted: Wanted, threshold: float
) -> FoundMedia | None:
    if nearest is None or nearest[1] < threshold:
        return None
    item, similarity = nearest
    value = item.image if wanted == "image" else item.caption
    return FoundMedia(value, item.generated, item, similarity)


def _made(made: Any, wanted: Wanted) -> Any:
    if made is None:
        raise GenerationError(f"the generator returned None, which is no {wanted}")
    if wanted == "caption" and (not isinstance(made, str) or not made.strip()):
        raise GenerationError(f"the generator returned {made!r:.80}, which is no caption")
    return made.strip() if wanted == "caption" else made
