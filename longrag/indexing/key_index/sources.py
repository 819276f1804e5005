"""Where keys come from, in arrays: a million of them are loaded without being read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longrag.errors import InvalidParameterError
from longrag.indexing.key_index.runs import check_lengths
from longrag.indexing.key_index.token_ids import TokenIds, concatenate
from longrag.types import Key

Integers = NDArray[np.int64]

# Numbers written out at a time.
_NUMBERED = 1 << 16

_STRINGS = ("texts", "documents", "passages")
_NUMBERS = ("document_of", "passage_of", "start_of", "end_of")


class KeySources:
    """One ``Key`` for each key of a segment; texts as UTF-8, ids of documents stored once."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = dict(arrays)
        self._texts, self._documents, self._passages = (
            TokenIds(arrays[name], arrays[f"{name}_offsets"]) for name in _STRINGS
        )

    @classmethod
    def build(cls, keys: Sequence[Key]) -> KeySources:
        """Store keys in the order given.

        Raises:
            InvalidParameterError: something is not a ``Key``, or its fields are not of their types.
        """
        for place, key in enumerate(keys):
            _check(key, place)
        documents = {key.doc_id: 0 for key in keys}
        passages = {key.passage_id: 0 for key in keys}
        for codes in (documents, passages):
            codes.update(zip(codes, range(len(codes)), strict=True))
        numbers = {
            "document_of": [documents[key.doc_id] for key in keys],
            "passage_of": [passages[key.passage_id] for key in keys],
            "start_of": [key.start for key in keys],
            "end_of": [key.end for key in keys],
        }
        strings = {
            "texts": strings_of(key.text for key in keys),
            "documents": strings_of(documents),
            "passages": strings_of(passages),
        }
        return cls._of(strings, {name: np.array(n, np.int64) for name, n in numbers.items()})

    @classmethod
    def numbered(cls, count: int) -> KeySources:
        """Make each key a document by itself, named by its number, without a text."""
        names = _decimals(count)
        # Pages of zeros that were never written to take no memory.
        blank = np.zeros(count, np.uint32)
        order = np.arange(count, dtype=np.uint32 if count < 2**32 else np.int64)
        numbers = {"document_of": order, "start_of": blank, "end_of": blank, "passage_of": blank}
        texts = TokenIds(np.empty(0, np.uint8), np.zeros(count + 1, np.uint32))
        strings = {"texts": texts, "documents": names, "passages": strings_of([""][:count])}
        return cls._of(strings, numbers)

    @classmethod
    def _of(
        cls, strings: Mapping[str, TokenIds], numbers: Mapping[str, NDArray[Any]]
    ) -> KeySources:
        arrays = {name: _narrow(array) for name, array in numbers.items()}
        for name, table in strings.items():
            arrays |= {name: table.flat, f"{name}_offsets": _narrow(table.offsets)}
        return cls(arrays)

    def __len__(self) -> int:
        return len(self._arrays["document_of"])

    def __getitem__(self, place: int) -> Key:
        document, passage, start, end = (int(self._arrays[name][place]) for name in _NUMBERS)
        return Key(
            text=_string(self._texts, place),
            doc_id=_string(self._documents, document),
            start=start,
            end=end,
            passage_id=_string(self._passages, passage),
        )

    def doc_ids(self, places: Integers) -> list[str]:
        """Return the documents of some keys, each once, in the order they were first given in."""
        codes = np.unique(self._arrays["document_of"][places])
        return [_string(self._documents, int(code)) for code in codes]

    def codes(self, doc_ids: Iterable[str]) -> list[int]:
        """Return the numbers of those documents that are known here, rising."""
        return sorted(self._codes[id_] for id_ in doc_ids if id_ in self._codes)

    def of_documents(self, codes: Sequence[int]) -> NDArray[np.bool_]:
        """Tell of each key whether its document has one of some numbers."""
        chosen = np.zeros(len(self._documents), np.bool_)
        chosen[list(codes)] = True
        return np.asarray(chosen[self._arrays["document_of"]], np.bool_)

    def of_ids(self, ids: Collection[str]) -> NDArray[np.bool_]:
        """Tell of each key whether its document or its passage is one of some."""
        chosen = np.zeros(len(self._passages), np.bool_)
        chosen[[self._passage_codes[id_] for id_ in ids if id_ in self._passage_codes]] = True
        of_passages = np.asarray(chosen[self._arrays["passage_of"]], np.bool_)
        return of_passages | self.of_documents(self.codes(ids))

    @cached_property
    def _passage_codes(self) -> dict[str, int]:
        names = (_string(self._passages, code) for code in range(len(self._passages)))
        # Keys without a passage have an empty one.
        return {name: code for code, name in enumerate(names) if name}

    @cached_property
    def _codes(self) -> dict[str, int]:
        names = (_string(self._documents, code) for code in range(len(self._documents)))
        return {name: code for code, name in enumerate(names)}

    def take(self, places: Integers) -> KeySources:
        """Return the sources of some keys in the order given, without data of the others."""
        numbers = {name: _take(self._arrays[name], places) for name in _NUMBERS}
        blank = TokenIds(self._texts.flat, np.zeros(len(places) + 1, np.uint32))
        strings = {"texts": self._texts.take(places) if len(self._texts.flat) else blank}
        for name, codes in (("documents", "document_of"), ("passages", "passage_of")):
            table: TokenIds = getattr(self, f"_{name}")
            used = np.zeros(len(table), np.bool_)
            used[numbers[codes]] = True
            strings[name] = table
            if not used.all():
                strings[name] = table.take(np.flatnonzero(used))
                numbers[codes] = (np.cumsum(used) - 1)[numbers[codes]]
        return self._of(strings, numbers)

    @classmethod
    def concatenate(cls, parts: Sequence[KeySources]) -> KeySources:
        """Join the keys of several segments."""
        strings = {"texts": concatenate([part._texts for part in parts])}
        numbers = {
            name: np.concatenate([part._arrays[name].astype(np.int64) for part in parts])
            for name in ("start_of", "end_of")
        }
        for name, codes in (("documents", "document_of"), ("passages", "passage_of")):
            code_of: dict[str, int] = {}
            found = []
            for part in parts:
                table: TokenIds = getattr(part, f"_{name}")
                names = (_string(table, code) for code in range(len(table)))
                renamed = [code_of.setdefault(one, len(code_of)) for one in names]
                found.append(np.array(renamed, np.int64)[part._arrays[codes]])
            strings[name] = strings_of(code_of)
            numbers[codes] = np.concatenate(found)
        return cls._of(strings, numbers)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save."""
        return self._arrays

    def check(self) -> None:
        """Raise ``ValueError`` where loaded arrays are not of lengths that fit together."""
        count = len(self)
        check_lengths(
            texts=(len(self._texts), count),
            **{name: (len(self._arrays[name]), count) for name in _NUMBERS},
        )
        for table in (self._texts, self._documents, self._passages):
            check_lengths(strings=(int(table.offsets[-1]), len(table.flat)))
        for table, name in ((self._documents, "document_of"), (self._passages, "passage_of")):
            if count and int(self._arrays[name].max()) >= len(table):
                raise ValueError(f"{name} leads beyond {len(table)} strings")

    @staticmethod
    def names() -> tuple[str, ...]:
        """Return the names of the arrays."""
        return (*_NUMBERS, *_STRINGS, *(f"{name}_offsets" for name in _STRINGS))


def strings_of(texts: Iterable[str]) -> TokenIds:
    """Store strings as UTF-8, lone surrogates included."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=offsets[1:])
    return TokenIds(np.frombuffer(b"".join(encoded), np.uint8), offsets)


def _decimals(count: int) -> TokenIds:
    """Return the numbers from 0 on in decimal digits, a million of them in a tenth of a second."""
    powers = 10 ** np.arange(len(str(max(count - 1, 0))))[::-1]
    digits = [np.empty(0, np.uint8)]
    offsets = np.zeros(count + 1, np.int64)
    for first in range(0, count, _NUMBERED):
        leading = np.arange(first, min(first + _NUMBERED, count))[:, np.newaxis] // powers
        shown = leading > 0
        shown[:, -1] = True
        digits.append((leading % 10 + ord("0")).astype(np.uint8)[shown])
        offsets[first + 1 : first + len(shown) + 1] = shown.sum(axis=1)
    return TokenIds(np.concatenate(digits), np.cumsum(offsets, out=offsets))


def _string(table: TokenIds, place: int) -> str:
    return table[place].tobytes().decode("utf-8", "surrogatepass")


def _take(array: NDArray[Any], places: Integers) -> NDArray[Any]:
    return array[places] if array.any() else np.zeros(len(places), array.dtype)


def _narrow(array: NDArray[Any]) -> NDArray[Any]:
    """Store numbers from 0 on in 32 bits where they fit."""
    fits = not len(array) or int(array.max()) < 2**32
    return array.astype(np.uint32 if fits else np.int64, copy=False)


def _check(key: object, place: int) -> None:
    if not isinstance(key, Key):
        raise InvalidParameterError(f"keys[{place}]", key, "a Key")
    for name in ("text", "doc_id", "passage_id"):
        if not isinstance(getattr(key, name), str):
            raise InvalidParameterError(f"keys[{place}].{name}", getattr(key, name), "a string")
    for name in ("start", "end"):
        value = getattr(key, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
            raise InvalidParameterError(f"keys[{place}].{name}", value, "a character offset")
    if key.end < key.start:
        raise InvalidParameterError(
            f"keys[{place}].end", key.end, f"at least its start, {key.start}"
        )
