"""Images and captions that are found or generated, without what a framework owns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from longrag.calls import Flow
from longrag.errors import GenerationError, InvalidParameterError
from longrag.indexing.media_store import MediaItem, MediaStore, Nearest, Wanted
from longrag.retrieval.multimodal import FoundMedia, check_threshold, retrieve_or_generate

Generator = TypeVar("Generator")


@dataclass(frozen=True, slots=True)
class MediaSettings(Generic[Generator]):
    """When a stored image or caption is near enough, and what generates one otherwise.

    Attributes:
        image_threshold: the least cosine of a text and a stored image that is returned.
        caption_threshold: the least cosine of an image and a stored image whose caption is.
        image_generator: makes an image of a text; None where no image is made.
        caption_generator: makes a caption of an image; None where no caption is made.

    Raises:
        InvalidParameterError: a threshold is out of range.
    """

    image_threshold: float
    caption_threshold: float
    image_generator: Generator | None
    caption_generator: Generator | None

    def __post_init__(self) -> None:
        """Refuse a threshold out of range."""
        check_threshold(self.image_threshold, "image_threshold")
        check_threshold(self.caption_threshold, "caption_threshold")

    def threshold(self, wanted: Wanted) -> float:
        """Return the least cosine at which a stored item is returned."""
        return self.image_threshold if wanted == "image" else self.caption_threshold

    def generator(self, wanted: Wanted, remedy: str = "") -> Generator:
        """Return what makes an image or a caption.

        Raises:
            InvalidParameterError: no such generator was given.
        """
        made = self.image_generator if wanted == "image" else self.caption_generator
        if made is None:
            raise InvalidParameterError(f"{wanted}_generator", None, "a generator", remedy)
        return made

    def find_or_make(
        self, query: Any, wanted: Wanted, nearest: Flow[Nearest], keep_in: MediaStore | None
    ) -> Flow[FoundMedia]:
        """Return what is nearest where it is near enough, and otherwise ask for it to be made."""
        return retrieve_or_generate(
            query, nearest, wanted=wanted, threshold=self.threshold(wanted), keep_in=keep_in
        )


def found_item(query: Any, wanted: Wanted, found: FoundMedia) -> MediaItem:
    """Return the item that was found; of what was made now, a new one without an id.

    The other half of what was made is the query: the caption of an image, the image of a caption.
    """
    if found.item is not None:
        return found.item
    image, caption = (found.value, query) if wanted == "image" else (query, found.value)
    return MediaItem("", image, str(caption), generated=True)


def no_image(made: object) -> GenerationError:
    """Return the error of a generator that made something other than an image."""
    return GenerationError(f"the generator returned {made!r:.80}, which is no image")
