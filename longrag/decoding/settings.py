"""Checks of the settings of decoding.

Each function raises ``InvalidParameterError`` unless its docstring names another error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from operator import index as as_index

import numpy as np

from longrag.errors import InvalidParameterError, TokenizerError
from longrag.indexing import KeyIndex
from longrag.models.tokenizer import Tokenizer


def check_tokenizer(index: KeyIndex, tokenizer: Tokenizer) -> None:
    """Raise ``TokenizerError`` where an index was made with another tokenizer."""
    made, given = index.tokenizer_fingerprint, tokenizer.fingerprint
    if made and (made != given or index.vocab_size != tokenizer.vocab_size):
        raise TokenizerError(
            f"the index was made with the tokenizer {made!r} of {index.vocab_size} ids, and the "
            f"language model's is {given!r} of {tokenizer.vocab_size}. Build the index with the "
            "language model's tokenizer."
        )


def check_markers(markers: tuple[str, str]) -> tuple[str, str]:
    """Return markers that differ from white space and from each other."""
    strings = (
        isinstance(markers, tuple)
        and len(markers) == 2
        and all(isinstance(marker, str) and marker.split() == [marker] for marker in markers)
    )
    if not strings or markers[0] in markers[1] or markers[1] in markers[0]:
        raise InvalidParameterError(
            "markers",
            markers,
            "a tuple of two strings without white space, neither of which contains the other",
        )
    return markers


def check_ends(end_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Return end tokens in increasing order, each once."""
    try:
        found = tuple(sorted({as_index(id_) for id_ in end_ids}))
    except TypeError:
        found = (-1,)
    if any(not 0 <= id_ < vocab_size for id_ in found):
        raise InvalidParameterError(
            "end_ids", end_ids, f"a sequence of ids from 0 to {vocab_size - 1}"
        )
    return found


def check_stop(stop: Sequence[str], opening: str) -> tuple[str, ...]:
    """Return stop strings, none of which holds the opening marker."""
    if isinstance(stop, str) or not all(isinstance(text, str) and text for text in stop):
        raise InvalidParameterError("stop", stop, "a sequence of strings that are not empty")
    for text in stop:
        if opening in text:
            raise InvalidParameterError.because(
                f"The opening marker {opening!r} is never free text: leave it out of stop={text!r}."
            )
    return tuple(stop)


def check_strings(value: Sequence[str], name: str) -> tuple[str, ...]:
    """Return one string or several, none of them empty, as a tuple."""
    found = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    for string in found:
        if not isinstance(string, str) or not string:
            raise InvalidParameterError(name, string, "a string that is not empty, or several")
    return found


def check_count(parameter: str, value: object, least: int = 1) -> int:
    """Return `value` if it is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidParameterError(parameter, value, f"an integer of at least {least}")
    return value


def check_number(parameter: str, value: object) -> float:
    """Return `value` as a float if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise InvalidParameterError(parameter, value, "a finite number")
    return float(value)


def check_flag(parameter: str, value: object) -> bool:
    """Return `value` as a bool if it is one; a string such as "false" is refused."""
    if not (isinstance(value, int | np.bool_) and value in (0, 1)):
        raise InvalidParameterError(parameter, value, "True or False")
    return bool(value)


def check_prompt(prompt: object) -> str:
    """Return a prompt that can be encoded as UTF-8, which tokenizers need."""
    if not isinstance(prompt, str):
        raise InvalidParameterError("prompt", prompt, "a string")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameterError(
            "prompt", prompt[error.start : error.end], "a text without lone surrogates"
        ) from error
    return prompt
