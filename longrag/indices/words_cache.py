"""The words, mentions and links of a corpus in a folder beside its cache, for the first question.

Reading them out of the texts again takes seconds where there are thousands of pages. As with the
cache of rows, whoever asks the first question writes it, and may do so without it; one that is
missing, damaged or of another state of the corpus is not used. It holds words as hashes and titles
as they are, so every change removes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

import numpy as np
from numpy.typing import NDArray

from longrag.errors import IndexFormatError, StaleIndexError
from longrag.indexing.database import IndexDatabase, Revision
from longrag.indexing.storage import load_arrays, save_arrays
from longrag.indices.corpus_state import Page
from longrag.indices.corpus_terms import CorpusTerms
from longrag.ingestion.mentions import FollowedMentions, TitleMentions

_KIND = "corpus words"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class ReadWords:
    """What was read out of the texts of some pages.

    Attributes:
        terms: words, names and titles of their chunks.
        mentions: where titles stand in them.
        links: pairs of pages, in the order of the pages' ids, shape (links, 2).
    """

    terms: CorpusTerms
    mentions: FollowedMentions
    links: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WordsCache:
    """Keeps what was read of one state of a corpus.

    Args:
        folder: the folder of the cache of rows.
        database: the index.
        revision: its state.
    """

    folder: Path
    database: IndexDatabase
    revision: Revision

    def load(self, pages: Sequence[Page], settings: TitleMentions) -> ReadWords | None:
        """Return what is kept of pages, in the order of their ids; None where it is not of them."""
        try:
            arrays, meta = load_arrays(words_folder(self.folder), _KIND, _VERSION)
            if Revision(int(meta["generation"]), str(meta["token"])) != self.revision:
                return None
            return ReadWords(
                CorpusTerms.of_arrays(pages, arrays),
                FollowedMentions.of_arrays(settings, [page.id for page in pages], arrays),
                arrays["links"],
            )
        except (IndexFormatError, OSError, KeyError, ValueError, TypeError, IndexError):
            return None

    def save(self, pages: Sequence[Page], read: ReadWords) -> None:
        """Keep what was read of pages, whole or not at all; an error in writing it is ignored."""
        arrays = {
            **read.terms.arrays(pages),
            **read.mentions.arrays(page.id for page in pages),
            "links": read.links,
        }
        folder = words_folder(self.folder)
        with suppress(OSError, IndexFormatError, StaleIndexError):
            for one in (folder.parent, folder):
                one.mkdir(mode=0o700, parents=True, exist_ok=True)
            save_arrays(folder, _KIND, _VERSION, arrays, self.revision._asdict())
        if self.database.revision() != self.revision:
            # What was deleted meanwhile may be in it.
            remove_words(self.folder)


def remove_words(folder: Path) -> None:
    """Remove what is kept beside a cache of rows."""
    with suppress(OSError):
        rmtree(words_folder(folder))


def words_folder(folder: Path) -> Path:
    """Return the folder beside a cache of rows."""
    return folder.with_name(f"{folder.name}-words")
