"""Every stretch of every key in the least memory: an FM-index (RICHES §3.2).

Ferragina, Manzini: "Opportunistic Data Structures with Applications", 2000, over the reversed text,
so that one step of backward search adds a token after those found; in a wavelet matrix (Claude,
Navarro, Ordóñez 2015). The text itself is not kept: it is read back out of the index.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longrag.indexing.key_index.runs import Alive, Content, Integers, Runs, check_lengths
from longrag.indexing.key_index.suffix_array import separated, separated_flags
from longrag.indexing.key_index.suffix_sorting import suffix_array
from longrag.indexing.key_index.token_ids import TokenIds
from longrag.indexing.key_index.wavelet_matrix import WaveletMatrix

# Symbols: what ends the text, what ends a key, then the tokens that occur, in their order.
_END, _SEPARATOR, _TOKENS = 0, 1, 2
_SMALL_VOCABULARY = 1 << 20


class FMIndex:
    """Row i is the i-th reversed prefix of the text; rows of one reversed stretch are together."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], *, min_length: int) -> None:
        self._arrays = dict(arrays)
        self._alphabet, self._before = arrays["alphabet"], arrays["before"]
        self._offsets, self._key_of = arrays["offsets"], arrays["separator_keys"]
        self._ends = arrays["ends"]
        self._min_length = min_length
        self._matrix = WaveletMatrix(
            arrays["bits"], arrays["ranks"], arrays["zeros"], arrays["shifts"]
        )
        self.size = len(self._offsets) - 1
        self.tokens = int(self._offsets[-1])
        self.root = (int(self._before[_TOKENS]), int(self._before[-1]))

    @classmethod
    def build(cls, content: Content, vocab_size: int, *, min_length: int) -> FMIndex:
        """Sort the reversed text and keep, of each row, the symbol before it."""
        text, starts = separated(content.ids)
        alphabet, symbols = _symbols(text, vocab_size)
        backwards = np.append(symbols[::-1], np.uint32(_END))
        largest = len(alphabet) + 1
        rows = suffix_array(backwards, largest)
        counts = np.bincount(backwards, minlength=largest + 1)
        before = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        # Row 0 is the end of the reversed text; ``places`` are those of the text itself.
        places = len(text) - 1 - rows.astype(np.int64)
        ends = np.zeros(len(rows), np.bool_)
        ends[1:] = separated_flags(content)[places[1:]]
        closing = places[before[_SEPARATOR] : before[_TOKENS]]
        bits, ranks, zeros, shifts = WaveletMatrix.build(backwards[rows - 1], before)
        arrays = {
            "alphabet": alphabet,
            "before": before,
            "offsets": content.ids.offsets.astype(np.uint32),
            "separator_keys": (np.searchsorted(starts, closing, side="right") - 1).astype(np.int32),
            "ends": np.packbits(ends),
            "bits": bits,
            "ranks": ranks,
            "zeros": zeros,
            "shifts": shifts,
        }
        return cls(arrays, min_length=min_length)

    def expand(self, lo: int, hi: int, depth: int) -> Runs:
        """Return the tokens that follow an interval's first ``depth`` tokens."""
        if depth == 0:
            before = self._before[_TOKENS:]
            return Runs(self._alphabet.astype(np.int64), before[:-1], before[1:])
        symbols, los, his = self._matrix.distinct(lo, hi)
        inside = symbols >= _TOKENS
        tokens = self._alphabet[symbols[inside] - _TOKENS].astype(np.int64)
        return Runs(tokens, los[inside], his[inside])

    def step(self, lo: int, hi: int, depth: int, token: int) -> tuple[int, int] | None:
        """Return the interval that one token leads to; it may be empty."""
        place = int(np.searchsorted(self._alphabet, token))
        if place == len(self._alphabet) or self._alphabet[place] != token:
            return 0, 0
        if depth == 0:
            return int(self._before[place + _TOKENS]), int(self._before[place + _TOKENS + 1])
        return self._matrix.follow(lo, hi, place + _TOKENS)

    def may_close(self, lo: int, hi: int, depth: int, alive: Alive | None) -> bool:
        """Tell whether an occurrence ends with its key, or with a sentence if it is long enough."""
        if lo >= hi or depth == 0:
            return False
        first, last = self._matrix.follow(lo, hi, _SEPARATOR)
        keys = self._key_of[first - self._before[_SEPARATOR] : last - self._before[_SEPARATOR]]
        if len(keys) and (alive is None or not alive.dead_keys[keys].all()):
            return True
        if depth < self._min_length:
            return False
        part = np.unpackbits(self._ends[lo >> 3 : (hi + 7) >> 3])
        ends = part[lo - (lo >> 3 << 3) :][: hi - lo]
        return bool((ends if alive is None else ends[alive.rows(lo, hi) - lo]).any())

    def closing_rows(self, lo: int, hi: int, depth: int) -> tuple[int, int]:
        """Return the whole interval: every occurrence of a stretch is a source of it."""
        return lo, hi

    def places(self, rows: Integers, depth: int) -> tuple[Integers, Integers]:
        """Return the key of each row, and the place of its first token in the key.

        Each row is followed to the end of its key.
        """
        separators, behind = self._matrix.walk(rows, _SEPARATOR)
        keys = self._key_of[separators - self._before[_SEPARATOR]].astype(np.int64)
        offsets = self._offsets.astype(np.int64)
        return keys, offsets[keys + 1] - offsets[keys] - behind - depth

    def rows_of_keys(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Tell of each row whether it is of a chosen key; only the chosen ones are read."""
        found = np.zeros(int(self._before[-1]), np.bool_)
        keys = np.flatnonzero(chosen)
        # A key is read from the separator before it on, the first from the start of the text.
        behind = np.zeros(self.size + 1, np.int64)
        behind[self._key_of.astype(np.int64) + 1] = self._before[_SEPARATOR] + np.arange(self.size)
        lengths = np.diff(self._offsets.astype(np.int64))[keys]
        found[self._matrix.read(behind[keys], lengths)[1]] = True
        return found

    def content(self) -> Content:
        """Read the keys and the ends of their sentences back out of the index."""
        symbols, rows = self._matrix.read([0], [self.tokens + self.size])
        inside = symbols >= _TOKENS
        flat = self._alphabet[symbols[inside] - _TOKENS]
        ends = np.unpackbits(self._ends, count=int(self._before[-1])).astype(np.bool_)
        offsets = self._offsets.astype(np.int64)
        return Content(TokenIds(flat, offsets), ends[rows[inside]])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save."""
        return self._arrays

    def check(self) -> None:
        """Raise ``ValueError`` where loaded arrays are not of lengths that fit together."""
        rows, symbols = int(self._before[-1]), len(self._alphabet) + _TOKENS
        levels, words = self._arrays["bits"].shape
        check_lengths(
            rows=(rows, self.tokens + self.size + 1),
            before=(len(self._before), symbols + 1),
            separator_keys=(len(self._key_of), self.size),
            ends=(len(self._ends), -(-rows // 8)),
            levels=(levels, max(1, (symbols - 1).bit_length())),
            words=(words, WaveletMatrix.words(rows)),
            ranks=(self._arrays["ranks"].size, levels * (words // WaveletMatrix.block + 1)),
            zeros=(len(self._arrays["zeros"]), levels),
            shifts=(len(self._arrays["shifts"]), symbols),
        )


def _symbols(text: NDArray[Any], vocab_size: int) -> tuple[NDArray[Any], NDArray[np.uint32]]:
    """Return the tokens that occur, rising, and the text in symbols."""
    if vocab_size <= _SMALL_VOCABULARY:
        present = np.bincount(text, minlength=vocab_size + 1) > 0
        present[0] = True
        symbol_of = np.cumsum(present).astype(np.uint32)
        kinds = np.flatnonzero(present)
        symbols = symbol_of[text]
    else:
        kinds, places = np.unique(np.append(text, text.dtype.type(0)), return_inverse=True)
        symbols = (places[:-1] + 1).astype(np.uint32)
    return (kinds[1:] - 1).astype(text.dtype), symbols
